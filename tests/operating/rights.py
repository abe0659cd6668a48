"""The rights that the chart gives to the operator."""

import json
from pathlib import Path
from typing import Any

import yaml

from testcluster import AnyCluster

CHART = Path(__file__).parents[2] / "helm" / "eagle3-operator"


def kubeconfig_of_the_chart(cluster: AnyCluster, namespace: str, folder: Path, *values: str) -> Path:
    """A kubeconfig with a token of the chart's service account, bound to the chart's rules."""
    set_values = [word for value in values for word in ("--set", value)]
    shown = [word for name in ("serviceaccount", "rbac") for word in ("--show-only", f"templates/{name}.yaml")]
    rendered = cluster.helm(
        "template",
        namespace,
        str(CHART),
        "--kube-version",
        "1.34.0",
        "--namespace",
        namespace,
        *set_values,
        *shown,
    )
    manifests: list[dict[str, Any]] = [one for one in yaml.safe_load_all(rendered) if one]
    cluster.apply(*manifests)
    (account,) = (one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount")
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.request("POST", path, request)["status"]["token"]
    made = yaml.safe_load(cluster.kubeconfig.read_text())
    context = next(one["context"] for one in made["contexts"] if one["name"] == made["current-context"])
    made["users"] = [{"name": context["user"], "user": {"token": token}}]
    file = folder / "kubeconfig"
    file.write_text(json.dumps(made))
    return file
