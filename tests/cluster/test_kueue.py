"""Objects that name a queue, and the real Kueue with its webhooks; only the nodes are a stand-in."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from eagle3_api.jobs import StageName
from operating import KUEUE, Controller, NotYetError, OperatorProcess, Site, condition
from testcluster import AnyCluster
from unit.samples import LEAST

pytestmark = pytest.mark.long  # it takes six minutes to build

Json = dict[str, Any]

API = "kueue.x-k8s.io/v1beta1"
SHARED = {"size": "1Gi", "accessMode": "ReadWriteMany"}

#: Extracts on one GPU and trains on two pods with one each.
QUEUED: Json = LEAST | {
    "storage": {"features": SHARED, "drafts": SHARED},
    "train": {"nodes": 2, "gpus": 1},
    "queueName": "team",
}


@pytest.fixture(scope="module")
def operator(
    api_server: AnyCluster, jobset: Controller | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all namespaces, beside JobSet's controller and Kueue's."""
    if jobset is None:
        pytest.skip("this cluster's API server does not reach this machine")
    if os.geteuid() != 0:
        pytest.skip("Kueue's controller reads a certificate below /etc, and only root can give it an /etc of its own")
    folder = tmp_path_factory.mktemp("kueue")
    kueue = Controller(api_server, folder, "kueue", KUEUE, certificate_at="/etc/kueue/metrics/certs")
    kueue.add_kinds()
    folder = tmp_path_factory.mktemp("operator")
    with jobset.running(), kueue.running(), OperatorProcess(api_server.kubeconfig, folder, pollSeconds=1) as running:
        running.wait_until_alive()
        yield running
    print(*running.log(), sep="\n")
    kueue.remove_kinds()


@pytest.fixture
def site(operator: OperatorProcess, api_server: AnyCluster, namespace: str) -> Site:
    return Site(api_server, namespace)


def give(site: Site, gpus: int) -> None:
    """A queue for the namespace, with a quota of so many GPUs."""
    name = site.namespace
    resources = {"cpu": "100", "memory": "1Ti", "nvidia.com/gpu": str(gpus)}
    quota = {
        "coveredResources": list(resources),
        "flavors": [{"name": name, "resources": [{"name": n, "nominalQuota": q} for n, q in resources.items()]}],
    }
    made: list[Json] = [
        {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {}},
        {
            "apiVersion": API,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {"namespaceSelector": {}, "resourceGroups": [quota]},
        },
        {
            "apiVersion": API,
            "kind": "LocalQueue",
            "metadata": {"name": "team", "namespace": name},
            "spec": {"clusterQueue": name},
        },
    ]
    site.cluster.apply(*made)


def queued(site: Site, what: str) -> str:
    """What the object says of what waits in the queue."""
    ready = condition(site.object("kimi"), "Ready")
    if ready.get("reason") != "Queued" or what not in ready["message"]:
        raise NotYetError(str(ready))
    message: str = ready["message"]
    return message


def test_a_training_on_two_nodes_is_admitted_when_there_is_quota_for_both(site: Site) -> None:
    give(site, gpus=1)
    site.create("kimi", QUEUED)
    site.until("the JobSet to wait", lambda: queued(site, "JobSet kimi-train-"))  # Kueue admitted extract
    assert [pod for pod in site.all("pods") if pod["metadata"]["labels"]["eagle3.dev/stage"] == StageName.TRAIN] == []
    give(site, gpus=2)
    site.until_ready("kimi")
