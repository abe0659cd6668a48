"""Starts of servers: what counts as a failed one, how long it rests, and what of it is told meanwhile."""

import pytest

from eagle3_api.conditions import Reason
from eagle3_operator.decide.pods.diagnosis import diagnose
from eagle3_operator.decision import Because
from eagle3_operator.observation import Deployment, Pod
from unit.decide.world import World, serving_plain
from unit.samples import converted

FORMER = {
    "a server that ran for a day": {"phase": "Running"},
    "one that crashed again and again": {"phase": "Running", "restarts": 9, "exit_code": 1},
    "one that was killed for its memory": {"phase": "Running", "restarts": 9, "oom_killed": True},
    "one whose image never came": {"waiting_reason": "ImagePullBackOff", "waiting_message": "not found"},
}


@pytest.mark.parametrize("case", FORMER)
def test_a_former_pod_that_has_not_ended_yet_says_nothing_of_its_successor(case: str) -> None:
    world = serving_plain(World().edit(serve={"startTimeout": "25m"})).later(86400)
    former = Pod("kimi-r1-old", world.now, terminating=True, started_at=world.now, **FORMER[case])  # type: ignore[arg-type]
    world.later(7200)
    successor = Pod("kimi-r1-new", world.now, "Running", started_at=world.now)
    world.pods(1, former, successor)
    assert world.seen.deployments[1].pods == (former, successor), "nothing was started anew"
    assert world.reason() == ("False", Reason.SERVER_STARTING)
    assert world.told.revisions[1].start_failures == 0
    assert "failed" not in world.condition("Ready").message


@pytest.mark.parametrize("noted", [None, "2026-11-01T00:00:00Z"])
def test_a_start_whose_time_was_not_noted_has_had_no_longer_than_its_pods_are_there(noted: str | None) -> None:
    world = World(room=1).edit(serve={"startTimeout": "20m", "surge": "Never"}, autoApply="Always")
    world = serving_plain(world).later(86400)
    for revision in world.status["revisions"]:
        revision["startedAt"] = noted
    image = {"waiting_reason": "ErrImagePull", "waiting_message": "denied"}
    world.pods(1, Pod("p", world.now, **image)).later(1199).settle()  # type: ignore[arg-type]
    assert world.replicas == {0: 0, 1: 1}
    world.later(2).settle()
    assert world.replicas == {0: 1, 1: 0}


@pytest.mark.parametrize(("code", "told"), [(None, "no exit code"), (1, "code 1")])
def test_a_server_that_ended_is_told_with_its_code_if_there_is_one(code: int | None, told: str) -> None:
    now = World().now
    pods = (Pod("p", now, "Running", started_at=now, restarts=3, exit_code=code),)
    ended = Deployment("kimi-r1", 1, "key", now, replicas=1, pods=pods, log=("boom", " "))
    assert diagnose(ended) == Because(Reason.START_FAILED, f'the server ended with {told}; last line: "boom"')


# ---------------------------------------------------------------------------------------------------------- the rest


def test_the_rest_after_a_failed_start_is_an_hour_however_long_the_start_took() -> None:
    world = serving_plain(World().edit(serve={"startTimeout": "2h"}))
    world.pods(1, Pod("p", world.now, "Running", started_at=world.now)).later(7201).settle()
    assert world.replicas == {0: 1, 1: 0}
    assert world.reason("RevisionProven") == ("False", Reason.STARTUP_HUNG)
    assert "is tried again in an hour" in world.condition("RevisionProven").message
    decision = world.later(1800).step()
    assert decision.requeue_after == 1800.0, "nobody calls when the hour is over"
    assert world.later(1799).settle().replicas == {0: 1, 1: 0}
    assert world.later(2).settle().replicas == {0: 1, 1: 1}
    world.pods(1, Pod("p", world.now, "Running", started_at=world.now)).later(7201).settle()
    assert world.later(3599).settle().replicas == {0: 1, 1: 0}, "and so is the next"


# -------------------------------------------------------------------------------------------------- what is told of it


def test_what_is_not_tried_while_everything_is_looked_at_again_does_not_seem_to_be_measured() -> None:
    world = serving_plain().ready(1)
    assert (world.told.revisions[1].state, world.told.revisions[1].reason) == ("Probing", Reason.PROBING)
    world.edit(data={"maxLength": 1024}).settle()
    assert world.replicas == {0: 1, 1: 0}
    told = world.told.revisions[1]
    assert (told.state, told.reason) == ("Waiting", Reason.PENDING)
    assert told.message == "waits until the target, the data and the draft are known again"
    for stage in ("inspect", "extract", "train"):
        world.finish(stage)
    world.finish("convert", converted("e" * 64))
    assert world.told.revisions[1].message == "superseded: the spec now asks for another revision"


def test_what_is_suspended_before_it_is_started_does_not_seem_to_start() -> None:
    world = serving_plain().edit(suspend=True, serve={"maxRunningRequests": 7}).settle()
    told = world.told.revisions[-1]
    assert (told.number, told.state, told.reason) == (2, "Waiting", Reason.SUSPENDED)
    assert not [event for event in world.events if event.message.startswith("r2 is started")]
    assert world.told.revisions[1].reason is Reason.PENDING
