"""The operator's process: stopped, killed and started again, it reaches the same end and writes nothing for its own sake."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from eagle3_api import PLURAL
from eagle3_api.jobs import StageName
from operating import OperatorProcess, Site
from testcluster import AnyCluster, wait_for
from unit.samples import SPEC, merged

Json = dict[str, Any]

SERVING = merged(SPEC, {"watch": None})

SETTLED = 'reconciles_total{result="settled"}'
WRITTEN = 'reconciles_total{result="written"}'


@pytest.fixture
def site(api_server: AnyCluster, namespace: str) -> Site:
    return Site(api_server, namespace)


@pytest.fixture
def operator(site: Site, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator for this test's namespace."""
    with OperatorProcess(site.cluster.kubeconfig, tmp_path, namespace=site.namespace, pollSeconds=1) as running:
        yield running
    print(*running.log(), sep="\n")


def test_a_settled_object_causes_no_write_however_often_it_is_looked_at(site: Site, operator: OperatorProcess) -> None:
    site.create("kimi", SERVING)
    site.until_ready("kimi")
    before = settled(site, operator)
    for word in ("one", "two", "three"):
        looked = operator.metric(SETTLED)
        site.poke("kimi", word)
        wait_for("another look", 30, lambda seen=looked: operator.metric(SETTLED) > seen)  # type: ignore[misc]
    operator.kill()
    operator.start()
    wait_for("a look after a restart", 60, lambda: operator.metric(SETTLED) >= 1)
    assert versions(site) == before
    assert operator.metric(WRITTEN) == 0


def settled(site: Site, operator: OperatorProcess) -> Json:
    """The versions of the object and of what it made, once they do not change any more."""
    seen: Json = {}

    def unchanged() -> bool:
        nonlocal seen
        before, seen = seen, versions(site)
        return before == seen and operator.metric("queue_length") == 0

    wait_for("the object to settle", 60, unchanged)
    return seen


def versions(site: Site) -> Json:
    made = [*site.all(PLURAL), *site.all("deployments"), *site.all("services"), *site.events("kimi")]
    return {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in made}


def test_killed_at_every_stage_the_operator_reaches_the_same_end(site: Site, operator: OperatorProcess) -> None:
    site.create("calm", SERVING)
    calm = site.until_ready("calm")
    site.delete(PLURAL, "calm")
    site.create("kimi", SERVING)
    made = {stage["name"] for stage in calm["status"]["stages"]} | {StageName.PROBE}
    for stage in [stage for stage in StageName if stage in made]:
        site.until(f"a Job of {stage}", lambda of=stage: site.jobs("kimi", of), seconds=120, hold=(stage,))  # type: ignore[misc]
        operator.kill()
        operator.start()
    kimi = site.until_ready("kimi")
    assert outcome(kimi) == outcome(calm)
    assert site.kubelet.ran_twice() == []


def outcome(obj: Json) -> Json:
    status = obj["status"]
    return {
        "phase": status["phase"],
        "conditions": {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]},
        "stages": [(stage["name"], stage["state"]) for stage in status["stages"]],
        "revisions": [(one["number"], one["key"], one["state"]) for one in status["revisions"]],
        "serving": status["servingRevision"],
    }


def test_sigterm_ends_it_within_seconds_and_without_an_error(site: Site, operator: OperatorProcess) -> None:
    site.create("kimi", SERVING)
    wait_for("the first status", 30, lambda: site.object("kimi").get("status"))
    assert operator.stop(within=10) == 0
    assert [line for line in operator.log() if line["level"] in ("warning", "error")] == []


def test_it_answers_its_probe_with_the_seconds_it_is_behind(operator: OperatorProcess) -> None:
    operator.wait_until_alive()
    assert httpx.get(operator.liveness).json() == {"overdue": 0.0}
    operator.kill()
    with pytest.raises(httpx.ConnectError):
        httpx.get(operator.liveness)
