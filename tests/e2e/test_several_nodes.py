"""Pods that train together find each other on a real network, by the names that JobSet's Service gives them."""

from pathlib import Path

import pytest

from eagle3_api.jobs import Report, StageName
from operating import JOBSET, Controller
from testbed import Testbed, tiny
from testcluster import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

READ_WRITE_MANY = ("ReadWriteMany",)


def test_two_pods_of_a_jobset_train_one_draft(bed: Testbed, tmp_path: Path) -> None:
    for volume in ("shared-features", "shared-drafts"):
        bed.cluster.add_volume(volume, "10Gi", access_modes=READ_WRITE_MANY)
        bed.cluster.claim(bed.namespace, volume, access_modes=READ_WRITE_MANY)
    jobset = Controller(bed.cluster, tmp_path, "jobset", JOBSET)
    jobset.add_kinds()
    whole = tiny.manifest()["spec"]
    together = tiny.manifest(
        "together",
        train=whole["train"] | {"nodes": 2, "epochs": 1},
        storage={"features": {"claim": "shared-features"}, "drafts": {"claim": "shared-drafts"}},
    )
    with jobset.running():
        bed.create(together)
        trained = bed.wait("together", lambda draft: draft.says("DraftTrained", "True"), seconds=400)
        path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{bed.namespace}/jobsets"
        (made,) = bed.cluster.request("GET", path)["items"]
        assert made["status"]["terminalState"] == "Completed"
        stage = next(stage for stage in trained.status.stages if stage.name is StageName.TRAIN)
        assert stage.job == made["metadata"]["name"]
        selected = "labelSelector=eagle3.dev/name=together,eagle3.dev/stage=train"
        pods = bed.cluster.request("GET", f"/api/v1/namespaces/{bed.namespace}/pods?{selected}")["items"]
        ended = [pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in pods]
        first, second = (Report.parse(end["message"]) for end in ended)
        assert first is not None
        assert second is not None
        assert first.result == second.result == stage.result, "both speak of the one training"
        bed.kubectl("delete", "e3d", "together", "--wait=false")
        wait_for("the JobSet to be gone", 120, lambda: not bed.cluster.request("GET", path)["items"])
    jobset.remove_kinds()
