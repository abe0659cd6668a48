"""The operator with the rights that the chart gives it, and no others."""

from pathlib import Path

import pytest

from operating import OperatorProcess, Site, kubeconfig_of_the_chart
from testcluster import AnyCluster
from testcluster.build import binary
from unit.samples import SPEC, merged


@pytest.fixture
def site(api_server: AnyCluster, namespace: str) -> Site:
    binary("helm")
    return Site(api_server, namespace)


@pytest.mark.parametrize("everywhere", [True, False], ids=["all namespaces", "one namespace"])
def test_with_the_charts_rights_it_does_all_its_work(site: Site, tmp_path: Path, everywhere: bool) -> None:
    values = [] if everywhere else [f"watchNamespace={site.namespace}"]
    kubeconfig = kubeconfig_of_the_chart(site.cluster, site.namespace, tmp_path, *values)
    claims = {"storage": {"features": {"claim": None, "size": "1Ti"}, "drafts": {"claim": None, "size": "1Gi"}}}
    namespace = None if everywhere else site.namespace
    with OperatorProcess(kubeconfig, tmp_path, namespace=namespace, pollSeconds=1, resyncSeconds=2) as operator:
        site.create("kimi", merged(merged(SPEC, {"watch": None}), claims))
        site.until_ready("kimi")
        site.until("its events", lambda: site.events("kimi"))
        site.until("the features' claim to go", lambda: claims_of(site) == {"kimi-drafts"})
        refused = [line for line in operator.log() if line["level"] in ("warning", "error")]
        assert [line for line in refused if line.get("namespace", site.namespace) == site.namespace] == []


def claims_of(site: Site) -> set[str]:
    """The claims that were made for the object, those that are going included."""
    found = {claim["metadata"]["name"] for claim in site.all("persistentvolumeclaims")}
    return {name for name in found if name.startswith("kimi-")}
