import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testcluster import discovery, prometheus, system, volumes


@pytest.mark.parametrize("scrape_interval", ["1s", "15s"])
def test_promtool_finds_nothing_wrong_in_the_configuration(tmp_path: Path, scrape_interval: str) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(prometheus.configuration(scrape_interval))

    done = subprocess.run([system.promtool(), "check", "config", path], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def pod(name: str, annotations: dict[str, str], **status: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "llm", "annotations": annotations}
    return {"metadata": metadata, "status": {"podIP": "10.0.0.1", "phase": "Running", **status}}


def test_only_pods_that_ask_for_it_and_can_answer_are_scraped() -> None:
    asks = {"prometheus.io/scrape": "true", "prometheus.io/port": "30000"}
    pods = [
        pod("asks", asks),
        pod("says-no", {**asks, "prometheus.io/scrape": "false"}),
        pod("says-nothing", {}),
        pod("has-ended", asks, phase="Succeeded"),
        pod("has-no-address", asks, podIP=""),
        {"metadata": {"name": "is-new", "namespace": "llm"}},
    ]

    assert discovery.targets(pods) == [
        {
            "targets": ["10.0.0.1:30000"],
            "labels": {"namespace": "llm", "pod": "asks", "__metrics_path__": "/metrics"},
        }
    ]


def test_a_pod_may_name_another_path() -> None:
    asks = {"prometheus.io/scrape": "true", "prometheus.io/path": "/stats"}

    (group,) = discovery.targets([pod("asks", asks)])

    assert group["targets"] == ["10.0.0.1:80"]
    assert group["labels"]["__metrics_path__"] == "/stats"


def test_a_scrape_never_takes_longer_than_its_interval() -> None:
    times = yaml.safe_load(prometheus.configuration("2s"))["global"]

    assert times["scrape_timeout"] == times["scrape_interval"] == "2s"


def test_prometheus_may_read_pods_and_nothing_else() -> None:
    roles = [each for each in prometheus.manifests("monitoring", "1s") if each["kind"] == "ClusterRole"]

    assert [role["rules"] for role in roles] == [
        [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    ]


def test_a_local_volume_stays_on_its_node_and_a_claim_names_its_volume() -> None:
    volume = volumes.persistent_volume("features", Path("/somewhere"), "2Gi", "node-0")
    claim = volumes.claim("llm", "features", "2Gi")

    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["node-0"]
    assert claim["spec"]["volumeName"] == "features"
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == "test-local"


def test_storage_is_bound_when_a_pod_comes_and_never_provisioned() -> None:
    storage_class = volumes.storage_class()

    assert storage_class["volumeBindingMode"] == "WaitForFirstConsumer"
    assert storage_class["provisioner"] == "kubernetes.io/no-provisioner"
