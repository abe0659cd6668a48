"""The test cluster itself, with its node: what other end-to-end tests take for granted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testcluster import AnyCluster, Cluster, prometheus, wait_for
from testcluster.prometheus import Prometheus

IMAGE = "kit.local/testcluster-python:1"
NONROOT = 65532


@pytest.fixture(scope="module")
def image(node_cluster: AnyCluster) -> str:
    node_cluster.image(IMAGE, entrypoint=["/usr/bin/python3", "-c"], env={"COLOR": "green"}, path=["/opt/env/bin"])
    return IMAGE


@pytest.fixture(scope="module")
def monitoring(node_cluster: AnyCluster) -> Iterator[Prometheus]:
    namespace = node_cluster.create_namespace("monitoring")
    yield prometheus.deploy(node_cluster, namespace)
    node_cluster.delete_namespace(namespace)


def pod(namespace: str, name: str, program: str, *, gpus: int = 0, claim: str | None = None) -> dict[str, Any]:
    """A pod of the ordinary, unprivileged kind that runs a Python program."""
    container = {
        "name": "main",
        "image": IMAGE,
        "args": [program],
        "resources": {"limits": {"nvidia.com/gpu": gpus}} if gpus else {},
        "volumeMounts": [{"name": "volume", "mountPath": "/volume"}] if claim else [],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsUser": NONROOT, "runAsGroup": NONROOT, "fsGroup": NONROOT, "runAsNonRoot": True},
            "containers": [container],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}] if claim else [],
        },
    }


def status(cluster: AnyCluster, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
    return found


def output(cluster: AnyCluster, namespace: str, name: str) -> str:
    """What a pod printed, once it has ended."""
    wait_for(f"pod {name} to end", 60, lambda: status(cluster, namespace, name)["phase"] in ("Succeeded", "Failed"))
    return cluster.kubectl("logs", "--namespace", namespace, name)


def test_a_container_has_the_environment_and_the_user_that_its_image_names(
    node_cluster: AnyCluster, namespace: str, image: str
) -> None:
    program = "import os; print(os.environ['COLOR'], os.environ['PATH'].split(':')[0], os.environ['HOME'], os.getuid())"
    node_cluster.apply(pod(namespace, "tells", program))

    assert output(node_cluster, namespace, "tells") == f"green /opt/env/bin /tmp {NONROOT}\n"


def test_a_pod_resolves_a_service_and_reaches_the_api_server(
    node_cluster: AnyCluster, namespace: str, image: str
) -> None:
    program = "import socket; socket.create_connection(('kubernetes.default', 443), 5); print('connected')"
    node_cluster.apply(pod(namespace, "connects", program))

    assert output(node_cluster, namespace, "connects") == "connected\n"


def test_a_pod_waits_while_another_has_all_the_gpus(
    node_cluster: AnyCluster, node_cluster_gpus: int, namespace: str, image: str
) -> None:
    node_cluster.apply(pod(namespace, "first", "import time; time.sleep(600)", gpus=node_cluster_gpus))
    wait_for("the first pod to run", 60, lambda: status(node_cluster, namespace, "first")["phase"] == "Running")

    node_cluster.apply(pod(namespace, "second", "print('my turn')", gpus=node_cluster_gpus))

    def refusal() -> str:
        conditions = status(node_cluster, namespace, "second").get("conditions", [])
        return next((each["message"] for each in conditions if each.get("reason") == "Unschedulable"), "")

    assert "Insufficient nvidia.com/gpu" in wait_for("the scheduler to refuse the second", 30, refusal)
    node_cluster.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/first")
    assert output(node_cluster, namespace, "second") == "my turn\n"


def test_a_local_volume_is_writable_for_the_group_of_the_pod_and_keeps_what_was_written(
    node_cluster: AnyCluster, namespace: str, image: str
) -> None:
    node_cluster.claim(namespace, "features")
    write = "from pathlib import Path; p = Path('/volume/x'); p.write_text('kept'); print(p.stat().st_gid)"
    node_cluster.apply(pod(namespace, "writes", write, claim="features"))
    assert output(node_cluster, namespace, "writes") == f"{NONROOT}\n"

    later = node_cluster.create_namespace("later")
    for former in ("pods/writes", "persistentvolumeclaims/features"):
        node_cluster.request("DELETE", f"/api/v1/namespaces/{namespace}/{former}")
    node_cluster.claim(later, "features")
    node_cluster.apply(pod(later, "reads", "print(open('/volume/x').read())", claim="features"))

    assert output(node_cluster, later, "reads") == "kept\n"
    node_cluster.delete_namespace(later)


def test_a_further_volume_is_a_folder_that_the_test_can_look_into(
    node_cluster: AnyCluster, namespace: str, image: str
) -> None:
    folder = node_cluster.add_volume(namespace, "1Mi")
    node_cluster.claim(namespace, namespace, name="scratch")
    node_cluster.apply(pod(namespace, "writes", "open('/volume/x', 'w').write('seen')", claim="scratch"))
    output(node_cluster, namespace, "writes")

    assert (folder / "x").read_text() == "seen"


def test_prometheus_scrapes_the_pods_that_ask_for_it(monitoring: Prometheus) -> None:
    (up,) = wait_for("Prometheus to scrape itself", 30, lambda: monitoring.query('up{job="pods"} == 1'))

    assert up["metric"]["namespace"] == monitoring.namespace
    assert up["metric"]["pod"].startswith("prometheus-")


def test_a_cluster_that_is_down_has_left_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = tmp_path_factory.mktemp("models")
    models.chmod(0o755)  # a container sees a shared path as it is
    (models / "config.json").write_text("{}")
    cluster = Cluster(tmp_path_factory.mktemp("tc"), tied=True)
    try:
        cluster.up(node=True, share=[models])
        cluster.image(IMAGE, entrypoint=["/usr/bin/python3", "-c"])
        namespace = cluster.create_namespace()
        cluster.claim(namespace, "drafts")
        program = f"import os, time; print(os.listdir({str(models)!r}), flush=True); time.sleep(600)"
        cluster.apply(pod(namespace, "runs", program, claim="drafts"))
        logs = ("logs", "--namespace", namespace, "runs")
        line = wait_for("the pod's line", 60, lambda: cluster.kubectl(*logs), tolerate=(RuntimeError,))
        assert line == "['config.json']\n"
        assert any(trace.startswith("link") for trace in cluster.traces())
    finally:
        cluster.down()

    assert cluster.traces() == []
    assert not routes(cluster)
    assert (models / "config.json").exists()


def routes(cluster: Cluster) -> list[str]:
    return [line for line in Path("/proc/net/route").read_text().splitlines() if line.startswith(cluster.layout.link)]
