"""Which cluster a test run gets.

EAGLE3_TEST_KUBECONFIG  a cluster that is there, if it carries the marker of `guard`
EAGLE3_TEST_CLUSTER     `embedded` or `kind`; otherwise embedded, but kind where a node is wanted without root
EAGLE3_TEST_LOGS        a folder that keeps the logs of embedded clusters when they end
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from testcluster.any_cluster import AnyCluster, ExternalCluster
from testcluster.cluster import Cluster, end_abandoned
from testcluster.kind import KindCluster, engine_works
from testcluster.volumes import DEFAULT_VOLUMES, Volume

# Not below the caller's temporary folder, whose path may be too long for a socket.
PLACE, PREFIX = Path("/tmp"), "eagle3-testcluster-run-"

Choice = Literal["external", "kind", "embedded"]


def choose(environment: Mapping[str, str], *, node: bool, is_root: bool, docker: bool) -> Choice:
    """The kind of cluster; raises RuntimeError with what to do where there can be none."""
    if environment.get("EAGLE3_TEST_KUBECONFIG"):
        return "external"
    wanted = environment.get("EAGLE3_TEST_CLUSTER", "")
    if wanted not in ("", "embedded", "kind"):
        raise RuntimeError(f"EAGLE3_TEST_CLUSTER is {wanted!r}: embedded and kind are possible")
    if wanted == "kind" or (not wanted and node and not is_root and docker):
        if not docker:
            raise RuntimeError("EAGLE3_TEST_CLUSTER is kind, and no docker engine answers `docker info`")
        return "kind"
    if node and not is_root:
        raise RuntimeError(
            "tests with pods need root for a node of their own, or a docker engine for kind, or a cluster for tests "
            "named by EAGLE3_TEST_KUBECONFIG"
        )
    return "embedded"


def choice(*, node: bool) -> Choice:
    """`choose` for this process on this machine."""
    return choose(os.environ, node=node, is_root=os.geteuid() == 0, docker=engine_works())


@contextlib.contextmanager
def provided(
    *,
    node: bool,
    gpus: int = 0,
    share: Sequence[str | Path] = (),
    volumes: Mapping[str, Volume] = DEFAULT_VOLUMES,
) -> Iterator[AnyCluster]:
    """A cluster that is ready, as the environment asks for it. What was started here ends with the context."""
    kind_of_cluster = choice(node=node)
    if kind_of_cluster == "external":
        yield ExternalCluster(os.environ["EAGLE3_TEST_KUBECONFIG"])
        return
    end_abandoned(PLACE.glob(f"{PREFIX}*"))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
    if kind_of_cluster == "kind":
        with KindCluster(folder / "kind", slot=os.getpid()) as kind:
            kind.up(gpus=gpus, share=share, volumes=volumes)
            yield kind
        folder.rmdir()
        return
    with Cluster(folder, tied=True) as cluster:
        try:
            cluster.up(node=node, gpus=gpus, share=share, volumes=volumes)
            yield cluster
        finally:
            logs = os.environ.get("EAGLE3_TEST_LOGS")
            if logs and cluster.layout.logs.exists():
                shutil.copytree(cluster.layout.logs, Path(logs, folder.name), dirs_exist_ok=True)
