"""A real API server that knows the kind."""

import pytest

from eagle3_api import API_VERSION, GROUP, PLURAL, crd
from testcluster import AnyCluster, wait_for


@pytest.fixture(scope="session")
def api_server(control_plane: AnyCluster) -> AnyCluster:
    """The control plane with the CustomResourceDefinition, which is established and served."""
    control_plane.apply(crd.definition())
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"

    def established() -> bool:
        conditions = control_plane.request("GET", path)["status"]["conditions"] or []
        return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)

    wait_for("the definition to be established", 30, established)
    wait_for("the kind to be served", 30, lambda: control_plane.request("GET", f"/apis/{API_VERSION}"))
    return control_plane
