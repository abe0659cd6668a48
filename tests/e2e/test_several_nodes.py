"""Pods that train together find each other on a real network by their names, and one that is lost costs a try."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_api.jobs import ExitCode, Report, StageName
from operating import JOBSET, Controller
from testbed import Testbed, tiny
from testcluster import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

READ_WRITE_MANY = ("ReadWriteMany",)
FEATURES, DRAFTS = "shared-features", "shared-drafts"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"


@pytest.fixture(scope="module")
def shared(bed: Testbed) -> dict[str, Any]:
    """Where the pods of all nodes read and write."""
    for volume in (FEATURES, DRAFTS):
        bed.cluster.add_volume(volume, "10Gi", access_modes=READ_WRITE_MANY)
        bed.cluster.claim(bed.namespace, volume, access_modes=READ_WRITE_MANY)
    return {"features": {"claim": FEATURES}, "drafts": {"claim": DRAFTS}}


@contextlib.contextmanager
def jobsets(bed: Testbed, folder: Path) -> Iterator[None]:
    """The cluster serves JobSets."""
    controller = Controller(bed.cluster, folder, "jobset", JOBSET)
    controller.add_kinds()
    try:
        with controller.running():
            yield
    finally:
        controller.remove_kinds()


def train_on_two_nodes(bed: Testbed, name: str, storage: dict[str, Any]) -> str:
    """Train one draft with two pods, of which one dies without a word on the way; returns the name of what ran them."""
    train = tiny.manifest()["spec"]["train"] | {"nodes": 2, "epochs": 1, "checkpointInterval": "1s"}
    bed.create(tiny.manifest(name, train=train, storage=storage))
    scratch = bed.folder(FEATURES) / bed.namespace / name
    bed.wait(name, lambda _: any(scratch.glob("train/*/.step-*[0-9]")), seconds=400, what="a checkpoint")
    (second,) = pods(bed, name, index=1)
    bed.kubectl("exec", second["metadata"]["name"], "--", "sh", "-c", "kill -KILL -1")
    trained = bed.wait(name, lambda draft: draft.says("DraftTrained", "True"), seconds=600)
    stage = next(stage for stage in trained.status.stages if stage.name is StageName.TRAIN)
    told = [report for pod in pods(bed, name) if (report := done(pod))]
    assert [report.result for report in told] == [stage.result] * 2, "both speak of the one training"
    assert stage.result is not None
    assert stage.result["resumed"] == 1
    assert stage.job is not None
    return stage.job


def pods(bed: Testbed, name: str, *, index: int | None = None) -> list[dict[str, Any]]:
    """Those of the training, also those that have ended; of one index only where it is given."""
    labels = {"eagle3.dev/name": name, "eagle3.dev/stage": "train"}
    if index is not None:
        labels["batch.kubernetes.io/job-completion-index"] = str(index)
    selected = ",".join(f"{label}={value}" for label, value in labels.items())
    path = f"/api/v1/namespaces/{bed.namespace}/pods?labelSelector={selected}"
    found: list[dict[str, Any]] = bed.cluster.request("GET", path)["items"]
    return found


def done(pod: dict[str, Any]) -> Report | None:
    """What a pod that came to its end reports."""
    ended = pod["status"]["containerStatuses"][0]["state"].get("terminated", {})
    return Report.parse(ended["message"]) if ended.get("exitCode") == ExitCode.DONE else None


def test_two_pods_of_an_indexed_job_train_one_draft_and_go_on_when_one_is_lost(
    bed: Testbed, shared: dict[str, Any]
) -> None:
    job = train_on_two_nodes(bed, "plain", shared)
    assert job in bed.kubectl("get", "jobs", "--output", "name")
    (first,) = [pod for pod in pods(bed, "plain", index=0) if done(pod)]
    service = "plain-train-nodes"
    assert (first["spec"]["hostname"], first["spec"]["subdomain"]) == (f"{job}-0", service)
    assert f'"{job}-0.{service}"' in first["metadata"]["annotations"]["eagle3.dev/config"]
    bed.kubectl("delete", "e3d", "plain", "--wait=false")


def test_two_pods_of_a_jobset_train_one_draft_and_go_on_when_one_is_lost(
    bed: Testbed, shared: dict[str, Any], tmp_path: Path
) -> None:
    path = JOBSETS.format(namespace=bed.namespace)
    with jobsets(bed, tmp_path):
        job = train_on_two_nodes(bed, "together", shared)
        (made,) = bed.cluster.request("GET", path)["items"]
        assert made["metadata"]["name"] == job
        assert made["status"]["terminalState"] == "Completed"
        bed.kubectl("delete", "e3d", "together", "--wait=false")
        wait_for("the JobSet to be gone", 120, lambda: not bed.cluster.request("GET", path)["items"])
