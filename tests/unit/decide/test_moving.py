"""What moves the Service to a revision that is proven already, with how many pods, and who is asked before."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from eagle3_api.conditions import EventReason, Reason
from eagle3_api.jobs import Facts, LoadResult, ProbeResult, Report, StageName
from eagle3_api.status import Template
from eagle3_operator.cluster.status import available
from eagle3_operator.observation import Pod, Service
from unit.decide.world import World, serving_draft, serving_plain, stamp, trained
from unit.samples import FROM_A_HUB, measured

# ------------------------------------------------------------------------------------------- a proven revision comes back


def rejected(world: World) -> World:
    """r1 serves; r2, the same draft with fewer steps, was measured at 1.02x, below the bar."""
    serving_draft(world).later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    waits = world.condition("Ready").reason is Reason.AWAITING_APPROVAL
    if waits:
        world.approve().settle()
    world.ready(2).finish("probe", measured(accept=1.9, speed=92.0))
    if world.seen.deployments[1].ready_replicas == 0:
        world.ready(1)
    world.annotations.clear()
    assert (world.serving, world.told.revisions[2].state) == (1, "Rejected")
    return world


def test_a_proven_revision_takes_the_place_of_what_serves_only_with_a_persons_word() -> None:
    """A lower bar is an edit of one number; it must not cost the Service."""
    world = rejected(World(room=1).edit(serve={"surge": "Never"}))
    world.edit(probe={"minSpeedup": 1.0}).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 1, 2: 0})
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert world.reason("RevisionProven") == ("True", Reason.PROVEN)
    assert world.reason("Stalled") == ("True", Reason.AWAITING_APPROVAL)
    world.approve().settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    assert world.ready(2).serving == 2
    assert world.reason() == ("True", Reason.SERVING)


@pytest.mark.parametrize("traffic", [False, True], ids=["no traffic yet", "traffic"])
def test_a_bar_that_is_raised_over_what_serves_costs_no_pod_without_a_persons_word(traffic: bool) -> None:
    """11 in place of 1.1 is an edit of one number, too."""
    world = serving_draft(World(room=1).edit(serve={"surge": "Never"})).later(700).settle()
    for _ in range(3 * traffic):
        world.window()
    outages = world.outages
    world.edit(probe={"minSpeedup": 11}).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 1})
    assert world.reason() == world.reason("RevisionProven") == ("False", Reason.SLOWER_THAN_BASELINE)
    assert world.reason("Stalled")[0] == "True"
    assert "It keeps serving meanwhile. r0 finds no free GPU beside r1" in world.condition("Ready").message
    world.edit(probe={"minSpeedup": 1.1}).settle()
    assert (world.reason()[0], world.serving, world.outages) == ("True", 1, outages)
    world.edit(probe={"minSpeedup": 11}).settle().approve().settle()
    assert world.replicas == {0: 1, 1: 0}
    assert world.ready(0).serving == 0


@pytest.mark.parametrize(
    ("measurement", "policy", "reason"),
    [
        ({"different": 9, "compared": 32, "baselineDifferent": 0}, {"lossless": True}, Reason.NOT_LOSSLESS),
        ({"acceptLength": 2.3}, {"parityBand": 0.1}, Reason.PARITY_MISMATCH),
    ],
    ids=["answers differ", "features differ"],
)
def test_a_draft_that_serves_and_is_wrong_by_a_stricter_policy_is_left_without_a_word(
    measurement: dict[str, Any], policy: dict[str, Any], reason: Reason
) -> None:
    """It gains enough, so this is no matter of the bar: each hour that a person is waited for it answers otherwise than promised."""
    former = {"lossless": False, "parityBand": 0.5}
    world = serving_draft(World(room=1).edit(serve={"surge": "Never"}, probe=former)).later(700).settle()
    world.status["revisions"][1]["probe"].update(measurement)
    assert world.settle().replicas == {0: 0, 1: 1}
    world.edit(probe=policy).settle()
    assert world.reason("RevisionProven") == ("False", reason)
    assert world.replicas == {0: 1, 1: 0}
    assert world.ready(0).serving == 0


def test_what_serves_below_a_raised_bar_is_left_at_once_when_it_costs_time() -> None:
    world = serving_draft(World(room=1).edit(serve={"surge": "Never"})).later(700).settle()
    world.edit(probe={"minSpeedup": 11}).settle()
    for _ in range(3):
        world.window(verify=2900)
    assert world.replicas == {0: 1, 1: 0}


def test_what_serves_below_a_raised_bar_is_left_for_what_is_ready_while_another_is_tried() -> None:
    world = serving_draft()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    assert world.replicas == {0: 1, 1: 1, 2: 1}, "r0 is still warm, and r2 is tried"
    world.edit(probe={"minSpeedup": 11}).settle()
    assert world.serving == 0


def test_a_proven_revision_is_patient_beside_what_serves_before_it_asks_for_its_place() -> None:
    world = rejected(World(room=2))
    world.room = 1
    world.edit(probe={"minSpeedup": 1.0}).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 1, 2: 1})
    assert world.reason() == ("False", Reason.UNSCHEDULABLE)
    world.later(119).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 1, 2: 1})
    world.later(2).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 1, 2: 0})
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)


def test_what_took_the_place_of_the_serving_one_once_looks_for_room_beside_it_the_next_time() -> None:
    world = serving_draft(World(room=1).edit(autoApply="Always")).ready(1).later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle().later(121).settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.ready(2).finish("probe", measured(accept=1.9, speed=92.0)).ready(1)
    assert (world.serving, world.told.revisions[2].state) == (1, "Rejected")
    world.room = 2
    world.edit(probe={"minSpeedup": 1.0}).settle()
    assert world.replicas == {0: 0, 1: 1, 2: 1}


def test_where_nothing_moves_by_itself_a_proven_revision_does_not_either() -> None:
    world = rejected(World().edit(autoApply="Never"))
    world.edit(probe={"minSpeedup": 1.0}).settle()
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert world.approve().settle().ready(2).serving == 2


def test_a_proven_revision_is_not_started_while_the_object_is_suspended() -> None:
    world = rejected(World())
    world.edit(probe={"minSpeedup": 1.0}, suspend=True).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 1, 2: 0})
    assert world.reason() == ("False", Reason.SUSPENDED)


def test_a_proven_revision_that_took_the_place_and_is_never_started_gives_it_back() -> None:
    world = rejected(World(room=1).edit(serve={"surge": "Never", "startTimeout": "20m"}))
    world.edit(probe={"minSpeedup": 1.0}).settle().approve().settle()
    world.pods(2, Pod("x", world.now, waiting_reason="ErrImagePull", waiting_message="not found"))
    world.later(1199).settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.later(2).settle()
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    assert world.reason("RevisionProven") == ("False", Reason.IMAGE_PULL)
    assert world.ready(1).later(86400).settle().replicas == {0: 0, 1: 1, 2: 0}


def test_one_word_covers_a_new_way_of_serving_and_nothing_that_comes_later() -> None:
    """The annotation stays on the object for years."""
    world = serving_draft(World(room=1).edit(serve={"surge": "Never"})).later(700).settle()
    world.edit(serve={"maxRunningRequests": 7}).settle()
    world.approve().settle().ready(2).finish("probe", measured())
    assert world.replicas == {0: 0, 1: 0, 2: 0, 3: 1}, "its draft has the same word"
    world.ready(3).finish("probe", measured(accept=2.71, speed=126.9))
    assert world.serving == 3
    for steps in (2, 4):
        world.edit(serve={"speculative": {"numSteps": steps, "numDraftTokens": steps + 1}}).settle()
        assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
        assert world.replicas[3] == 1


def test_a_word_that_is_used_up_does_not_bring_its_revision_back_on_another_day() -> None:
    world = serving_draft(World(room=1).edit(serve={"surge": "Never"})).later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle().approve().settle()
    word = world.annotations["eagle3.dev/approve"]
    world.ready(2).finish("probe", measured(accept=2.5, speed=110.0))
    assert world.serving == 2
    world.later(86400).window(verify=2900)
    world.window(verify=2900)
    assert world.ready(1).serving == 1, "the watch goes back"
    world.later(86400).edit(watch={"mode": "Observe"}).settle()
    assert world.serving == 1
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert world.told.handled.approve == word
    assert world.approve().annotations["eagle3.dev/approve"] != word, "the same word would change nothing"
    assert world.settle().ready(2).serving == 2


def test_a_word_holds_while_target_and_data_are_inspected_again() -> None:
    world = serving_draft(World(room=1).edit(serve={"surge": "Never"})).later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle().approve().settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.annotations["eagle3.dev/retry"] = "inspect@1"
    assert world.settle().replicas == {0: 0, 1: 1, 2: 0}
    world.finish("inspect")
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    assert world.reason() == ("False", Reason.SERVER_STARTING)
    world.ready(2).finish("probe", measured(accept=2.5, speed=110.0))
    assert (world.serving, world.told.handled.approve) == (2, world.annotations["eagle3.dev/approve"])


def test_a_word_is_used_up_by_what_serves_also_while_target_and_data_are_inspected_again() -> None:
    world = serving_draft(World(room=1).edit(serve={"surge": "Never"})).later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle().approve().settle().ready(2)
    job, result = world.job("probe"), measured(accept=2.5, speed=110.0)
    report = Report(stage=StageName.PROBE, key=job.key, ok=True, result=result.to_json())
    world._put_job(replace(job, complete=True, finished_at=world.now, report=report))
    world.step()
    world.step()
    assert (world.serving, world.told.handled.approve) == (2, None)
    world.annotations["eagle3.dev/retry"] = "inspect@1"
    assert world.settle().job("inspect").finished is False
    assert (world.serving, world.told.handled.approve) == (2, world.annotations["eagle3.dev/approve"])


def test_a_word_is_used_up_where_the_look_at_target_and_data_fails() -> None:
    """What served is back by then, and a correction may come on another day."""
    world = serving_draft(World(room=1).edit(serve={"surge": "Never"})).later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle().approve().settle()
    world.annotations["eagle3.dev/retry"] = "inspect@1"
    world.settle().fail("inspect", Reason.DATA_UNREADABLE, "it has no conversation").ready(1)
    assert world.told.handled.approve == world.annotations["eagle3.dev/approve"]
    world.annotations["eagle3.dev/retry"] = "inspect@2"
    world.settle().finish("inspect")
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 1, 2: 0})


# -------------------------------------------------------------------------------------- what serves is measured again


def test_a_revision_that_serves_again_is_judged_by_what_it_does_from_then_on() -> None:
    """One bad window before an edit and one after it was taken back, weeks later, were two bad ones in a row."""
    world = serving_draft(World()).later(700).settle()
    world.window(verify=2900)
    fewer, as_before = ({"numSteps": steps, "numDraftTokens": steps + 1} for steps in (2, 3))
    world.edit(serve={"speculative": fewer}).settle()
    world.ready(2).finish("probe", measured(accept=2.5, speed=120.0))
    assert world.serving == 2
    world.later(14 * 86400).edit(serve={"speculative": as_before}).settle().ready(1)
    assert (world.serving, world.reason("DraftHealthy")) == (1, ("Unknown", Reason.WARMING_UP))
    world.window(verify=2900)
    assert world.serving == 1
    world.window(verify=2900)
    assert world.serving != 1


def test_a_baseline_that_serves_is_measured_by_another_of_its_kind() -> None:
    """Its own traffic would make every measurement of it worthless, and the next draft wait for ever."""
    world = serving_plain().ready(1).finish("probe", measured(accept=1.0, speed=54.8))
    assert world.serving == 0
    world.edit(probe={"concurrency": 8}).settle()
    assert world.replicas == {0: 1, 1: 0, 2: 1}
    world.ready(2)
    assert [job.revision for job in world.jobs("probe") if not job.finished] == [2]
    world.finish("probe", measured(concurrency=8))
    assert world.serving == 0, "of two of one kind it is not moved away from"
    assert world.replicas == {0: 1, 1: 1, 2: 0}
    world.ready(1).finish("probe", measured(accept=2.71, speed=126.9, concurrency=8))
    assert world.serving == 1


def test_a_load_that_is_edited_measures_the_draft_again_too() -> None:
    world = serving_draft().edit(probe={"concurrency": 8}).settle()
    world.ready(0).finish("probe", measured(concurrency=8))
    assert (world.serving, world.replicas[2]) == (1, 1)
    assert world.reason() == ("False", Reason.SERVER_STARTING)
    world.ready(2).finish("probe", measured(accept=2.71, speed=126.9, concurrency=8))
    assert (world.serving, world.reason()) == (2, ("True", Reason.SERVING))


def at_loads(*loads: int, accept: float | None = None, speed: float = 90.0) -> ProbeResult:
    """Measured at one request and at further loads, as fast at each."""
    one = measured(accept=accept, speed=speed)
    return one.model_copy(
        update={
            "loads": [
                LoadResult(**one.model_dump(include={*LoadResult.model_fields}) | {"concurrency": n}) for n in loads
            ]
        }
    )


def test_a_load_that_is_added_is_measured_of_baseline_and_draft_and_one_that_is_taken_away_is_kept() -> None:
    world = serving_draft().edit(probe={"loads": [32, 8]}).settle()
    world.ready(0)
    assert '"loads":[8,32]' in str(world.applied_job("probe")["spec"]["template"]["metadata"]["annotations"])
    world.finish("probe", at_loads(8, 32))
    assert (world.serving, world.replicas[2]) == (1, 1), "what serves is not measured itself"
    world.ready(2).finish("probe", at_loads(8, 32, accept=2.71, speed=126.9))
    assert (world.serving, world.reason()) == (2, ("True", Reason.SERVING))
    jobs = len(world.jobs("probe"))
    for loads in ([8], [], [32, 1]):
        world.edit(probe={"loads": loads}).settle()
        assert (world.serving, world.reason(), len(world.jobs("probe"))) == (2, ("True", Reason.SERVING), jobs)
        assert [at.concurrency for at in (world.told.revisions[2].probe or measured()).loads] == [8, 32]


def test_a_measurement_that_lacks_a_load_is_none() -> None:
    world = trained(World().edit(probe={"loads": [8]})).ready(0).finish("probe", at_loads(16))
    assert world.told.revisions[0].probe is None
    assert "it measured at concurrency 1, 16 with prompts pppppppp, but concurrency 1, 8" in (
        world.told.revisions[0].probe_problem
    )


def test_a_draft_that_is_too_slow_under_the_new_load_is_left_although_it_was_proven_under_the_former() -> None:
    world = serving_draft().edit(probe={"concurrency": 8}).settle()
    world.ready(0).finish("probe", measured(concurrency=8))
    world.ready(2).finish("probe", measured(accept=2.71, speed=60.0, concurrency=8))
    assert world.ready(0).serving == 0
    assert world.reason("RevisionProven") == ("False", Reason.SLOWER_THAN_BASELINE)
    told = [event.message for event in world.events if event.reason == "RolledBack"]
    assert len(told) == 1
    assert "SlowerThanBaseline: r2: accept length" in told[0]
    assert world.replicas == {0: 1, 1: 0, 2: 0}


def test_a_rejected_draft_is_measured_again_under_another_load() -> None:
    world = serving_plain().ready(1).finish("probe", measured(accept=1.0, speed=54.8))
    world.later(700).edit(probe={"concurrency": 8}).settle().ready(2).finish("probe", measured(concurrency=8))
    assert world.ready(1).job("probe").revision == 1


@pytest.mark.parametrize("surge", ["IfFree", "Never"])
def test_a_retry_of_what_serves_costs_no_outage(surge: str) -> None:
    world = serving_draft(World(room=2).edit(serve={"surge": surge})).later(700).settle()
    before = world.outages
    world.annotations["eagle3.dev/retry"] = "r1@again"
    world.settle()
    assert (world.serving, world.outages, world.replicas[1]) == (1, before, 1)
    if surge == "Never":
        assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
        return
    world.ready(2).finish("probe", measured(accept=2.6, speed=120.0))
    assert (world.serving, world.outages) == (2, before)


# ----------------------------------------------------------------------------------------------- Deployments that are gone


def without_deployment(world: World, number: int) -> World:
    """Somebody deletes it."""
    world._delete("Deployment", f"kimi-r{number}")
    return world.settle()


def test_a_retired_revision_whose_deployment_is_gone_is_still_the_last_resort() -> None:
    world = without_deployment(serving_draft().later(700).settle(), 0)
    assert world.replicas == {1: 1}
    world.window(verify=2900)
    world.window(verify=2900)
    assert world.replicas == {0: 1, 1: 1}
    assert world.ready(0).serving == 0


def test_what_the_object_describes_no_more_is_not_made_again_from_what_it_describes_now() -> None:
    """Under the proof of the old one something else would serve."""
    world = serving_draft().later(700).settle().edit(image="lmsysorg/sglang:v0.5.24").settle()
    world = without_deployment(world, 1)
    assert 1 not in world.replicas
    assert world.ready(0).serving == 0, "which is still there as it was proven"
    world.finish("inspect").ready(2).finish("probe", measured())
    world.ready(3).finish("probe", measured(accept=2.71, speed=126.9))
    assert world.serving == 3
    images = {
        made["metadata"]["name"]: made["spec"]["template"]["spec"]["containers"][0]["image"]
        for made in world.applied
        if made["kind"] == "Deployment"
    }
    assert {name: image[-2:] for name, image in images.items()} == {
        "kimi-r0": "23",
        "kimi-r1": "23",
        "kimi-r2": "24",
        "kimi-r3": "24",
    }


def test_where_nothing_proven_is_left_the_new_one_is_proven_without_asking_for_a_place_that_nobody_has() -> None:
    world = serving_draft(World(room=1).edit(serve={"surge": "Never"})).later(700).settle()
    world.edit(image="lmsysorg/sglang:v0.5.24").settle()
    without_deployment(without_deployment(world, 0), 1).finish("inspect")
    assert world.replicas == {2: 1}
    assert world.ready(2).finish("probe", measured()).serving == 2


def test_what_serves_is_made_again_as_it_was_proven() -> None:
    world = without_deployment(serving_draft().later(700).settle(), 1)
    assert world.replicas == {0: 0, 1: 1}
    assert world.ready(1).reason() == ("True", Reason.SERVING)
    assert world.served == [0, 1]


def test_a_deployment_that_is_about_to_end_is_waited_for_and_then_made_again() -> None:
    world = serving_draft().later(700).settle()
    world._put(replace(world.seen.deployments[1], terminating=True))
    world.settle()
    decision = world.step()
    assert not [made for made in decision.apply if made["kind"] == "Deployment"]
    assert decision.requeue_after is not None
    assert without_deployment(world, 1).replicas[1] == 1


# --------------------------------------------------------------------------------------------------------- two replicas


def two(room: int, **changes: str) -> World:
    """r1 serves with two pods; r2 is the same draft with fewer steps."""
    serve = {"replicas": 2, "startTimeout": "20m"}
    world = serving_draft(World(room=room).edit(serve=serve, **changes)).ready(1).later(700).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 2})
    return world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()


def some_ready(world: World, number: int) -> World:
    """Of a revision's pods those get ready that have a place."""
    deployment = world.seen.deployments[number]
    pods = [
        pod if pod.unschedulable else replace(pod, phase="Running", ready=True, started_at=world.now)
        for pod in deployment.pods
    ]
    return world.pods(number, *pods)


def test_with_room_for_all_the_service_moves_when_as_many_answer_as_before() -> None:
    world = two(room=4)
    world.ready(2).finish("probe", measured(accept=2.6, speed=120.0))
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 2, 2: 2})
    assert world.reason() == ("False", Reason.SERVER_STARTING)
    assert world.ready(2).serving == 2


def test_with_room_for_one_more_the_pods_take_each_others_place_with_a_persons_word() -> None:
    world = two(room=3)
    some_ready(world, 2).finish("probe", measured(accept=2.6, speed=120.0))
    some_ready(world, 2).later(121).settle()
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert "the Service has 1 of 2 pods meanwhile" in world.condition("Ready").message
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 2, 2: 0})
    world.approve().settle()
    assert world.replicas == {0: 0, 1: 1, 2: 2}
    some_ready(some_ready(world, 2), 1)
    assert (world.serving, world.replicas) == (2, {0: 0, 1: 0, 2: 2})
    assert world.outages == 0


def test_with_no_room_at_all_one_pod_goes_on_serving_all_the_time() -> None:
    world = two(room=2, autoApply="Always").later(121).settle()
    assert world.replicas == {0: 0, 1: 1, 2: 1}
    some_ready(some_ready(world, 2), 1).finish("probe", measured(accept=2.6, speed=120.0))
    some_ready(world, 2)
    assert (world.serving, world.replicas) == (2, {0: 0, 1: 0, 2: 2})
    assert some_ready(world, 2).reason() == ("True", Reason.SERVING)
    assert world.outages == 0


def one_of_two(world: World, number: int, **trouble: object) -> World:
    first = Pod(f"kimi-r{number}-a", world.now, "Running", ready=True, started_at=world.now)
    second = Pod(f"kimi-r{number}-b", world.now, **trouble)  # type: ignore[arg-type]
    return world.pods(number, first, second)


LAME: dict[str, tuple[dict[str, Any], int, Reason]] = {
    "crashes": ({"phase": "Running", "started_at": None, "restarts": 1, "exit_code": 1}, 20, Reason.START_FAILED),
    "has no image": ({"waiting_reason": "ErrImagePull", "waiting_message": "denied"}, 50, Reason.IMAGE_PULL),
}


@pytest.mark.parametrize("case", LAME)
def test_a_revision_one_of_whose_pods_never_gets_ready_is_given_up_and_what_serves_goes_on(case: str) -> None:
    changes, minutes, reason = LAME[case]
    world = two(room=4)
    world.ready(2).finish("probe", measured(accept=2.6, speed=120.0))
    trouble = {name: world.now if name == "started_at" else value for name, value in changes.items()}
    one_of_two(world, 2, **trouble).later(60 * minutes - 1).settle()
    assert (world.serving, world.replicas[2]) == (1, 2)
    world.later(2).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 2, 2: 0})
    assert world.reason("RevisionProven") == ("False", reason)
    assert f"1 of 2 pods are ready after {minutes} min" in world.condition("Ready").message
    assert world.reason("Stalled")[0] == "True"
    assert world.told.revisions[2].state == "Stalled"
    world.later(3601).settle()
    assert world.replicas == {0: 0, 1: 2, 2: 2}, "an hour later it is tried again"
    assert world.ready(2).serving == 2


def test_a_rescue_makes_do_with_the_pods_that_get_ready() -> None:
    world = serving_draft(World().edit(serve={"replicas": 2, "startTimeout": "20m"})).ready(1).later(700).settle()
    world.window(verify=2900)
    world.window(verify=2900)
    one_of_two(world, 0, phase="Running", started_at=world.now)
    assert world.serving == 1, "two bad pods serve more than a good one"
    world.later(1201).settle()
    assert world.serving == 0
    assert world.reason("ServerAvailable") == ("False", Reason.UNAVAILABLE)


def test_servers_that_are_missing_while_the_next_draft_is_trained_are_what_ready_speaks_of() -> None:
    """Days of extraction and training would hide it."""
    world = serving_draft().later(700).settle()
    world.edit(train={"epochs": 9}).settle()
    assert world.reason() == ("False", Reason.EXTRACTING)
    world.pods(1, Pod("p", world.now, "Running", started_at=world.now))
    assert world.reason() == world.reason("ServerAvailable") == ("False", Reason.UNAVAILABLE)
    assert world.condition("Ready").message.startswith("r1: 0 of 1 pods ready")
    assert available(world.status) is False
    world.ready(1)
    assert world.reason() == ("False", Reason.EXTRACTING)
    assert available(world.status) is True


def test_an_outage_is_told_ahead_of_a_job_whose_pod_its_node_does_not_start() -> None:
    world = serving_draft().later(700).settle()
    world.edit(train={"epochs": 9}).settle()
    pod = Pod("kimi-extract-0", world.now, node="gpu-1", placed_at=world.now)
    world._put_job(replace(world.job("extract"), pods=(pod,)))
    assert world.later(1801).settle().reason() == ("False", Reason.POD_NOT_STARTED)
    world.pods(1, Pod("p", world.now, "Running", started_at=world.now))
    assert world.reason() == world.reason("ServerAvailable") == ("False", Reason.UNAVAILABLE)


def test_a_server_that_its_node_does_not_start_stalls_no_training() -> None:
    world = serving_draft(World().edit(serve={"replicas": 2})).ready(1).later(700).settle()
    world.edit(train={"epochs": 9}).settle()
    ready = Pod("kimi-r1-a", world.now, "Running", ready=True, started_at=world.now, ready_since=world.now)
    world.pods(1, ready, Pod("kimi-r1-b", world.now, node="gpu-1", placed_at=world.now))
    world.later(1801).settle()
    assert world.reason() == ("False", Reason.POD_NOT_STARTED)
    assert (world.reason("Reconciling"), world.reason("Stalled")[0]) == (("True", Reason.POD_NOT_STARTED), "False")
    assert world.told.phase == "Extracting"


def test_a_server_that_its_node_does_not_start_is_told_of_after_half_an_hour() -> None:
    """The other one serves, without speculation: there is nothing else to wake the object for."""
    world = serving_plain(World().edit(serve={"replicas": 2})).ready(0, 1).finish("probe", measured(accept=1, speed=50))
    world.later(700).ready(0)
    ready = Pod("kimi-r0-a", world.now, "Running", ready=True, started_at=world.now, ready_since=world.now)
    world.pods(0, ready, Pod("kimi-r0-b", world.now, node="gpu-1", placed_at=world.now))
    assert world.later(1790).step().requeue_after == 11.0
    assert world.reason("ServerAvailable") == ("False", Reason.UNAVAILABLE)
    assert world.later(11).settle().reason("ServerAvailable") == ("False", Reason.POD_NOT_STARTED)
    assert world.last is not None
    assert world.last.requeue_after is None


def test_servers_that_make_room_for_a_training_are_not_missed() -> None:
    world = serving_draft(World().edit(serve={"whileTraining": "ScaleToZero"}, autoApply="Always")).later(700).settle()
    world.edit(train={"epochs": 9}).settle()
    assert world.reason("ServerAvailable") == ("False", Reason.MAKING_ROOM)
    assert world.reason()[1] is not Reason.MAKING_ROOM
    assert available(world.status) is None


@pytest.mark.parametrize(("room", "pods"), [(3, {0: 1, 1: 2}), (2, {0: 0, 1: 2})])
def test_what_serves_grows_and_what_is_only_kept_warm_gives_way_to_it(room: int, pods: dict[int, int]) -> None:
    world = serving_draft(World(room=room)).ready(1)
    assert (world.serving, world.replicas) == (1, {0: 1, 1: 1})
    world.edit(serve={"replicas": 2}).settle()
    assert world.replicas == pods


@pytest.mark.parametrize(
    ("who", "named"),
    [
        (
            "kube-controller-manager",
            "kube-controller-manager (a HorizontalPodAutoscaler) has scaled Deployment kimi-r1",
        ),
        ("kubectl", "kubectl has scaled Deployment kimi-r1"),
    ],
)
def test_who_scales_what_serves_is_overruled_and_told_what_to_scale_instead(who: str, named: str) -> None:
    """An autoscaler tries again and again, and the status is the same after each time."""
    world = serving_draft(World(room=9)).later(700).settle()
    before, pods = world.status, world.replicas
    for _ in range(2):
        world._put(replace(world.seen.deployments[1], replicas=3, scaled_by=who))
        decision = world.step()
        (event,) = decision.events
        assert (event.type, event.reason) == ("Warning", "ScaleOverruled")
        assert event.message.startswith(f"{named} to 3. The operator restored {pods[1]}, as this object asks. ")
        assert (
            "kubectl scale e3d/kimi -n llm --replicas=3, or point the autoscaler's scaleTargetRef at Eagle3Draft kimi"
            in event.message
        )
        world.ready(1).settle()
        assert (world.replicas, world.step().events) == (pods, ())
    assert world.status == before


def test_who_scales_a_revision_that_does_not_serve_is_told_of_too() -> None:
    """Of an autoscaler of r0 nobody heard: its pods came and went, on GPUs of others."""
    world = serving_draft(World(room=9)).later(700).settle()
    world._put(replace(world.seen.deployments[0], replicas=2, scaled_by=None))
    (event,) = world.step().events
    assert (event.type, event.reason, world.replicas[0]) == ("Warning", "ScaleOverruled", 0)
    assert (
        "somebody has scaled Deployment kimi-r0 to 2. The operator restored 0, because r0 does not serve. Scale the Eagle3Draft instead"
        in event.message
    )


def edited(world: World, number: int, to: str = "another image") -> World:
    deployment = world.seen.deployments[number]
    world._put(
        replace(
            deployment,
            edited_by="kubectl-edit",
            edited=("spec.containers[server].command",),
            template=Template(runs=to),
        )
    )
    return world


def test_a_server_that_somebody_edits_is_put_back_and_told_of() -> None:
    """It served on with flags that nobody had measured, and its verdict spoke of others."""
    world = edited(serving_draft().later(700).settle(), 1)
    (event,) = world.step().events
    assert (event.type, event.reason, world.mended) == ("Warning", "ServerEdited", ["kimi-r1"])
    said = "kubectl-edit has changed Deployment kimi-r1 (spec.containers[server].command): what runs is not what was proven"
    assert event.message.startswith(f"{said}. The operator restores it")
    assert world.reason() == world.reason("ServerAvailable") == ("False", Reason.SERVER_EDITED)
    assert world.settle().ready(1).reason() == ("True", Reason.SERVING)
    assert world.mended == ["kimi-r1"]


def test_what_is_written_again_once_it_was_put_back_is_left_and_told_to_a_person() -> None:
    """A policy that rewrites what exists had the server's pods start anew each hour, for ever."""
    world = edited(serving_draft().later(700).settle(), 1).settle().ready(1)
    edited(world.later(60), 1)
    (event,) = world.step().events
    assert "It was restored at 2026" in event.message
    assert world.settle().reason() == ("False", Reason.SERVER_EDITED)
    assert (world.reason("Stalled"), world.reason("Reconciling")[0]) == (("True", Reason.SERVER_EDITED), "False")
    assert (
        "bring back what is proven with: kubectl delete deployment kimi-r1 -n llm"
        in world.condition("ServerAvailable").message
    )
    assert world.last is not None
    assert world.last.events == ()
    assert world.later(86_400).settle().mended == ["kimi-r1"]


def test_another_edit_is_put_back_at_once_and_no_more_than_three_within_an_hour() -> None:
    """A second one, a minute after the first, served for an hour."""
    world = serving_draft().later(700).settle()
    for image in ("one", "two", "three"):
        edited(world.later(60), 1, image).settle().ready(1)
    assert (world.mended, world.reason()) == (["kimi-r1"] * 3, ("True", Reason.SERVING))
    edited(world.later(60), 1, "four").settle()
    assert world.reason() == ("False", Reason.SERVER_EDITED)
    assert world.reason("Stalled")[0] == "False"
    assert world.last is not None
    assert world.last.requeue_after is not None
    assert (world.last.events, world.last.requeue_after <= 3421) == ((), True)
    world.later(3421).settle()
    assert world.mended == ["kimi-r1"] * 4


def test_the_service_does_not_move_to_what_somebody_has_edited_since_it_was_proven() -> None:
    """Between its proof and its last ready pod it was edited, and served so."""
    world = serving_plain(World(room=9).edit(serve={"replicas": 2})).ready(0).ready(1)
    world.finish("probe", measured(accept=2.71, speed=126.9))
    assert (world.replicas[1], world.serving) == (2, 0)
    edited(edited(world, 1).settle(), 1).settle().ready(1)
    assert (world.mended, world.serving) == (["kimi-r1"], 0)
    assert (world.reason(), world.reason("Stalled")[0]) == (("False", Reason.SERVER_EDITED), "True")
    world._put(replace(world.seen.deployments[1], edited_by=None, edited=(), template=Template()))
    assert world.settle().serving == 1


def test_what_is_taken_out_of_a_server_is_put_back() -> None:
    """Of a variable or a probe that is gone no name tells who wrote it: the server ran on without it."""
    world = serving_draft().later(700).settle()
    world._put(replace(world.seen.deployments[1], template=Template(runs="less", fields="fewer")))
    (event,) = world.step().events
    assert "somebody has changed Deployment kimi-r1 (fields are taken out)" in event.message
    assert world.settle().ready(1).mended == ["kimi-r1"]


def test_a_cluster_of_another_version_may_have_other_defaults() -> None:
    """They are in every template that is read from then on, and written by nobody."""
    world = serving_draft().later(700).settle()
    for number, deployment in world.seen.deployments.items():
        world._put(replace(deployment, template=Template(runs="more")))
        assert world.settle().told.revisions[number].template == world.seen.deployments[number].template
    assert (world.mended, world.reason()) == ([], ("True", Reason.SERVING))


def test_what_somebody_puts_back_himself_is_left() -> None:
    """It is what was proven, whoever wrote it last; its pods need no further start, and the edit before it may be made again."""
    world = edited(serving_draft().later(700).settle(), 1, "")
    assert (world.settle().mended, world.reason()) == ([], ("True", Reason.SERVING))


def test_a_candidate_that_somebody_edits_is_not_measured_so() -> None:
    """What was measured was another server, and its proof the word by which the draft was served."""
    world = edited(trained(World()).ready(0), 0).settle()
    assert (world.mended, world.jobs("probe")) == (["kimi-r0"], []), "what it measured is lost"
    edited(world.ready(0), 0).settle()
    assert world.jobs("probe") == []
    assert world.reason("RevisionProven") == ("Unknown", Reason.SERVER_EDITED)
    assert world.reason("Stalled") == ("True", Reason.SERVER_EDITED)
    assert [event.reason for event in world.events].count(EventReason.SERVER_EDITED) == 2
    world._put(replace(world.seen.deployments[0], edited_by=None, edited=(), template=Template()))
    assert world.settle().finish("probe", measured()).serving == 0


def test_an_edited_server_that_the_object_does_not_say_how_to_make_serves_on_and_another_goes() -> None:
    world = serving_draft().later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 4}}).settle()
    edited(edited(world, 1), 0).settle()
    assert (world.mended, world.serving) == (["kimi-r0"], 1)
    said = world.condition("ServerAvailable")
    assert (said.status, said.reason) == ("False", Reason.SERVER_EDITED)
    assert "It keeps serving like that" in said.message
    assert "kubectl delete deployment kimi-r1 -n llm" in said.message
    assert [event.reason for event in world.events].count(EventReason.SERVER_EDITED) == 2

    world = serving_draft().later(700).settle()
    world.edit(serve={"arguments": ["--log-level", "debug"]}).settle()
    edited(world, 0).settle()
    assert (0 in world.seen.deployments, world.mended) == (False, [])


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, lambda world: world.later(7000)),
        (1, lambda world: world.edit(serve={"replicas": 2})),
        (1, lambda world: world.edit(serve={"whileTraining": "ScaleToZero"}, train={"epochs": 9}, autoApply="Always")),
    ],
    ids=["warm no more", "edited", "making room"],
)
def test_who_wrote_the_number_that_was_wanted_is_not_overruled_once_another_is(
    number: int, change: Callable[[World], World]
) -> None:
    """A backup that is restored, or a person who agreed."""
    world = serving_draft(World(room=9)).later(10)
    before = world.replicas
    world._put(replace(world.seen.deployments[number], scaled_by="velero-server"))
    world.events.clear()
    change(world).settle()
    assert world.replicas[number] != before[number]
    assert EventReason.SCALE_OVERRULED not in {event.reason for event in world.events}


def test_an_object_that_is_scaled_overrules_nobody() -> None:
    world = serving_draft(World(room=3)).ready(1)
    assert [event.reason for event in world.edit(serve={"replicas": 2}).step().events] == []


# --------------------------------------------------------------------------------------- a quota that lets no pod be made


def refuse(world: World, number: int) -> World:
    """A quota lets the revision have no pods."""
    deployment = replace(world.seen.deployments[number], pods=(), ready_replicas=0)
    refused = replace(deployment, refused="exceeded quota: gpus", refused_since=world.now)
    world._put(refused)
    return world.settle()


def test_a_rescue_takes_the_quota_of_what_serves() -> None:
    world = serving_draft(World()).later(700).settle()
    world.window(verify=2900)
    world.window(verify=2900)
    assert world.replicas == {0: 1, 1: 1}
    assert refuse(world, 0).replicas == {0: 1, 1: 0}
    assert world.ready(0).serving == 0


def test_a_candidate_without_quota_says_so_and_takes_that_of_what_serves_after_some_patience() -> None:
    world = serving_draft(World().edit(autoApply="Always")).later(700).settle()
    refuse(world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle(), 2)
    assert world.reason() == ("False", Reason.UNSCHEDULABLE)
    assert "exceeded quota: gpus" in world.condition("Ready").message
    assert world.later(119).settle().replicas == {0: 0, 1: 1, 2: 1}
    assert world.later(2).settle().replicas == {0: 0, 1: 0, 2: 1}


# ------------------------------------------------------------------------------------------ a rescue before a candidate

#: Pods that there is room for, how the object serves, and what r0, r1 and r2 get while r1 is left for r0.
TRIED_WHILE_RESCUED: dict[str, tuple[int, dict[str, Any], dict[int, int]]] = {
    "beside what is left": (2, {"replicas": 1}, {0: 1, 1: 1, 2: 0}),
    "in the place of what is left": (2, {"replicas": 2, "surge": "Never"}, {0: 2, 1: 1, 2: 0}),
}


@pytest.mark.parametrize("case", TRIED_WHILE_RESCUED)
def test_a_rescue_has_its_pods_before_the_candidate_which_is_tried_after_it(case: str) -> None:
    room, serve, pods = TRIED_WHILE_RESCUED[case]
    world = serving_draft(World(room=room).edit(serve=serve, autoApply="Always")).ready(1).later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    assert world.replicas[2] == 1, "r2 is tried"
    world.window(verify=2900)
    world.window(verify=2900)
    assert world.replicas == pods
    assert world.condition("RevisionProven").message == "r0 is starting and will take over; r2 is tried after that"
    world.ready(0)
    assert (world.serving, world.replicas[2]) == (0, 1), "then it is tried again"


def test_a_rescue_that_finds_no_place_says_so_and_after_a_day_calls_somebody() -> None:
    world = serving_draft(World(room=1).edit(autoApply="Always")).later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}})
    world.room = 0  # the node of r1 is lost with all that ran there
    world._delete("Deployment", "kimi-r1")
    world.settle()
    assert (world.serving, world.replicas) == (1, {0: 1})
    assert world.reason() == ("False", Reason.UNSCHEDULABLE)
    assert "pod kimi-r0-0 finds no node" in world.condition("Ready").message
    assert world.condition("Stalled").status == "False", "another node may come"
    assert world.later(90_000).settle().condition("Stalled").status == "True"
    world.room = 1
    world.end_lost_pods().settle()
    assert world.condition("Ready").message == "r0 is starting and will take over; r2 is tried after that"
    assert world.ready(0).serving == 0
    assert world.replicas[2] == 1, "then it is tried"


def test_what_serves_with_a_pod_that_finds_no_place_for_a_day_calls_somebody() -> None:
    world = serving_draft(World(room=2).edit(serve={"replicas": 2}, autoApply="Always")).ready(1).later(700).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 2})
    good, other = world.seen.deployments[1].pods
    said = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    lost = Pod(other.name, world.now, unschedulable=said, unschedulable_since=world.now)
    world.pods(1, good, lost)
    assert world.reason() == ("False", Reason.UNSCHEDULABLE)
    assert world.condition("Stalled").status == "False"
    assert world.later(90_000).settle().condition("Stalled").status == "True"
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 2}), "the other pod serves on"


def test_a_probe_that_a_rescue_cuts_short_is_no_try() -> None:
    world = serving_draft(World().edit(autoApply="Always")).later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle().ready(2)
    assert world.job("probe").revision == 2
    world.window(verify=2900)
    world.window(verify=2900)
    assert world.replicas[2] == 0
    assert [job.name for job in world.jobs("probe") if not job.finished] == [], "it would fail without its server"
    world.ready(0).ready(2)
    assert world.serving == 0
    assert world.told.revisions[2].probe_errors == 0
    world.finish("probe", measured(accept=2.71, speed=126.9))
    assert world.serving == 2


def test_a_probe_that_is_cut_short_because_the_object_is_suspended_is_no_try() -> None:
    world = serving_draft(World(room=1).edit(autoApply="Always", serve={"surge": "Never"}))
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle().ready(2)
    world.edit(suspend=True).settle()
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    world.ready(1).edit(suspend=False).settle().ready(2)
    assert world.told.revisions[2].probe_errors == 0
    assert world.finish("probe", measured(accept=2.71, speed=126.9)).serving == 2


# --------------------------------------------------------------------------------------------- what serves and crashes


def crashing(world: World, number: int = 1) -> World:
    pod = Pod("p", world.now, "Running", started_at=world.now, restarts=7, exit_code=1)
    return world.pods(number, pod, log=("torch.AcceleratorError: an illegal memory access was encountered",))


def test_a_draft_that_crashes_again_and_again_under_traffic_is_left_after_the_time_of_a_start() -> None:
    world = serving_draft(World().edit(serve={"startTimeout": "20m"})).later(700).settle()
    crashing(world).later(1199).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 1})
    world.later(2).settle()
    assert world.replicas == {0: 1, 1: 1}
    assert world.ready(0).serving == 0
    assert world.replicas == {0: 1, 1: 0}
    assert world.reason("RevisionProven") == ("False", Reason.START_FAILED)
    said = world.condition("RevisionProven").message
    assert "none of its pods has stayed ready for the last 20 min" in said
    assert "illegal memory access" in said
    assert (
        "r0 is serving; r1 is tried again when the spec changes, or by: kubectl annotate e3d kimi -n llm eagle3.dev/retry=r1@"
        in said
    )
    assert [event.type for event in world.events if event.reason == "RolledBack"] == ["Warning"]
    world.later(86400).settle()
    assert world.replicas == {0: 1, 1: 0}, "it would crash again"
    world.annotations["eagle3.dev/retry"] = "r1@mended"
    assert world.settle().replicas == {0: 1, 1: 1}
    assert world.ready(1).finish("probe", measured(accept=2.71, speed=126.9)).serving == 1


def test_a_server_that_is_ready_for_a_moment_between_its_crashes_is_left_and_what_comes_for_it_is_not_given_up() -> (
    None
):
    world = serving_draft(World().edit(serve={"startTimeout": "20m"})).later(700).settle()
    for _ in range(5):
        crashing(world).later(240).settle()
        world.ready(1).later(10).settle()
    assert crashing(world).replicas == {0: 1, 1: 1}
    assert world.ready(1).later(301).settle().replicas == {0: 1, 1: 1}
    assert world.ready(0).serving == 0


def test_a_server_that_restarts_within_its_time_is_not_left() -> None:
    world = serving_draft(World().edit(serve={"startTimeout": "20m"})).later(700).settle()
    for _ in range(3):
        crashing(world).later(1100).settle()
        world.ready(1).later(600).settle()
    assert (world.serving, world.replicas) == (1, {0: 0, 1: 1})
    assert world.told.revisions[1].unready_since is None


def test_a_server_that_crashes_and_has_nothing_to_be_left_for_goes_on_trying() -> None:
    world = (
        serving_plain(World().edit(serve={"startTimeout": "20m"}))
        .ready(1)
        .finish("probe", measured(accept=1.0, speed=50.0))
    )
    crashing(world, 0).later(7200).settle()
    assert (world.serving, world.replicas) == (0, {0: 1, 1: 0})
    assert world.reason("ServerAvailable") == ("False", Reason.UNAVAILABLE)
    world.ready(0).later(301).settle()
    assert world.told.revisions[0].state == "Serving"


# ------------------------------------------------------------------------------------------- a target that is fetched again


def found_in(path: str) -> Facts:
    """What Inspect says of a target that was fetched to this folder."""
    fetched = FROM_A_HUB.fetched
    assert fetched is not None
    assert fetched.target is not None
    target = fetched.target.model_copy(update={"path": path})
    return FROM_A_HUB.model_copy(update={"fetched": fetched.model_copy(update={"target": target})})


@pytest.mark.parametrize("made_by", ["this version", "an earlier one"])
def test_a_target_that_was_fetched_to_another_folder_is_no_fault_of_the_server_that_reads_the_former(
    made_by: str,
) -> None:
    world = World().settle().finish("inspect", found_in("/eagle3/models/first"))
    for stage in ("extract", "train", "convert"):
        world.finish(stage)
    world.ready(0).finish("probe", measured()).ready(1).finish("probe", measured(accept=2.71, speed=126.9))
    if made_by == "an earlier one":
        world.status["revisions"] = [{**r, "model": None} for r in world.status["revisions"]]
    world.annotations["eagle3.dev/retry"] = "inspect@again"
    world.settle().finish("inspect", found_in("/eagle3/models/second"))
    world.later(700).edit(probe={"concurrency": 8}).settle().ready(0)
    asked = str(world.applied_job("probe")["spec"]["template"]["metadata"]["annotations"])
    assert ("/eagle3/models/first" in asked) == (made_by == "this version")
    assert "/eagle3/models/second" not in asked


def test_a_measurement_of_something_else_than_was_asked_is_none_and_is_not_made_for_ever() -> None:
    world = serving_plain().ready(1)
    for _ in range(3):
        world.finish("probe", measured(accept=2.71, speed=126.9, concurrency=64))
    assert world.reason("RevisionProven") == ("False", Reason.PROBE_ERROR)
    assert "it measured at concurrency 64" in world.condition("RevisionProven").message


def test_a_settled_object_of_an_earlier_version_is_left_as_it_is() -> None:
    """Its status lacks what is new and has what is no more."""
    world = serving_draft(World().edit(serve={"surge": "Never"})).later(700).settle()
    new = ("model", "failedAt", "unreadySince")
    former = [{name: value for name, value in r.items() if name not in new} for r in world.status["revisions"]]
    world.status["revisions"] = [{**revision, "watchedAt": "2026-11-29T12:00:00Z"} for revision in former]
    world.status["handled"] = {"noMore": "r1@00000000"}
    decision = world.step()
    assert not (decision.apply or decision.delete or decision.scale or decision.events)
    assert world.reason() == ("True", Reason.SERVING)
    assert [revision.probe is not None for revision in world.told.revisions] == [True, True]


# ---------------------------------------------------------------------------------------- moves that were not written down


def selected(world: World, number: int) -> World:
    """The public Service selects a revision, and no status says so."""
    public = Service(world.name, number)
    world.seen = replace(world.seen, services={**world.seen.services, world.name: public})
    return world


def test_a_move_whose_status_write_was_lost_is_made_good() -> None:
    """The Service moved to r1, and then somebody else's write of the object came first."""
    world = serving_plain().ready(1).later(30)
    world.loses_next_move = True
    world.finish("probe", measured(accept=2.71, speed=126.9))
    former, serving = world.told.revisions
    assert serving.promoted_at == stamp(world.now), "it is watched from now on"
    assert former.bakes_until == stamp(world.now + timedelta(minutes=10)), "and its former keeps its pods"
    assert world.replicas == {0: 1, 1: 1}
    assert [e.message for e in world.events if e.reason == "Promoted"] == [
        "Service kimi serves r0",
        "Service kimi moved from r0 to r1",
    ]


def test_a_rollback_whose_status_write_was_lost_begins_its_cooldown_all_the_same() -> None:
    world = serving_draft()
    world.window(verify=2900)
    world.loses_next_move = True
    world.window(verify=2900)
    assert world.served[:3] == [0, 1, 0]
    assert (world.serving, world.told.handled.rollback) == (0, stamp(world.now))


def test_a_selector_that_somebody_edited_to_a_rejected_revision_is_taken_back() -> None:
    world = selected(rejected(World()), 2)
    world.settle()
    assert world.serving == 1
    assert world.told.revisions[1].promoted_at == stamp(world.now)
    assert world.told.revisions[1].bakes_until is None
