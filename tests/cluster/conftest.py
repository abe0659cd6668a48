"""A real API server that knows the kind."""

from pathlib import Path

import pytest

from eagle3_api import API_VERSION, GROUP, PLURAL
from operating import JOBSET, Controller
from testcluster import AnyCluster, wait_for
from testcluster.provide import choice

DEFINITION = Path(__file__).parents[2] / "helm/eagle3-operator/files/crd.yaml"


@pytest.fixture(scope="session")
def jobset(control_plane: AnyCluster, tmp_path_factory: pytest.TempPathFactory) -> Controller | None:
    """JobSet, whose kind the cluster serves; None where its controller could not be reached by the API server."""
    if choice(node=False) != "embedded":
        return None
    controller = Controller(control_plane, tmp_path_factory.mktemp("jobset"), "jobset", JOBSET)
    controller.add_kinds()
    return controller


@pytest.fixture(scope="session")
def api_server(control_plane: AnyCluster, jobset: Controller | None) -> AnyCluster:
    """The control plane with the CustomResourceDefinition, applied as a person or Argo CD would; it is established and served.

    JobSet's is there from the beginning: the garbage collector learns of a kind half a minute late.
    """
    control_plane.kubectl("apply", "-f", str(DEFINITION))
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"

    def established() -> bool:
        conditions = control_plane.request("GET", path)["status"]["conditions"] or []
        return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)

    wait_for("the definition to be established", 30, established)
    wait_for("the kind to be served", 30, lambda: control_plane.request("GET", f"/apis/{API_VERSION}"))
    return control_plane
