import json
from socket import AddressFamily
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_operator.decision import Manifest
from eagle3_operator.manifests.claims import claim
from eagle3_operator.manifests.names import ADAPTIVE_ANNOTATION
from eagle3_operator.manifests.servers import deployment, disruption_budget, public_service, service
from eagle3_operator.metrics import Metrics
from unit.samples import DRAFT, FACTS, KIMI, SETTINGS, draft


def made(*, number: int = 1, replicas: int = 1, folder: str | None = DRAFT, **spec: Any) -> Manifest:
    return deployment(
        draft(**spec), SETTINGS, FACTS, number=number, key="k", replicas=replicas, draft=folder, record={}
    )


def container(manifest: Manifest) -> Manifest:
    only: Manifest = manifest["spec"]["template"]["spec"]["containers"][0]
    return only


def seconds_of(probe: Manifest) -> int:
    return int(probe["periodSeconds"] * probe["failureThreshold"])


@given(number=st.integers(0, 999))
def test_services_select_the_pods_of_one_revision_and_no_other(number: int) -> None:
    pods = made(number=number)["spec"]["template"]["metadata"]["labels"]
    others = made(number=number + 1)["spec"]["template"]["metadata"]["labels"]
    for selector in (
        service(draft(), number=number)["spec"]["selector"],
        public_service(draft(), revision=number)["spec"]["selector"],
        made(number=number)["spec"]["selector"]["matchLabels"],
        disruption_budget(draft(), revision=number)["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= pods.items()
        assert not selector.items() <= others.items()


def test_who_scrapes_a_server_is_its_users_to_say_and_how_it_adapts_is_not() -> None:
    asked = {"prometheus.io/port": "15020", ADAPTIVE_ANNOTATION: "{}"}
    spec: dict[str, Any] = {"placement": {"annotations": asked}, "serve": {"speculative": {"mode": "Auto"}}}
    annotations = made(**spec)["spec"]["template"]["metadata"]["annotations"]
    assert (annotations["prometheus.io/scrape"], annotations["prometheus.io/port"]) == ("true", "15020")
    assert json.loads(annotations[ADAPTIVE_ANNOTATION])


def test_servers_and_the_operator_listen_where_pods_have_addresses_of_ipv6_alone() -> None:
    """They were bound to 0.0.0.0, which nobody reaches there: no server ever became ready, and the operator was restarted."""
    settings = SETTINGS.model_copy(update={"listen": "::"})
    server = deployment(draft(), settings, FACTS, number=0, key="k", replicas=1, draft=None, record={})
    words = container(server)["command"]
    assert words[words.index("--host") + 1] == "::"
    assert urlsplit(settings.liveness).hostname == "::"
    assert urlsplit(SETTINGS.liveness).hostname == "0.0.0.0"
    answering = Metrics().serve(0, settings.listen)
    try:
        assert answering.address_family is AddressFamily.AF_INET6
    finally:
        answering.shutdown()
        answering.server_close()


def test_a_promotion_changes_the_selector_of_the_public_service_and_nothing_else() -> None:
    before, after = public_service(draft(), revision=0), public_service(draft(), revision=1)
    assert before["metadata"] == after["metadata"]
    assert after["spec"] == before["spec"] | {"selector": after["spec"]["selector"]}


def test_replicas_and_policies_never_touch_the_template() -> None:
    other: dict[str, Any] = {
        "serve": {"replicas": 7, "bakeTime": "1h", "startRetries": 9},
        "probe": {"minSpeedup": 2.0},
    }
    assert made(replicas=7, **other)["spec"]["template"] == made()["spec"]["template"]


def test_the_plain_revision_starts_without_the_drafts() -> None:
    plain = made(folder=None)["spec"]["template"]["spec"]
    assert "drafts" not in str(plain["volumes"])
    assert "/eagle3/drafts" not in str(plain["containers"])


def test_no_server_sees_the_features() -> None:
    assert "/eagle3/features" not in str(made())


def test_a_server_cannot_write_to_the_drafts() -> None:
    mount = next(m for m in container(made())["volumeMounts"] if m["mountPath"] == "/eagle3/drafts")
    assert mount["readOnly"] is True


@pytest.mark.parametrize(
    ("facts", "serve", "least"),
    [(FACTS, {}, 600), (KIMI, {}, 600 + 595_000_000_000 // 500_000_000), (FACTS, {"startTimeout": "2h"}, 7200)],
)
def test_a_slow_start_is_not_called_failed(facts: Any, serve: dict[str, Any], least: int) -> None:
    manifest = deployment(draft(serve=serve), SETTINGS, facts, number=0, key="k", replicas=1, draft=None, record={})
    budget = seconds_of(container(manifest)["startupProbe"])
    assert least <= budget <= least + 60
    assert manifest["spec"]["progressDeadlineSeconds"] > budget


def test_the_watchdog_of_sglang_speaks_before_liveness_does() -> None:
    assert seconds_of(container(made())["livenessProbe"]) > 1.5 * 300
    patient = made(serve={"arguments": ["--watchdog-timeout", "3600"]})
    assert seconds_of(container(patient)["livenessProbe"]) > 1.5 * 3600
    assert (
        container(made(serve={"arguments": ["--watchdog-timeout", "long"]}))["livenessProbe"]["failureThreshold"] == 20
    )


def test_health_may_take_as_long_as_sglang_gives_itself() -> None:
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container(made())[probe]["timeoutSeconds"] > 20


@pytest.mark.parametrize(("grace", "drains"), [(1, False), (5, False), (6, True), (None, True)])
def test_a_server_drains_where_its_grace_period_is_long_enough(grace: int | None, drains: bool) -> None:
    placement = {} if grace is None else {"terminationGracePeriodSeconds": grace}
    assert ("lifecycle" in container(made(placement=placement))) is drains


@pytest.mark.parametrize(
    ("target", "serve", "gpus"),
    [
        ({"model": "/m"}, {}, "1"),
        ({"model": "/m", "tensorParallelSize": 8}, {}, "8"),
        ({"model": "/m", "tensorParallelSize": 4}, {"gpus": 8}, "8"),
        ({"model": "/m"}, {"gpus": 0}, None),
    ],
)
def test_a_server_asks_for_as_many_gpus_as_it_spreads_over(
    target: dict[str, Any], serve: dict[str, Any], gpus: str | None
) -> None:
    resources = container(made(target=target, serve=serve))["resources"]
    assert resources.get("limits", {}).get("nvidia.com/gpu") == gpus


def test_a_claim_of_the_user_is_never_made() -> None:
    with pytest.raises(ValueError, match="the user's claim features"):
        claim(draft(), "features")
