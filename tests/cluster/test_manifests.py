"""The manifests as a real API server takes them: every field known, every value allowed, for all the golden ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from operating import Controller
from testcluster import AnyCluster
from testcluster.api import ApiException

GOLDEN = sorted((Path(__file__).parents[1] / "unit" / "manifests" / "golden").glob("*.yaml"))
PLURALS = {
    "Job": "jobs",
    "JobSet": "jobsets",
    "Deployment": "deployments",
    "Service": "services",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "PodDisruptionBudget": "poddisruptionbudgets",
}


@pytest.fixture
def restricted(control_plane: AnyCluster, namespace: str) -> str:
    """A namespace that takes only pods of the strictest Pod Security Standard."""
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    control_plane.request("PATCH", f"/api/v1/namespaces/{namespace}", label, "application/merge-patch+json")
    return namespace


def templates(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pod templates in a manifest."""
    for name, value in manifest.items():
        if name == "template" and "containers" in value.get("spec", {}):
            yield value
        elif isinstance(value, dict):
            yield from templates(value)
        elif isinstance(value, list):
            yield from (found for one in value if isinstance(one, dict) for found in templates(one))


def test_every_pod_is_taken_where_only_restricted_ones_are(control_plane: AnyCluster, restricted: str) -> None:
    path = f"/api/v1/namespaces/{restricted}/pods?dryRun=All"
    control_plane.request("POST", f"/api/v1/namespaces/{restricted}/serviceaccounts", {"metadata": {"name": "trainer"}})
    pods = [pod for golden in GOLDEN for pod in templates(yaml.safe_load(golden.read_text()))]
    assert len(pods) > 20
    for pod in pods:
        spec = {
            name: value for name, value in pod["spec"].items() if name not in ("priorityClassName", "runtimeClassName")
        }
        control_plane.request("POST", path, {"metadata": {"name": "pod"}, "spec": spec})
    root = [{"name": "root", "image": "busybox"}]
    with pytest.raises(ApiException, match="violates PodSecurity"):
        control_plane.request("POST", path, {"metadata": {"name": "pod"}, "spec": {"containers": root}})


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
