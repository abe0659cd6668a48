"""Fixtures for tests against a real API server, and with real pods: `pytest_plugins = ["testcluster.pytest_plugin"]`.

Each pytest process (with pytest-xdist, each worker) has clusters of its own, so that tests which change what there is
one of in a cluster do not meet. They start with the first test that asks for them.
"""

from collections.abc import Iterator, Mapping

import pytest

from testcluster import build
from testcluster.any_cluster import AnyCluster
from testcluster.cluster import prepare
from testcluster.provide import choice, provided
from testcluster.volumes import DEFAULT_VOLUMES, Volume

GPUS = 2


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what the tests will need before the first one begins: it may take longer than a test may."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    node = "node_cluster" in used
    if not node and "control_plane" not in used:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            if choice(node=node) == "embedded":
                prepare(node=node)
                if node:
                    build.binary("helm")
    except RuntimeError as error:
        pytest.exit(f"no cluster for the tests: {error}", returncode=pytest.ExitCode.INTERNAL_ERROR)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[AnyCluster]:
    """A cluster whose pods stay Pending: it has no node. Needs no root."""
    with provided(node=False) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def node_cluster_gpus() -> int:
    """How many nvidia.com/gpu the node of `node_cluster` advertises; a conftest may override it."""
    return GPUS


@pytest.fixture(scope="session")
def node_cluster_share() -> list[str]:
    """Which paths of this machine the pods of `node_cluster` see beside /usr; a conftest may override it."""
    return []


@pytest.fixture(scope="session")
def node_cluster_volumes() -> Mapping[str, Volume]:
    """The volumes of `node_cluster`; a conftest may override them."""
    return DEFAULT_VOLUMES


@pytest.fixture(scope="session")
def node_cluster(
    node_cluster_gpus: int, node_cluster_share: list[str], node_cluster_volumes: Mapping[str, Volume]
) -> Iterator[AnyCluster]:
    """A cluster with a node, on which pods really run."""
    with provided(node=True, gpus=node_cluster_gpus, share=node_cluster_share, volumes=node_cluster_volumes) as cluster:
        yield cluster


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace in `node_cluster` if the test uses that, else in `control_plane`; its end is not waited for."""
    name = "node_cluster" if "node_cluster" in request.fixturenames else "control_plane"
    cluster: AnyCluster = request.getfixturevalue(name)
    fresh = cluster.create_namespace(request.node.name)
    yield fresh
    cluster.delete_namespace(fresh)
