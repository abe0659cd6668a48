"""The operator with the rights that the chart gives it, and no others."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from operating import OperatorProcess, Site
from testcluster import AnyCluster
from testcluster.build import binary
from unit.samples import SPEC, merged

CHART = Path(__file__).parents[2] / "helm" / "eagle3-operator"


@pytest.fixture
def site(api_server: AnyCluster, namespace: str) -> Site:
    binary("helm")
    return Site(api_server, namespace)


def kubeconfig_of_the_chart(site: Site, folder: Path, *values: str) -> Path:
    """A kubeconfig with a token of the chart's service account, bound to the chart's rules."""
    set_values = [word for value in values for word in ("--set", value)]
    shown = [word for name in ("serviceaccount", "rbac") for word in ("--show-only", f"templates/{name}.yaml")]
    rendered = site.cluster.helm(
        "template",
        site.namespace,
        str(CHART),
        "--kube-version",
        "1.34.0",
        "--namespace",
        site.namespace,
        *set_values,
        *shown,
    )
    manifests: list[dict[str, Any]] = [one for one in yaml.safe_load_all(rendered) if one]
    site.cluster.apply(*manifests)
    (account,) = (one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount")
    path = f"/api/v1/namespaces/{site.namespace}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = site.cluster.request("POST", path, request)["status"]["token"]
    made = yaml.safe_load(site.cluster.kubeconfig.read_text())
    context = next(one["context"] for one in made["contexts"] if one["name"] == made["current-context"])
    made["users"] = [{"name": context["user"], "user": {"token": token}}]
    file = folder / "kubeconfig"
    file.write_text(json.dumps(made))
    return file


@pytest.mark.parametrize("everywhere", [True, False], ids=["all namespaces", "one namespace"])
def test_with_the_charts_rights_it_does_all_its_work(site: Site, tmp_path: Path, everywhere: bool) -> None:
    values = [] if everywhere else [f"watchNamespace={site.namespace}"]
    kubeconfig = kubeconfig_of_the_chart(site, tmp_path, *values)
    claims = {"storage": {"features": {"claim": None, "size": "1Ti"}, "drafts": {"claim": None, "size": "1Gi"}}}
    namespace = None if everywhere else site.namespace
    with OperatorProcess(kubeconfig, tmp_path, namespace=namespace, pollSeconds=1, resyncSeconds=2) as operator:
        site.create("kimi", merged(merged(SPEC, {"watch": None}), claims))
        site.until_ready("kimi")
        site.until("its events", lambda: site.events("kimi"))
        refused = [line for line in operator.log() if line["level"] in ("warning", "error")]
        assert [line for line in refused if line.get("namespace", site.namespace) == site.namespace] == []
