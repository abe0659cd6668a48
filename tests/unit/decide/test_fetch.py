"""What comes from a hub comes before everything else, once, and under its commit from then on."""

from dataclasses import replace
from typing import Any

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertConfig, ExtractConfig, FetchConfig, Fetched, FetchResult, InspectConfig, StageName
from eagle3_api.status import Handled
from eagle3_operator.decide import decide
from eagle3_operator.decide.stages import INSPECT, Attempts, Look, after_inspection, fetch
from eagle3_operator.manifests.jobs import job
from eagle3_operator.manifests.servers import deployment
from eagle3_operator.observation import Claim
from eagle3_operator.settings import Settings
from unit.decide.world import World
from unit.samples import FACTS, converted, measured

COMMIT = "c" * 40
DATASET = {"repository": "acme/talks", "split": "train"}


def hub(**changes: Any) -> World:
    """An object whose target comes from a hub."""
    edits = {"target": {"model": "acme/target"}, "storage": {"models": {"claim": "models"}}}
    world = World().edit(**edits).edit(**changes)
    claims = {name: Claim(name, 10**13) for name in ("features", "drafts", "models")}
    world.seen = replace(world.seen, claims=claims)
    return world


def config(world: World, attempt: str | None = None) -> FetchConfig:
    link = fetch(world.obj, attempt)
    assert link is not None
    assert isinstance(link.config, FetchConfig)
    return link.config


def came(world: World) -> FetchResult:
    """What Fetch says when it has all that it was asked for."""
    asked = config(world)

    def source(repository: str, path: str) -> Fetched:
        return Fetched(repository=repository, commit=COMMIT, path=path, files=9, bytes=10**9)

    return FetchResult(
        draft=source(asked.draft.repository, asked.draft.folder) if asked.draft else None,
        target=source(asked.target.repository, asked.target.folder) if asked.target else None,
        dataset=source(asked.dataset.repository, f"{asked.dataset.folder}/data.jsonl") if asked.dataset else None,
    )


def inspected(world: World) -> World:
    fetched = came(world)
    world.settle().finish("fetch", fetched)
    return world.finish("inspect", FACTS.model_copy(update={"fetched": fetched}))


def test_nothing_is_fetched_for_a_path() -> None:
    assert fetch(World().obj, None) is None


def test_a_target_of_a_hub_is_fetched_before_it_is_inspected() -> None:
    world = hub().settle()
    assert [made.stage for made in world.seen.jobs.values()] == ["fetch"]
    assert world.reason() == ("False", Reason.FETCHING)
    assert world.reason("Accepted") == ("Unknown", Reason.FETCHING)
    assert world.told.phase == "Fetching"
    world.finish("fetch", came(world))
    assert [made.stage for made in world.seen.jobs.values()] == ["fetch", "inspect"]
    assert any("acme/target at cccccccccccc, 9 files" in event.message for event in world.events)


def test_from_then_on_every_stage_and_server_reads_what_was_fetched() -> None:
    world = inspected(hub(data={"conversations": None, "dataset": DATASET}))
    assert world.told.resolved is not None
    assert world.told.resolved.fetched == came(world)
    facts = world.told.resolved
    target, dataset = facts.fetched.target, facts.fetched.dataset  # type: ignore[union-attr]
    assert target is not None
    assert dataset is not None
    links = after_inspection(world.obj, facts, Attempts())
    assert {link.config.target for link in links} == {target.path}  # type: ignore[union-attr]
    extract = links[0].config
    assert isinstance(extract, ExtractConfig)
    assert (extract.data.dataset, extract.data.conversations) == (dataset.path, None)
    assert extract.target_revision == target.commit
    server = deployment(world.obj, Settings(), facts, number=0, key="k" * 16, replicas=1, draft=None, record={})
    pod = server["spec"]["template"]["spec"]
    command = pod["containers"][0]["command"]
    assert command[command.index("--model-path") + 1] == target.path
    mounts = {mount["mountPath"]: mount.get("readOnly") for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["/eagle3/models"] is True


def test_only_fetch_writes_to_the_models() -> None:
    world = hub()
    link = fetch(world.obj, None)
    assert link is not None
    for made, read_only in (
        (link.config, None),
        (INSPECT.link(Look(world.obj, Handled(), fetched=came(world))).config, True),
    ):
        container = job(world.obj, Settings(), config=made)["spec"]["template"]["spec"]["containers"][0]
        mounts = {mount["mountPath"]: mount.get("readOnly") for mount in container["volumeMounts"]}
        assert mounts["/eagle3/models"] is read_only


def test_a_draft_of_a_hub_is_adopted_from_where_it_was_fetched_to() -> None:
    adopted = {"checkpoint": "acme/draft", "revision": "v3"}
    world = hub(target={"model": "/models/target"}, draft=adopted).settle()
    asked = config(world).draft
    assert asked is not None
    assert (asked.repository, asked.revision, config(world).target) == ("acme/draft", "v3", None)
    fetched = came(world)
    assert fetched.draft is not None
    world.finish("fetch", fetched)
    looked = INSPECT.link(Look(world.obj, Handled(), fetched=fetched)).config
    assert isinstance(looked, InspectConfig)
    assert looked.checkpoint == fetched.draft.path
    facts = FACTS.model_copy(update={"fetched": fetched, "checkpoint_digest": "c1"})
    world.finish("inspect", facts)
    assert [made.stage for made in world.seen.jobs.values()] == ["fetch", "inspect", "convert"]
    made = after_inspection(world.obj, facts, Attempts())[-1].config
    assert isinstance(made, ConvertConfig)
    assert made.checkpoint == fetched.draft.path
    container = job(world.obj, Settings(), config=made)["spec"]["template"]["spec"]["containers"][0]
    assert "/eagle3/models" in {mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")}


def test_a_draft_that_another_object_published_in_a_bucket_is_fetched_by_its_address() -> None:
    address = f"s3://drafts/kimi/sha256-{'a' * 64}"
    world = hub(target={"model": "/models/target"}, draft={"checkpoint": address}).settle()
    assert [made.stage for made in world.seen.jobs.values()] == ["fetch"]
    asked = config(world)
    assert (asked.target, asked.draft) == (None, None)
    assert asked.stored is not None
    assert asked.stored.address == address
    fetched = FetchResult(
        draft=Fetched(repository=address, commit="a" * 64, path=asked.stored.folder, files=2, bytes=10**9)
    )
    world.finish("fetch", fetched)
    looked = INSPECT.link(Look(world.obj, Handled(), fetched=fetched)).config
    assert isinstance(looked, InspectConfig)
    assert looked.checkpoint == asked.stored.folder


def test_another_draft_does_not_fetch_the_target_again() -> None:
    one, other = (config(hub(draft={"checkpoint": f"acme/{name}"})) for name in ("draft", "other"))
    assert one.target == other.target
    assert one.key != other.key


def test_the_key_of_what_is_fetched_is_that_of_former_versions() -> None:
    assert config(hub(data={"conversations": None, "dataset": DATASET})).key == "e50b7a9758c61de7"


def test_another_data_set_does_not_fetch_the_target_again() -> None:
    one, other = (
        config(hub(data={"conversations": None, "dataset": made})) for made in (DATASET, {**DATASET, "split": "test"})
    )
    assert one.target == other.target
    assert one.key != other.key
    assert one.dataset != other.dataset
    assert config(hub(target={"revision": "v2"})).target != one.target


def test_a_retry_of_a_finished_fetch_resolves_the_revision_anew() -> None:
    world = inspected(hub())
    before = world.told.stages[0]
    world.annotations["eagle3.dev/retry"] = "fetch@monday"
    world.settle()
    after = world.told.stages[0]
    assert (after.name, after.state) == (StageName.FETCH, "Running")
    assert after.key != before.key
    assert after.artifact != before.artifact


def test_a_fetch_that_failed_says_why_and_is_not_accepted() -> None:
    world = hub().settle().fail("fetch", Reason.HUB_ACCESS_DENIED, "target.model: acme/target: ask its owners", 11)
    assert world.reason("Accepted") == ("False", Reason.HUB_ACCESS_DENIED)
    assert "eagle3.dev/retry=fetch@" in world.condition("Accepted").message


def test_a_served_object_goes_on_serving_while_another_target_is_fetched() -> None:
    world = inspected(hub())
    for stage in ("extract", "train"):
        world.finish(stage)
    world.finish("convert", converted())
    world.ready(0).finish("probe", measured())
    world.ready(1).finish("probe", measured(accept=2.71, speed=126.9))
    assert world.serving == 1
    world.edit(target={"model": "acme/other"}).settle()
    assert world.job("fetch").name != world.created[0]
    assert (world.serving, world.told.phase) == (1, "Fetching")
    assert set(world.replicas) == {0, 1}


def test_a_claim_for_the_models_is_made_where_a_size_is_given() -> None:
    world = hub(storage={"models": {"size": "1Ti", "claim": None}})
    others = {name: claim for name, claim in world.seen.claims.items() if name != "models"}
    world.seen = replace(world.seen, claims=others)
    made = decide(world.obj, world.seen, world.settings, world.now).apply
    assert [(one["kind"], one["metadata"]["name"]) for one in made] == [("PersistentVolumeClaim", "kimi-models")]


@pytest.mark.parametrize(
    ("policy", "owned", "owners"),
    [
        ("Retain", True, [0]),
        ("Delete", False, [1]),
        ("Retain", False, []),
        ("Delete", True, []),
        ("Delete", None, []),  # it is not the operator's
    ],
)
def test_a_claim_goes_with_its_object_as_the_object_says_now(
    policy: str, owned: bool | None, owners: list[int]
) -> None:
    world = hub(storage={"models": {"size": "1Ti", "claim": None}}, deletionPolicy=policy)
    world.seen = replace(world.seen, claims={**world.seen.claims, "kimi-models": Claim("kimi-models", owned=owned)})
    told = decide(world.obj, world.seen, world.settings, world.now).own
    assert [(own.claim, len(own.owners)) for own in told] == [("kimi-models", count) for count in owners]


def test_a_word_for_a_roll_out_holds_while_target_and_data_are_fetched_and_inspected_again() -> None:
    world = inspected(hub(serve={"surge": "Never"}))
    for stage in ("extract", "train", "convert"):
        world.finish(stage)
    world.ready(0).finish("probe", measured()).later(121).settle().ready(1)
    world.finish("probe", measured(accept=2.71, speed=126.9)).later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle().approve().settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.annotations["eagle3.dev/retry"] = "fetch@1"
    assert world.settle().replicas == {0: 0, 1: 1, 2: 0}
    inspected(world)
    assert world.replicas == {0: 0, 1: 0, 2: 1}
