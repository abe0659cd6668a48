"""A real API server that knows the kind."""

from pathlib import Path

import pytest

from eagle3_api import API_VERSION, GROUP, PLURAL
from testcluster import AnyCluster, wait_for

DEFINITION = Path(__file__).parents[2] / "helm/eagle3-operator/files/crd.yaml"


@pytest.fixture(scope="session")
def api_server(control_plane: AnyCluster) -> AnyCluster:
    """The control plane with the CustomResourceDefinition, applied as a person or Argo CD would; it is established and served."""
    control_plane.kubectl("apply", "-f", str(DEFINITION))
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"

    def established() -> bool:
        conditions = control_plane.request("GET", path)["status"]["conditions"] or []
        return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)

    wait_for("the definition to be established", 30, established)
    wait_for("the kind to be served", 30, lambda: control_plane.request("GET", f"/apis/{API_VERSION}"))
    return control_plane
