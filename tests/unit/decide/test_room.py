"""serve.whileTraining: ScaleToZero. One node serves and trains by turns."""

from dataclasses import replace

import pytest

from eagle3_api.conditions import Reason
from eagle3_operator.observation import Pod
from unit.decide.world import World, serving_draft, serving_plain
from unit.samples import FACTS, converted, measured


def by_turns(**serve: object) -> World:
    """r1 serves on a node that has room for one server, and trains on it."""
    world = World(room=1).edit(serve={"whileTraining": "ScaleToZero", "surge": "Never", **serve})
    return serving_draft(world).later(700).settle()


def retrained(world: World) -> World:
    """The next draft is asked for and approved: the servers are gone and Extract runs again."""
    return world.edit(train={"epochs": 9}).settle().approve().settle()


def test_by_default_the_servers_stay_while_the_next_draft_is_trained() -> None:
    world = serving_draft().edit(train={"epochs": 9}).settle()
    assert world.replicas[1] == 1
    assert world.job("extract") is not None


def test_once_ready_a_training_that_takes_the_servers_away_waits_for_approval() -> None:
    world = by_turns()
    created = list(world.created)
    world.edit(train={"epochs": 9}).settle().later(3600).settle()
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert world.reason("Stalled") == ("True", Reason.AWAITING_APPROVAL)
    assert "the Service has no pod until the new draft is proven" in world.condition("Ready").message
    assert "eagle3.dev/approve=train@" in world.condition("Ready").message
    assert world.replicas == {0: 0, 1: 1}
    assert world.created == created


def test_the_estimate_of_the_outage_is_what_the_stages_took_last_time() -> None:
    world = World(room=1).edit(serve={"whileTraining": "ScaleToZero"}).settle().finish("inspect")
    world.later(7200).finish("extract").later(7 * 3600).finish("train").finish("convert").ready(0)
    world.finish("probe", measured()).later(121).settle().ready(1).finish("probe", measured(accept=2.71, speed=126.9))
    world.edit(train={"epochs": 9}).settle()
    for _ in range(2):
        assert "last time extract took 2.0h and train took 7.0h" in world.condition("Ready").message
        world.later(3600).settle()


def test_an_approved_training_starts_when_the_servers_pods_are_gone() -> None:
    world = by_turns().edit(train={"epochs": 9}).settle()
    created = list(world.created)
    going = Pod("kimi-r1-0", world.now, "Running", started_at=world.now, terminating=True)
    world.approve().step()
    assert world.replicas == {0: 0, 1: 0}
    world.pods(1, going)
    assert world.created == created
    assert world.reason() == ("False", Reason.MAKING_ROOM)
    assert world.condition("Ready").message.endswith(": kimi-r1-0")
    assert world.last is not None
    assert world.last.requeue_after is not None
    world.pods(1)
    assert len(world.created) == len(created) + 1
    assert world.reason() == ("False", Reason.EXTRACTING)
    assert world.reason("ServerAvailable") == ("False", Reason.MAKING_ROOM)


def test_a_server_on_a_lost_node_holds_no_training_up() -> None:
    world = by_turns().edit(train={"epochs": 9}).settle()
    world.approve().step()
    lost = Pod("kimi-r1-0", world.now, "Running", started_at=world.now, terminating=True, gone_by=world.now)
    world.pods(1, lost).later(119).settle()
    assert world.reason() == ("False", Reason.MAKING_ROOM)
    world.later(1).settle()
    assert world.reason() == ("False", Reason.EXTRACTING)


def test_servers_that_make_room_are_not_asked_for_their_traffic() -> None:
    world = retrained(by_turns())
    world.later(600).settle()
    assert world.last is not None
    assert world.last.requeue_after is None, "the Job's pods will be heard of"


def test_the_new_revision_comes_up_in_the_room_and_needs_no_other_approval() -> None:
    world = retrained(by_turns())
    for stage in ("extract", "train"):
        assert world.replicas == {0: 0, 1: 0}
        world.finish(stage)
    assert world.replicas == {0: 0, 1: 0}, "the old one would only be in the way of the new one"
    world.finish("convert", converted("e" * 64))
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.ready(2).finish("probe", measured(accept=2.8, speed=130.0))
    assert world.serving == 2
    assert world.reason() == ("True", Reason.SERVING)
    assert world.outages == 2, "r0 for r1, before the object was Ready, and r1 for the training"
    assert [event.reason for event in world.events if event.reason in ("MakingRoom", "RoomEnded")] == [
        "MakingRoom",
        "RoomEnded",
    ]


def test_where_the_new_data_have_other_prompts_the_baseline_is_measured_in_the_room_too() -> None:
    world = retrained(by_turns())
    for stage in ("extract", "train"):
        world.finish(stage)
    draft = converted("e" * 64).model_copy(update={"prompts_digest": "q" * 64})
    world.finish("convert", draft)
    assert world.replicas == {0: 1, 1: 0}
    world.ready(0).finish("probe", measured(prompts_digest="q" * 64))
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.ready(2).finish("probe", measured(accept=2.8, speed=130.0, prompts_digest="q" * 64))
    assert world.serving == 2


def test_a_draft_that_is_not_proven_gives_the_room_back_to_the_old_revision() -> None:
    world = retrained(by_turns())
    for stage in ("extract", "train"):
        world.finish(stage)
    world.finish("convert", converted("e" * 64)).ready(2).finish("probe", measured(accept=1.0, speed=50.0))
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    world.ready(1)
    assert world.serving == 1
    assert world.reason("ServerAvailable")[0] == "True"


def test_a_new_revision_that_could_not_start_is_not_tried_again_by_itself_at_the_cost_of_another_outage() -> None:
    world = retrained(by_turns(startRetries=0))
    for stage in ("extract", "train"):
        world.finish(stage)
    world.finish("convert", converted("e" * 64))
    world.pods(2, Pod("p", world.now, "Running", started_at=world.now, restarts=1, exit_code=1), log=("boom",))
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    outages = world.outages
    world.ready(1).later(3700).settle().later(86400).settle()
    assert world.reason() == ("False", Reason.START_FAILED)
    assert (
        "r2 is tried again when the spec changes, or by: kubectl annotate e3d kimi -n llm eagle3.dev/retry=r2@"
        in world.condition("Ready").message
    )
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    world.annotations["eagle3.dev/retry"] = "r2@again"
    world.settle()
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert "eagle3.dev/approve=r2@" in world.condition("Ready").message
    assert world.outages == outages


@pytest.mark.parametrize("stage", ["extract", "train", "convert"])
def test_the_servers_come_back_when_a_stage_fails(stage: str) -> None:
    world = retrained(by_turns())
    for before in ("extract", "train", "convert"):
        if before == stage:
            break
        world.finish(before)
    world.fail(stage, Reason.NON_FINITE, "the loss is nan at step 7.")
    assert world.replicas == {0: 0, 1: 1}
    assert world.reason() == ("False", Reason.NON_FINITE)
    world.ready(1)
    assert world.reason("ServerAvailable")[0] == "True"


def test_the_servers_come_back_while_the_object_is_suspended_and_go_again_before_the_job_is_resumed() -> None:
    world = retrained(by_turns())
    job = world.job("extract")
    world._put_job(replace(job, pods=(Pod("e", world.now, "Running", started_at=world.now),)))
    world.edit(suspend=True).settle()
    assert world.job("extract").suspended
    assert world.replicas == {0: 0, 1: 0}, "the Job's pod still has its GPUs"
    world._put_job(replace(world.job("extract"), pods=()))
    world.settle()
    assert world.replicas == {0: 0, 1: 1}
    world.ready(1)
    world.edit(suspend=False).step()
    assert world.job("extract").suspended, "first the servers' pods have to go"
    world.settle()
    assert world.replicas == {0: 0, 1: 0}
    assert not world.job("extract").suspended


def test_an_edit_that_is_taken_back_brings_the_servers_back_and_runs_nothing() -> None:
    world = retrained(by_turns())
    assert not world.job("extract").finished
    created = list(world.created)
    world.edit(train={"epochs": 3}).settle()
    assert world.replicas == {0: 0, 1: 1}
    world.ready(1)
    assert world.reason() == ("True", Reason.SERVING)
    assert [name.split("-")[1] for name in world.created[len(created) :]] == ["clean"], "what was extracted goes"
    assert not [job for job in world.jobs("extract") if not job.finished]


def test_an_edit_that_is_taken_back_before_it_was_approved_leaves_the_object_ready() -> None:
    world = by_turns()
    created, outages = list(world.created), world.outages
    world.edit(train={"epochs": 9}).settle()
    world.edit(train={"epochs": 3}).settle()
    assert world.reason() == ("True", Reason.SERVING)
    assert not [name for name in world.created[len(created) :] if "clean" not in name]
    assert world.outages == outages


def test_the_approval_of_one_training_is_none_of_another() -> None:
    world = retrained(by_turns())
    world.edit(train={"epochs": 12}).settle()
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert world.replicas == {0: 0, 1: 1}


def test_the_approval_of_a_training_is_none_of_a_later_roll_out() -> None:
    world = retrained(by_turns())
    for stage in ("extract", "train"):
        world.finish(stage)
    world.finish("convert", converted("e" * 64)).ready(2).finish("probe", measured(accept=2.8, speed=130.0))
    world.later(700).edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert world.replicas[2] == 1


def test_always_means_that_nobody_is_asked() -> None:
    world = by_turns().edit(autoApply="Always", train={"epochs": 9}).settle()
    assert world.replicas == {0: 0, 1: 0}
    assert not world.job("extract").finished


def test_before_the_object_has_been_ready_nobody_is_asked() -> None:
    world = World(room=1).edit(serve={"whileTraining": "ScaleToZero"})
    serving_plain(world).edit(train={"epochs": 9}).settle()
    assert world.replicas == {0: 0, 1: 0}
    assert not world.job("extract").finished


def test_where_nothing_serves_the_first_training_waits_for_nothing() -> None:
    world = World().edit(serve={"whileTraining": "ScaleToZero"}).settle().finish("inspect")
    assert world.job("extract") is not None


def test_servers_that_were_scaled_to_zero_anyway_need_no_approval() -> None:
    world = by_turns().edit(serve={"replicas": 0}).settle().edit(train={"epochs": 9}).settle()
    assert world.reason() == ("False", Reason.EXTRACTING)


def test_a_job_that_waits_for_the_servers_gpus_gets_them_by_an_edit() -> None:
    world = serving_draft(World().edit(autoApply="Always")).later(700).edit(train={"epochs": 9}).settle()
    pending = Pod("e", world.now, unschedulable="0/1 nodes", unschedulable_since=world.now)
    world._put_job(replace(world.job("extract"), pods=(pending,)))
    world.settle()
    assert world.reason() == ("False", Reason.UNSCHEDULABLE)
    world.edit(serve={"whileTraining": "ScaleToZero"}).settle()
    assert world.replicas == {0: 0, 1: 0}


def test_a_job_that_runs_beside_the_servers_is_left_beside_them() -> None:
    world = serving_draft().later(700).edit(train={"epochs": 9}).settle()
    world._put_job(replace(world.job("extract"), pods=(Pod("e", world.now, "Running", started_at=world.now),)))
    world.edit(serve={"whileTraining": "ScaleToZero"}).settle()
    assert world.replicas[1] == 1
    assert world.reason() == ("False", Reason.EXTRACTING)


def test_keep_brings_the_servers_back_at_once() -> None:
    world = retrained(by_turns()).edit(serve={"whileTraining": "Keep"}).settle()
    assert world.replicas == {0: 0, 1: 1}


def test_a_lost_status_does_not_start_servers_under_a_running_training() -> None:
    world = retrained(by_turns())
    world._put_job(replace(world.job("extract"), pods=(Pod("e", world.now, "Running", started_at=world.now),)))
    world.status = {}
    world.settle()
    assert world.replicas == {0: 0, 1: 0}


@pytest.mark.parametrize("word", ["train", "train@", "train@{key:.3}", "r1@{key:.8}", "train@00000000"])
def test_a_word_that_does_not_name_the_training_and_its_key_approves_nothing(word: str) -> None:
    world = by_turns().edit(train={"epochs": 9}).settle()
    key = world.condition("Ready").message.split("approve=train@")[1].split()[0]
    world.annotations["eagle3.dev/approve"] = word.format(key=key)
    world.settle()
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert world.replicas == {0: 0, 1: 1}


def test_an_adopted_draft_whose_conversion_runs_the_target_takes_its_turn_too() -> None:
    world = by_turns().edit(draft={"checkpoint": "/drafts/theirs"}).settle()
    world.finish("inspect", FACTS.model_copy(update={"checkpoint_digest": "c1"}))
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert "eagle3.dev/approve=convert@" in world.condition("Ready").message
    world.approve().settle()
    assert world.replicas == {0: 0, 1: 0}
    world.finish("convert", converted("b" * 64, expected=None))
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.ready(2).finish("probe", measured(accept=2.8, speed=130.0))
    assert world.serving == 2


def test_servers_stay_away_while_the_job_that_they_made_room_for_waits_in_a_queue() -> None:
    world = retrained(by_turns().edit(queueName="gpus").settle())
    assert world.reason() == ("False", Reason.QUEUED)
    assert world.replicas == {0: 0, 1: 0}
    world._put_job(
        replace(world.job("extract"), suspended=False, pods=(Pod("e", world.now, "Running", started_at=world.now),))
    )
    world.later(3600).settle()
    world._put_job(replace(world.job("extract"), suspended=True, pods=()))
    world.settle()
    assert world.replicas == {0: 0, 1: 0}, "the queue took it back for a while"
    world.edit(suspend=True).settle()
    assert world.jobs("extract") == []
    assert world.replicas == {0: 0, 1: 1}


def test_a_training_that_failed_and_is_retried_was_approved_before() -> None:
    world = retrained(by_turns()).finish("extract").fail("train", Reason.NON_FINITE, "the loss is nan at step 7.")
    world.ready(1)
    world.annotations["eagle3.dev/retry"] = "train@again"
    world.settle().finish("inspect")
    assert world.replicas == {0: 0, 1: 0}
    assert not world.job("train").finished
