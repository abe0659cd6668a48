"""What goes once nothing needs it any more: features, their claim, and what remembers them."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import (
    CONFIG_ANNOTATION,
    InspectConfig,
    JobEnvelope,
)
from eagle3_operator.decision import Decision, Delete
from eagle3_operator.observation import Claim, Pod
from unit.decide.world import World, trained
from unit.samples import measured


def test_features_go_when_training_has_finished_while_the_draft_is_converted() -> None:
    world = World().settle()
    for stage in ("inspect", "extract"):
        world.finish(stage)
    assert not world.jobs("clean")
    world.finish("train")
    assert world.job("clean")
    assert world.job("convert")
    world.finish("clean")
    assert "removed after training" in world.condition("FeaturesReady").message
    created = list(world.created)
    world.finish("convert").later(3600).settle()
    assert [name for name in world.created if name not in created and "-r" not in name and "probe" not in name] == []
    world.now += timedelta(days=1)
    world.seen = replace(world.seen, jobs={})
    world.settle()
    assert not world.jobs("clean") and not world.jobs("extract")


def test_features_stay_where_they_are_to_be_retained() -> None:
    world = trained(World().edit(extract={"retain": True}))
    assert not world.jobs("clean")


def test_a_training_that_needs_features_that_are_gone_has_them_extracted_again() -> None:
    world = trained()
    extract = world.job("extract").name
    world.finish("clean").edit(train={"epochs": 9}).settle()
    assert world.created.count(extract) == 2
    assert not world.jobs("train")
    world.finish("extract")
    assert world.job("train").key != trained().job("train").key
    world.finish("train")
    assert world.job("clean")


def test_an_edit_that_goes_back_to_a_former_draft_extracts_and_trains_nothing() -> None:
    """Not even where the draft since then, an adopted one, has taken the stages' own statuses with it."""
    world = trained()
    first = world.told.artifact
    world.finish("clean").edit(draft={"checkpoint": "/data/another", "vocabularySize": None}).settle()
    world.finish("inspect").finish("convert")
    assert world.told.artifact != first
    assert [one.folder for one in world.told.former_artifacts] == [first.folder if first else ""]
    created = list(world.created)
    world.edit(draft={"checkpoint": None, "vocabularySize": 32000}).settle().finish("inspect").settle()
    assert world.told.artifact == first
    again = {name.split("-")[1] for name in world.created[len(created) :]}
    assert again.isdisjoint({"extract", "train", "convert"}), again


@pytest.mark.parametrize("before", [{"extract": {"retain": True}}, {"suspend": True}])
def test_features_that_nobody_has_seen_since_an_adopted_draft_are_extracted_again(before: dict[str, object]) -> None:
    world = trained()
    extract = world.job("extract").name
    world.finish("clean").edit(draft={"checkpoint": "/data/another", "vocabularySize": None}).settle()
    world.finish("inspect").finish("convert")
    world.edit(draft={"checkpoint": None, "vocabularySize": 32000}).settle().edit(**before).settle().finish("inspect")
    world.edit(suspend=False, train={"epochs": 9}).settle()
    assert world.created.count(extract) == 2
    assert not world.jobs("train")
    world.finish("extract")
    assert not world.job("train").finished


def test_a_removal_that_has_begun_is_ended_also_where_the_next_features_are_to_be_retained() -> None:
    world = trained()
    extract = world.job("extract").name
    assert not world.job("clean").finished
    world.edit(extract={"retain": True}).settle()
    assert not world.job("clean").finished, "half of the features may be gone"
    world.edit(train={"epochs": 9}).settle()
    assert world.created.count(extract) == 2


def on_a_claim_of_the_operators(**changes: Any) -> World:
    """An object whose features lie on a claim that the operator makes."""
    return World().edit(storage={"features": {"claim": None, "size": "1Ti"}}, **changes).settle()


def test_a_claim_that_the_operator_made_for_the_features_goes_with_them() -> None:
    world = on_a_claim_of_the_operators().finish("inspect").finish("extract")
    assert "kimi-features" in world.seen.claims
    world.finish("train").finish("convert")
    assert set(world.seen.claims) == {"features", "drafts"}, "those of the user's stay"
    assert not world.jobs("clean")
    assert "removed after training" in world.condition("FeaturesReady").message
    world.later(3600).settle()
    assert "kimi-features" not in world.seen.claims, "and is not made again for nothing"
    assert world.reason("Accepted") == ("True", Reason.ACCEPTED)


def test_the_claim_of_features_stays_while_a_job_is_under_way() -> None:
    """A conversion or a probe of a former version of the operator mounts it, and would wait for it for ever."""
    world = on_a_claim_of_the_operators().finish("inspect").finish("extract").finish("train")
    assert not world.job("convert").finished
    assert "kimi-features" in world.seen.claims
    world.finish("convert")
    assert "kimi-features" not in world.seen.claims


@pytest.mark.parametrize("user", ["another", "a-notebook"])
def test_of_a_claim_that_somebody_else_uses_only_this_objects_features_are_removed(user: str) -> None:
    world = on_a_claim_of_the_operators()
    world.use("kimi-features", by=(user,))
    trained(world)
    assert world.job("clean")
    world.finish("clean").use("kimi-features", by=()).later(3600).settle()
    assert "kimi-features" in world.seen.claims, "who used it may have left something"
    assert "removed after training" in world.condition("FeaturesReady").message


def test_a_claim_is_not_deleted_before_somebody_has_looked_who_uses_it() -> None:
    world = on_a_claim_of_the_operators()
    world.use("kimi-features", by=None)
    trained(world).later(3600).settle()
    assert "kimi-features" in world.seen.claims
    assert not world.jobs("clean")
    world.use("kimi-features", by=()).settle()
    assert "kimi-features" not in world.seen.claims


class EditedWhileItsClaimIsDeleted(World):
    """The claim is deleted, and the status of that look is not written: the object was edited meanwhile."""

    def step(self) -> Decision:
        before = self.status
        decision = super().step()
        if Delete("PersistentVolumeClaim", "kimi-features") in decision.delete:
            self.status = before
            self.edit(train={"epochs": 9})
        return decision


def test_a_status_that_is_lost_with_the_deletion_of_a_claim_has_nobody_train_on_an_empty_one() -> None:
    world = EditedWhileItsClaimIsDeleted().edit(storage={"features": {"claim": None, "size": "1Ti"}}).settle()
    world.finish("inspect").finish("extract")
    extract = world.job("extract").name
    world.finish("train").finish("convert")
    assert world.created.count(extract) == 2, "what was on the claim is gone"
    assert not world.jobs("train")
    world.finish("extract")
    assert not world.job("train").complete


def test_a_training_that_needs_its_features_again_has_the_claim_made_anew() -> None:
    world = trained(on_a_claim_of_the_operators())
    extract, made = world.job("extract").name, len(world.applied)
    world.edit(train={"epochs": 9}).settle()
    kinds = [
        manifest["kind"] for manifest in world.applied[made:] if manifest["kind"] in ("Job", "PersistentVolumeClaim")
    ]
    assert kinds.index("PersistentVolumeClaim") < kinds.index("Job"), "its pods would wait for it unseen"
    assert world.created.count(extract) == 2
    world.finish("extract")
    assert "kimi-features" in world.seen.claims
    world.finish("train").finish("convert")
    assert "kimi-features" not in world.seen.claims


def given_up(world: World) -> World:
    """Another training is begun, and ends in nothing: its best weights so far lie with the drafts."""
    world.edit(train={"epochs": 9}).settle().finish("extract")
    assert not world.job("train").finished
    return world


@pytest.mark.parametrize(
    "instead", [{"train": {"epochs": 3}}, {"draft": {"checkpoint": "/data/another", "vocabularySize": None}}]
)
def test_where_the_claim_of_features_goes_a_job_removes_what_a_training_that_was_given_up_left_with_the_drafts(
    instead: dict[str, Any],
) -> None:
    """No training ends that would do it: an edit is taken back, or a draft adopted."""
    world = trained(on_a_claim_of_the_operators(train={"epochs": 3}))
    assert not world.jobs("clean"), "the training itself did it"
    given_up(world).edit(**instead).settle()
    if "draft" in instead:
        world.finish("inspect").finish("convert")
    assert "kimi-features" not in world.seen.claims
    pod = world.applied_job("clean")["spec"]["template"]["spec"]
    assert "/eagle3/features" not in json.dumps(pod["containers"][0]["volumeMounts"]), "it would wait for the claim"
    assert "kimi-features" not in world.seen.claims
    world.finish("clean").later(3600).settle()
    assert "kimi-features" not in world.seen.claims, "and is not made again for nothing"
    assert sum("clean" in name for name in world.created) == 1


@pytest.mark.parametrize("hindered", [{"suspend": True}, {}])
def test_a_job_that_cannot_remove_what_was_left_with_the_drafts_has_no_claim_made_anew(
    hindered: dict[str, Any],
) -> None:
    world = given_up(trained(on_a_claim_of_the_operators(train={"epochs": 3}))).edit(train={"epochs": 3}).settle()
    if hindered:
        world.edit(**hindered).settle()
    else:
        world.fail("clean", Reason.STORAGE_UNAVAILABLE, "read-only file system")
        assert "read-only" in world.condition("FeaturesReady").message
    world.annotations["eagle3.dev/retry"] = "inspect@again"
    world.later(3600).settle()
    assert "kimi-features" not in world.seen.claims


@pytest.mark.parametrize("going", [False, True])
def test_an_inspection_after_the_training_needs_no_volume_for_the_features(going: bool) -> None:
    """One of their whole size would be provisioned to be deleted; where there is none, not even a server could be edited."""
    world = trained(on_a_claim_of_the_operators())
    claim = Claim("kimi-features", 10**13, owned=False, terminating=True)
    if going:
        world.seen = replace(world.seen, claims={**world.seen.claims, claim.name: claim})
    made = len(world.applied)
    world.annotations["eagle3.dev/retry"] = "inspect@again"
    world.settle()
    job = world.applied_job("inspect")
    assert job["spec"]["suspend"] is False
    assert "kimi-features" not in json.dumps(job["spec"]["template"]["spec"]["volumes"])
    config = JobEnvelope.model_validate_json(job["spec"]["template"]["metadata"]["annotations"][CONFIG_ANNOTATION])
    assert isinstance(config.config, InspectConfig)
    assert (config.config.features_gone, config.config.features_capacity) == (True, 2**40)
    world.finish("inspect")
    assert "PersistentVolumeClaim" not in {manifest["kind"] for manifest in world.applied[made:]}
    assert world.reason("Accepted") == ("True", Reason.ACCEPTED)


def test_nothing_is_started_on_a_claim_that_is_going_and_everything_once_it_has_gone() -> None:
    world = trained(on_a_claim_of_the_operators())
    assert "kimi-features" not in world.seen.claims
    going = Claim("kimi-features", 10**13, owned=False, terminating=True)
    world.seen = replace(world.seen, claims={**world.seen.claims, going.name: going})
    extract = world.job("extract").name
    world.edit(train={"epochs": 9}).settle()
    assert world.created.count(extract) == 1
    assert "being deleted" in world.condition("FeaturesReady").message
    assert world.last is not None
    assert world.last.requeue_after == 1.0, "nobody tells when it has gone"
    hanging = {going.name: replace(going, deleted_at=world.now)}
    world.seen = replace(world.seen, claims={**world.seen.claims, **hanging})
    for seconds, soon in ((3, 1.0), (37, 10.0), (86400, 30.0)):
        assert world.later(seconds).step().requeue_after == soon, "less often the longer it hangs"
    world.seen = replace(world.seen, claims={n: c for n, c in world.seen.claims.items() if n != going.name})
    world.settle()
    assert world.created.count(extract) == 2


@pytest.mark.parametrize("kept_by", [{"extract": {"retain": True}}, {"suspend": True}])
def test_the_claim_of_features_stays_where_they_are_to_stay(kept_by: dict[str, Any]) -> None:
    world = on_a_claim_of_the_operators().finish("inspect").finish("extract")
    world.edit(**kept_by).settle().finish("train")
    assert "kimi-features" in world.seen.claims
    world.edit(suspend=False, extract={"retain": False}).settle().finish("convert")
    assert "kimi-features" not in world.seen.claims


ADOPTED = {"checkpoint": "/data/another", "vocabularySize": None}


def test_an_object_that_adopts_a_draft_has_no_volume_made_or_asked_for_features_that_it_does_not_need() -> None:
    world = on_a_claim_of_the_operators(draft={"checkpoint": "/drafts/mine"})
    world.finish("inspect").finish("convert")
    assert world.reason("DraftConverted") == ("True", Reason.ARTIFACT_PUBLISHED)
    assert "kimi-features" not in world.seen.claims
    assert "features" not in json.dumps(world.applied_job("inspect")["spec"]["template"]["spec"]["volumes"])
    assert not world.jobs("clean")
    without = World().edit(draft={"checkpoint": "/drafts/mine"})
    without.seen = replace(without.seen, claims={"drafts": without.seen.claims["drafts"]})
    without.settle().finish("inspect").finish("convert")
    assert without.reason("DraftConverted") == ("True", Reason.ARTIFACT_PUBLISHED), (
        "a claim of the user's is not missed"
    )


def test_a_claim_of_former_features_goes_once_the_draft_that_is_adopted_instead_is_converted() -> None:
    world = on_a_claim_of_the_operators().finish("inspect").finish("extract")
    world.edit(draft=ADOPTED).settle().finish("inspect")
    assert "kimi-features" in world.seen.claims, "the edit may be taken back"
    world.finish("convert")
    assert "kimi-features" not in world.seen.claims
    world.later(3600).settle()
    assert "kimi-features" not in world.seen.claims, "and is not made again for nothing"
    extract = next(name for name in world.created if "extract" in name)
    world.edit(draft={"checkpoint": None, "vocabularySize": 32000}).settle().finish("inspect").finish("extract")
    assert world.created.count(extract) == 2
    assert "kimi-features" in world.seen.claims
    world.finish("train").finish("convert")
    assert world.reason("DraftConverted") == ("True", Reason.ARTIFACT_PUBLISHED)


def test_a_claim_that_an_older_version_made_for_an_adopted_draft_goes_too() -> None:
    world = World().edit(draft=ADOPTED, storage={"features": {"claim": None, "size": "1Ti"}})
    ours = Claim("kimi-features", 10**13, owned=False, used_by=())
    world.seen = replace(world.seen, claims={**world.seen.claims, ours.name: ours})
    world.settle().finish("inspect").finish("convert")
    assert "kimi-features" not in world.seen.claims


def test_features_of_former_specs_on_a_claim_of_the_users_are_removed_once_the_adopted_draft_is_converted() -> None:
    world = World().settle().finish("inspect").finish("extract")
    world.edit(draft=ADOPTED).settle().finish("inspect")
    assert not world.jobs("clean")
    world.finish("convert")
    assert not world.job("clean").finished
    world.finish("clean").later(3600).settle()
    assert world.reason("DraftConverted") == ("True", Reason.ARTIFACT_PUBLISHED)
    assert sum("clean" in name for name in world.created) == 1
    extract = next(name for name in world.created if "extract" in name)
    world.edit(draft={"checkpoint": None, "vocabularySize": 32000}).settle().finish("inspect").settle()
    assert world.created.count(extract) == 2, "they are gone"


def test_an_edit_to_an_adopted_draft_that_is_taken_back_before_it_is_converted_loses_no_features() -> None:
    world = World().settle().finish("inspect").finish("extract")
    world.edit(draft=ADOPTED).settle().finish("inspect")
    world.edit(draft={"checkpoint": None, "vocabularySize": 32000}).settle().finish("inspect").finish("extract")
    assert not world.jobs("clean")
    world.finish("train")
    assert world.job("clean")


@pytest.mark.parametrize("storage", [{}, {"features": {"claim": None, "size": "1Ti"}}])
def test_an_adopted_draft_leaves_features_that_are_to_be_retained(storage: dict[str, Any]) -> None:
    world = World().edit(extract={"retain": True}, storage=storage).settle().finish("inspect").finish("extract")
    claims = set(world.seen.claims)
    world.edit(draft=ADOPTED).settle().finish("inspect").finish("convert")
    assert set(world.seen.claims) == claims
    assert not world.jobs("clean")
    world.edit(extract={"retain": False}).settle()
    assert world.jobs("clean"), "they are remembered"
    assert claims - set(world.seen.claims) == ({"kimi-features"} if storage else set())


def test_an_object_that_never_extracted_anything_cleans_nothing_up() -> None:
    world = World().edit(draft=ADOPTED).settle().finish("inspect").finish("convert")
    assert not world.jobs("clean")
    assert "clean" not in {stage.name for stage in world.told.stages}


def test_a_claim_on_which_the_drafts_lie_too_is_emptied_of_features_and_not_deleted() -> None:
    storage = {"features": {"claim": None, "size": "1Ti"}, "drafts": {"claim": "kimi-features"}}
    world = World().edit(storage=storage)
    ours = Claim("kimi-features", 10**13, owned=False)
    world.seen = replace(world.seen, claims={**world.seen.claims, ours.name: ours})
    assert trained(world).job("clean")
    world.finish("clean")
    assert "kimi-features" in world.seen.claims


def test_of_former_drafts_the_last_ones_are_remembered() -> None:
    world = trained()
    for epochs in range(10, 16):
        world.edit(train={"epochs": epochs}).settle()
        for stage in ("extract", "train", "convert"):
            world.finish(stage)
    folders = [one.folder for one in world.told.former_artifacts]
    assert len(folders) == len({*folders, world.told.artifact and world.told.artifact.folder}) - 1 == 3


def test_a_training_does_not_wait_for_features_that_are_just_being_removed() -> None:
    world = trained()
    extract = world.job("extract").name
    assert world.job("clean")
    world.edit(train={"epochs": 9}).settle()
    assert not [job for job in world.jobs("clean") if not job.finished]
    assert world.created.count(extract) == 2


def test_nothing_is_extracted_where_a_removal_that_is_to_end_may_still_remove() -> None:
    """Its pod may be on a node that hears nobody, and take what is made now for what it was to remove: for a while that is borne."""
    world = trained()
    extract, clean = world.job("extract").name, world.job("clean")
    pod = Pod("clean-x", world.now, "Running", started_at=world.now, gone_by=world.now + timedelta(seconds=30))
    going = replace(clean, terminating=True, pods=(pod,))
    world.edit(train={"epochs": 9}).step()
    world.seen = replace(world.seen, jobs={**world.seen.jobs, going.name: going})
    world.settle()
    assert world.created.count(extract) == 1
    assert f"Job {clean.name}, which removes features, is being ended" in world.condition("FeaturesReady").message
    world.later(3600).settle()
    assert world.created.count(extract) == 2


def test_what_cannot_be_removed_hinders_nothing() -> None:
    world = trained().fail("clean", Reason.STORAGE_UNAVAILABLE, "read-only file system")
    assert world.reason("FeaturesReady")[0] == "True"
    assert "read-only" in world.condition("FeaturesReady").message
    world.ready(0).finish("probe", measured())
    assert world.serving == 0
