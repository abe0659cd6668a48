"""Tests write only to clusters that say they are for tests.

The marker is a ConfigMap, which no cluster has by chance. To let the tests use a cluster of your own:

    kubectl create configmap -n kube-system eagle3-test-cluster --from-literal=purpose=tests
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testcluster.api import Api, ApiException

NAMESPACE, NAME, KEY, PURPOSE = "kube-system", "eagle3-test-cluster", "purpose", "tests"
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"


class NotATestClusterError(RuntimeError):
    """The cluster does not carry the marker."""


def marker() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {KEY: PURPOSE},
    }


def refusal(config_map: Mapping[str, Any] | None) -> str | None:
    """Why a cluster with this ConfigMap (None: it has none) is not for tests, or None if it is."""
    if config_map is None:
        return f"it has no ConfigMap {NAMESPACE}/{NAME}"
    purpose = (config_map.get("data") or {}).get(KEY)
    if purpose != PURPOSE:
        return f"its ConfigMap {NAMESPACE}/{NAME} says {KEY} {purpose!r}, not {PURPOSE!r}"
    return None


def require_test_cluster(kubeconfig: str | Path) -> None:
    """Raises NotATestClusterError unless the cluster that the kubeconfig's current context names carries the marker."""
    api = Api(Path(kubeconfig))
    config_map: Mapping[str, Any] | None
    try:
        config_map = api.request("GET", PATH)
    except ApiException as error:
        if error.status != 404:
            raise NotATestClusterError(
                f"{api.server} ({kubeconfig}) does not show its marker: {error.reason}"
            ) from error
        config_map = None
    if why := refusal(config_map):
        raise NotATestClusterError(
            f"{api.server} ({kubeconfig}) is not a cluster for tests: {why}. If anything in it may be written and "
            f"deleted: kubectl create configmap -n {NAMESPACE} {NAME} --from-literal={KEY}={PURPOSE}"
        )
