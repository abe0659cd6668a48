"""The test cluster itself, as far as its control plane goes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from operating.site import NOWHERE
from testcluster import AnyCluster, Cluster, NotATestClusterError, guard, require_test_cluster, wait_for
from testcluster.build import MODULES
from testcluster.cluster import end_abandoned


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tc")
    yield folder
    Cluster(folder).down()


def test_the_api_server_makes_a_namespace_and_its_service_account(control_plane: AnyCluster, namespace: str) -> None:
    accounts = control_plane.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts")["items"]

    assert [account["metadata"]["name"] for account in accounts] == ["default"]


def test_a_pod_stays_pending_without_a_node_for_it(control_plane: AnyCluster, namespace: str) -> None:
    nowhere = json.dumps({"spec": {"nodeSelector": NOWHERE}})
    control_plane.kubectl("run", "waits", "--namespace", namespace, "--image=kit.local/none:1", "--overrides", nowhere)

    def unschedulable() -> bool:
        pod = control_plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/waits")
        conditions = pod["status"].get("conditions", [])
        return any(condition.get("reason") == "Unschedulable" for condition in conditions)

    wait_for("the scheduler to say that no node is there", 30, unschedulable)


def test_applying_the_same_object_twice_changes_nothing(control_plane: AnyCluster, namespace: str) -> None:
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": namespace},
        "data": {"color": "green"},
    }
    path = f"/api/v1/namespaces/{namespace}/configmaps/settings"

    control_plane.apply(settings)
    first = control_plane.request("GET", path)
    control_plane.apply(settings)

    assert first["data"] == {"color": "green"}
    assert control_plane.request("GET", path)["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_a_cluster_without_its_marker_is_refused(control_plane: AnyCluster) -> None:
    require_test_cluster(control_plane.kubeconfig)

    control_plane.request("DELETE", guard.PATH)
    try:
        with pytest.raises(NotATestClusterError, match=r"is not a cluster for tests: it has no ConfigMap kube-system/"):
            require_test_cluster(control_plane.kubeconfig)
    finally:
        control_plane.apply(guard.marker())


def test_a_cluster_whose_run_was_killed_is_ended_by_the_next_down(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(MODULES.parents[1])}
    command = [sys.executable, "-m", "testcluster", "up", "--folder", str(folder)]
    run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cluster = Cluster(folder)
    with run:
        try:
            wait_for("the API server's process", 30, lambda: (folder / "logs" / "kube-apiserver.log").exists())
        finally:
            run.kill()
    assert any("process" in trace for trace in cluster.traces())

    cluster.down()

    assert cluster.traces() == []


def test_a_test_run_that_was_killed_is_cleaned_up_after_by_the_next() -> None:
    program = """
import time
from testcluster.provide import provided
with provided(node=False) as cluster:
    print(cluster.layout.folder, flush=True)
    time.sleep(3600)
"""
    environment = {**os.environ, "PYTHONPATH": str(MODULES.parents[1]), "EAGLE3_TEST_KUBECONFIG": ""}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout
            cluster = Cluster(Path(run.stdout.readline().strip()))
        finally:
            run.kill()
    wait_for("the processes to end with the run", 10, lambda: not any("process" in each for each in cluster.traces()))
    assert cluster.traces() == [f"folder {cluster.layout.folder}"]

    end_abandoned([cluster.layout.folder])

    assert cluster.traces() == []


def test_a_folder_that_is_no_clusters_is_never_removed(folder: Path) -> None:
    (folder / "thesis.txt").write_text("years of work")

    with pytest.raises(RuntimeError, match="is not empty and not a cluster's: nothing in it is touched"):
        Cluster(folder).up()

    assert (folder / "thesis.txt").read_text() == "years of work"
    (folder / "thesis.txt").unlink()
