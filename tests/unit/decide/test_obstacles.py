"""What keeps an object's stages from being started: claims, names, service accounts."""

import json
from dataclasses import replace
from typing import Any

import pytest

from eagle3_api.conditions import Reason
from eagle3_operator.observation import Claim, Service
from unit.decide.world import World, serving_draft, trained
from unit.samples import MODELS, SETTINGS


def test_without_the_claim_nothing_is_started_and_the_claim_is_named() -> None:
    world = World()
    world.seen = replace(world.seen, claims={"drafts": Claim("drafts", 1)})
    world.settle()
    assert world.created == []
    assert world.reason() == ("False", Reason.STORAGE_UNAVAILABLE)
    assert "'features'" in world.condition("Accepted").message
    assert world.last is not None
    assert world.last.requeue_after == 30.0
    world.seen = replace(world.seen, claims={**world.seen.claims, "features": Claim("features", 1)})
    world.settle()
    assert world.job("inspect")


@pytest.mark.parametrize("root", ["features", "drafts"])
def test_on_a_claim_of_the_users_that_is_being_deleted_nothing_is_started(root: str) -> None:
    world = World()
    going = replace(world.seen.claims[root], terminating=True)
    world.seen = replace(world.seen, claims={**world.seen.claims, root: going})
    world.settle()
    assert world.created == []
    assert world.reason() == ("False", Reason.STORAGE_UNAVAILABLE)
    assert f"storage.{root}: PersistentVolumeClaim '{root}' is being deleted" in world.condition("Accepted").message


def test_a_claim_that_somebody_else_made_is_not_taken_for_ours() -> None:
    world = World().edit(storage={"features": {"claim": None, "size": "1Ti"}})
    theirs = Claim("kimi-features", 10**13, owned=None)
    world.seen = replace(world.seen, claims={**world.seen.claims, theirs.name: theirs})
    world.settle()
    assert world.created == []
    assert world.reason("Accepted") == ("False", Reason.NAME_CONFLICT)
    assert "storage.features: claim 'kimi-features' exists" in world.condition("Accepted").message
    world.seen = replace(world.seen, claims={**world.seen.claims, theirs.name: replace(theirs, owned=True)})
    world.edit(deletionPolicy="Delete").settle()
    assert world.job("inspect")


def test_a_prometheus_that_nobody_has_is_told_before_anything_is_started_and_stops_nothing_later() -> None:
    nameless = SETTINGS.model_copy(update={"prometheus": {}})
    world = World(settings=nameless).settle()
    assert world.created == []
    assert world.reason() == world.reason("Accepted") == ("False", Reason.INVALID_CONFIGURATION)
    assert "no Prometheus 'default' (prometheus.servers: none)" in world.condition("Accepted").message
    world.edit(watch={"prometheus": None}).settle()
    assert world.job("inspect")
    begun = World().settle().finish("inspect")
    begun.settings = nameless
    begun.settle()
    assert begun.reason("Accepted") == ("True", Reason.ACCEPTED)


def test_nothing_is_trained_where_the_name_of_the_service_is_somebody_elses() -> None:
    world = World()
    world.seen = replace(world.seen, services={"kimi": Service("kimi", owned=False)})
    world.settle()
    assert world.created == []
    assert world.reason() == world.reason("Accepted") == ("False", Reason.NAME_CONFLICT)
    assert world.condition("Accepted").message.startswith("Service kimi exists and does not belong to this object")
    assert world.last is not None
    assert world.last.requeue_after == 30.0
    world.seen = replace(world.seen, services={})
    assert world.settle().job("inspect")


def test_who_only_trains_needs_no_name_for_a_service() -> None:
    world = World().edit(serve=None, watch=None)
    world.seen = replace(world.seen, services={"kimi": Service("kimi", owned=False)})
    assert world.settle().job("inspect")


def test_several_nodes_do_not_train_on_a_claim_that_one_of_them_keeps_for_itself() -> None:
    world = World().edit(train={"nodes": 2})
    shared = Claim("drafts", 1, access_modes=("ReadWriteMany",))
    alone = Claim("features", 1, access_modes=("ReadWriteOnce",))
    world.seen = replace(world.seen, claims={"drafts": shared, "features": alone})
    world.settle()
    assert world.created == []
    assert world.reason() == ("False", Reason.STORAGE_NOT_SHARED)
    assert 'storage.features: claim "features" is ReadWriteOnce' in world.condition("Accepted").message
    world.seen = replace(world.seen, claims={"drafts": shared, "features": replace(shared, name="features")})
    world.settle().finish("inspect").finish("extract")
    assert world.job("train")


@pytest.mark.parametrize("section", ["", "train", "serve"])
def test_a_service_account_that_the_chart_does_not_allow_is_refused_by_its_path(section: str) -> None:
    placement = {"placement": {"serviceAccountName": "admin"}}
    world = serving_draft().edit(**({section: placement} if section else placement))
    created, replicas = list(world.created), world.replicas
    world.settle()
    assert world.reason("Accepted") == ("False", Reason.INVALID_CONFIGURATION)
    path = f"{section}.placement" if section else "placement"
    assert f"{path}.serviceAccountName: 'admin' is not allowed" in world.condition("Accepted").message
    assert world.reason("Stalled")[0] == "True"
    assert (world.created, world.replicas, world.serving) == (created, replicas, 1)


def test_a_service_account_that_the_chart_allows_is_the_pods() -> None:
    world = World(settings=SETTINGS.model_copy(update={"allowed_service_accounts": ["trainer"]}))
    world.edit(train={"placement": {"serviceAccountName": "trainer"}})
    assert trained(world).reason("DraftTrained")[0] == "True"


# ---------------------------------------------------------------------------------------------------------- one node

MODES = {
    "one node": (("ReadWriteOnce",), True),
    "one node, or many that only read": (("ReadWriteOnce", "ReadOnlyMany"), True),
    "every node": (("ReadWriteOnce", "ReadWriteMany"), False),
    "many that only read": (("ReadOnlyMany",), False),
    "not known": ((), False),
}


@pytest.mark.parametrize("case", MODES)
def test_the_claims_as_they_are_say_whether_pods_must_be_on_one_node(case: str) -> None:
    modes, bound = MODES[case]
    world = World()
    world.seen = replace(world.seen, claims={**world.seen.claims, "drafts": Claim("drafts", 1, access_modes=modes)})
    serving_draft(world)
    kinds = ("Job", "Deployment")
    made = {m["metadata"]["name"]: m["spec"]["template"] for m in world.applied if m["kind"] in kinds}
    tied = {name for name, template in made.items() if "eagle3.dev/together" in template["metadata"]["labels"]}
    assert tied == {name for name, template in made.items() if "affinity" in template["spec"]}
    assert tied == (set(made) - {"kimi-r0"} if bound else set()), "r0 mounts no draft, and starts wherever it can"


def test_pods_that_train_together_are_held_together_by_a_volume_of_theirs() -> None:
    shared = {name: Claim(name, 1, access_modes=("ReadWriteMany",)) for name in ("features", "drafts")}
    alone = {"models": Claim("models", 1, access_modes=("ReadWriteOnce",))}
    for jobsets in (True, False):
        world = World().edit(train={"nodes": 2}, placement={"volumes": [MODELS]})
        world.seen = replace(world.seen, claims=shared | alone, jobsets=jobsets)
        world.settle().finish("inspect").finish("extract")
        assert "eagle3.dev/together" in json.dumps(world.applied_job("train"))


ONE_POD = ("ReadWriteOncePod",)


@pytest.mark.parametrize(
    ("root", "edit", "refused"),
    [
        ("drafts", {}, True),
        ("drafts", {"serve": None, "probe": None, "watch": None}, False),
        ("features", {}, False),
        ("features", {"extract": {"shards": 2}}, True),
    ],
)
def test_a_claim_of_one_pod_alone_is_refused_where_several_must_mount_it(
    root: str, edit: dict[str, Any], refused: bool
) -> None:
    world = World().edit(**edit)
    world.seen = replace(world.seen, claims={**world.seen.claims, root: Claim(root, 1, access_modes=ONE_POD)})
    world.settle()
    assert (world.reason("Accepted") == ("False", Reason.STORAGE_NOT_SHARED)) is refused
    if refused:
        assert f'storage.{root}: claim "{root}" is ReadWriteOncePod' in world.condition("Accepted").message
