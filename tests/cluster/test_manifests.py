"""The manifests as a real API server takes them: every field known, every value allowed, for all the golden ones."""

from pathlib import Path

import pytest
import yaml

from operating import Controller
from testcluster import AnyCluster

GOLDEN = sorted((Path(__file__).parents[1] / "unit" / "manifests" / "golden").glob("*.yaml"))
PLURALS = {
    "Job": "jobs",
    "JobSet": "jobsets",
    "Deployment": "deployments",
    "Service": "services",
    "PersistentVolumeClaim": "persistentvolumeclaims",
}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_manifest_is_taken_by_a_real_api_server_which_knows_all_its_fields(
    control_plane: AnyCluster, jobset: Controller | None, namespace: str, path: Path
) -> None:
    manifest = yaml.safe_load(path.read_text())
    if manifest["kind"] == "JobSet" and jobset is None:
        pytest.skip("this cluster may have no JobSet")
    manifest["metadata"]["namespace"] = namespace
    version = manifest["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    where = f"{root}/namespaces/{namespace}/{PLURALS[manifest['kind']]}?dryRun=All&fieldValidation=Strict"
    made = control_plane.request("POST", where, manifest)
    assert made["metadata"]["name"] == manifest["metadata"]["name"]
