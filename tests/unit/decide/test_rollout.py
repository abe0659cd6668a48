"""Roll-out, probe, promotion, rollback."""

from dataclasses import replace
from typing import Any

import pytest

from eagle3_api.conditions import EventReason, Reason
from eagle3_api.jobs import LoadResult, Mismatch, Report, StageName
from eagle3_operator.observation import Deployment, Pod
from unit.decide.world import START, World, serving_draft, serving_plain, stamp, trained
from unit.samples import FACTS, converted, measured


def broken_draft(world: World) -> World:
    """A second draft is adopted; r2 is started with it."""
    world.edit(draft={"checkpoint": "/drafts/broken"}).settle()
    world.finish("inspect", FACTS.model_copy(update={"checkpoint_digest": "c1"}))
    return world.finish("convert", converted("b" * 64, expected=None))


def test_the_plain_revision_comes_first_and_is_measured_before_it_serves() -> None:
    world = trained()
    assert world.replicas == {0: 1}
    assert world.serving is None
    assert world.reason() == ("False", Reason.SERVER_STARTING)
    world.ready(0)
    assert world.reason() == ("False", Reason.MEASURING_BASELINE)
    assert world.serving is None
    world.finish("probe", measured())
    assert world.serving == 0


def test_the_draft_revision_gets_traffic_only_after_its_probe_passed() -> None:
    world = serving_plain()
    assert world.replicas == {0: 1, 1: 1}
    assert world.serving == 0
    world.ready(1)
    assert world.reason() == ("False", Reason.PROBING)
    assert world.serving == 0
    world.finish("probe", measured(accept=2.71, speed=126.9))
    assert world.serving == 1
    assert world.served == [0, 1]
    assert world.reason("RevisionProven") == ("True", Reason.PROVEN)


def test_a_proven_serving_draft_is_ready_with_its_columns() -> None:
    world = serving_draft()
    assert world.reason() == ("True", Reason.SERVING)
    assert world.told.phase == "Serving"
    columns = (world.told.revision, world.told.accept, world.told.speedup, world.told.baseline)
    assert columns == ("r1", "2.71", "1.41x", "90.0 tok/s")
    assert world.told.draft == "sha256:dddddddd…"
    titles = [event.reason for event in world.events]
    assert titles.count(EventReason.PROMOTED) == 2
    assert titles.count(EventReason.REVISION_PROVEN) == 2


def test_the_budget_of_disruptions_follows_the_service() -> None:
    world = serving_draft()
    made = [m["spec"]["selector"]["matchLabels"] for m in world.applied if m["kind"] == "PodDisruptionBudget"]
    assert [labels["eagle3.dev/revision"] for labels in made] == ["r0", "r1"] == [f"r{n}" for n in world.served]


def test_what_has_gone_for_a_proven_revision_is_missed_by_nobody() -> None:
    world = serving_plain(World(room=1).edit(autoApply="Always", serve={"surge": "Never"})).ready(1)
    job, result = world.job("probe"), measured(accept=2.71, speed=126.9)
    report = Report(stage=StageName.PROBE, key=job.key, ok=True, result=result.to_json())
    world._put_job(replace(job, complete=True, finished_at=world.now, report=report))
    world.step()
    assert world.serving == 0
    assert world.reason("ServerAvailable") == ("False", Reason.UNAVAILABLE)
    assert (world.told.phase, *world.reason()) == ("RollingOut", "False", Reason.ROLLING_OUT)
    assert world.settle().reason() == ("True", Reason.SERVING)


def test_a_baseline_that_cannot_be_measured_again_is_what_a_waiting_draft_speaks_of() -> None:
    world = serving_draft().edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    world.edit(probe={"concurrency": 8}).settle()
    world.pods(0, Pod("crash", world.now, "Running", started_at=world.now, restarts=3, exit_code=1), log=("boom",))
    proven = world.condition("RevisionProven")
    assert (proven.status, proven.reason) == ("False", Reason.START_FAILED)
    assert "boom" in proven.message
    assert "r0 is tried again in an hour" in proven.message


def test_the_former_revision_stays_warm_for_the_bake_time() -> None:
    world = serving_draft()
    assert world.replicas == {0: 1, 1: 1}
    world.later(601).settle()
    assert world.replicas == {0: 0, 1: 1}


def test_what_a_higher_bar_rejects_is_kept_warm_no_longer() -> None:
    world = serving_draft().edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    world.ready(2).finish("probe", measured(accept=2.5, speed=130.0))
    assert world.replicas == {0: 1, 1: 1, 2: 1}
    world.edit(probe={"minSpeedup": 1.42}).settle()
    assert (world.serving, world.replicas) == (2, {0: 1, 1: 0, 2: 1})


def test_a_draft_that_is_slower_is_rejected_and_scaled_to_zero() -> None:
    """Rows 19, 20: the walkthrough's story."""
    world = broken_draft(serving_draft().later(700).settle())
    world.ready(2).finish("probe", measured(accept=1.0, speed=54.8))
    assert world.serving == 1
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    assert world.reason("RevisionProven") == ("False", Reason.SLOWER_THAN_BASELINE)
    assert "r1 is serving" in world.condition("RevisionProven").message
    assert world.reason() == ("False", Reason.SLOWER_THAN_BASELINE)
    assert world.reason("Stalled")[0] == "True"
    assert world.reason("Reconciling")[0] == "False"
    assert world.told.phase == "Degraded"


def test_a_rejected_revision_is_not_tried_again() -> None:
    """Row 31."""
    world = broken_draft(serving_draft())
    world.ready(2).finish("probe", measured(accept=1.0, speed=54.8))
    created = len(world.created)
    for _ in range(5):
        world.later(3600).settle()
    assert len(world.created) == created
    assert world.replicas[2] == 0
    assert world.served == [0, 1]


def test_a_lower_bar_lets_a_rejected_revision_serve_without_measuring_again() -> None:
    """Row 45."""
    world = broken_draft(serving_draft())
    world.ready(2).finish("probe", measured(accept=1.9, speed=92.0))
    assert world.reason("RevisionProven")[0] == "False"
    probes = len([name for name in world.created if "probe" in name])
    world.edit(probe={"minSpeedup": 1.0}).settle()
    assert world.replicas[2] == 1
    world.ready(2)
    assert world.serving == 2
    assert len([name for name in world.created if "probe" in name]) == probes


def test_a_retry_measures_a_rejected_revision_again() -> None:
    world = broken_draft(serving_draft())
    world.ready(2).finish("probe", measured(accept=1.0, speed=54.8))
    world.annotations["eagle3.dev/retry"] = "r2@again"
    world.settle()
    assert world.replicas[2] == 1
    world.ready(2).finish("probe", measured(accept=2.6, speed=120.0))
    assert world.serving == 2


def test_a_revision_that_is_retried_while_it_is_measured_is_not_measured_twice_at_once() -> None:
    world = serving_plain().ready(1)
    former = world.job("probe").name
    world.annotations["eagle3.dev/retry"] = "r1@again"
    world.step()
    assert [job for job in world.jobs("probe") if not job.finished] == []
    world.settle()
    assert world.job("probe").name != former
    world.finish("probe", measured(accept=2.71, speed=126.9))
    assert world.serving == 1


def test_what_a_retry_made_is_found_again_when_an_edit_is_taken_back() -> None:
    """And not the rejected draft that was retried."""
    world = serving_plain().ready(1).finish("probe", measured(accept=1.0, speed=54.8))
    world.annotations["eagle3.dev/retry"] = "train@again"
    world.settle().finish("inspect")
    for stage in ("extract", "train"):
        world.finish(stage)
    world.finish("convert", converted("e" * 64)).ready(2).finish("probe", measured(accept=2.71, speed=126.9))
    assert world.serving == 2
    world.later(700).edit(data={"maxLength": 1024}).settle().finish("inspect")
    assert world.job("extract")
    world.edit(data={"maxLength": None}).settle().finish("inspect")
    assert world.reason() == ("True", Reason.SERVING)
    assert world.serving == 2


def test_failing_windows_move_the_service_back_to_the_warm_revision_at_once() -> None:
    world = serving_draft()
    world.window()
    assert world.reason() == ("True", Reason.DRAFT_HEALTHY)
    world.window(verify=2900)
    assert world.serving == 1
    world.window(verify=2900)
    assert world.serving == 0
    assert world.replicas == {0: 1, 1: 0}
    assert world.reason("RevisionProven")[0] == "False"
    assert world.reason()[0] == "False"
    assert [e.type for e in world.events if e.reason == "RolledBack"] == ["Warning"]
    for _ in range(3):
        world.later(3600).settle()
    assert world.served == [0, 1, 0]


def test_observe_reports_and_never_rolls_back() -> None:
    world = serving_draft(World().edit(watch={"mode": "Observe"}))
    for _ in range(4):
        world.window(verify=2900)
    assert world.serving == 1
    assert world.reason("DraftHealthy")[0] == "False"
    assert world.reason()[0] == "False"


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        ({"tokens": 0, "requests": 0, "verify": 0}, Reason.NO_TRAFFIC),
        ({"tokens": 50, "requests": 5, "verify": 44}, Reason.LOW_TRAFFIC),
        ({"problem": "Prometheus at http://p:9090 has not answered (connection refused)"}, Reason.METRICS_UNAVAILABLE),
    ],
)
def test_nothing_is_rolled_back_on_missing_metrics(window: dict[str, float], reason: Reason) -> None:
    """Rows 28, 30."""
    world = serving_draft()
    for _ in range(6):
        world.window(**window)  # type: ignore[arg-type]
    assert world.serving == 1
    assert world.reason("DraftHealthy") == ("Unknown", reason)
    assert world.reason()[0] == "True"


def test_tokens_without_verify_calls_are_inactive_speculation() -> None:
    """Row 18."""
    world = serving_draft()
    world.window(verify=0)
    assert world.reason("SpeculationActive") == ("False", Reason.SPECULATION_INACTIVE)
    world.window(verify=0)
    assert world.serving == 0


def test_where_the_gpus_are_full_the_candidate_displaces_the_serving_revision() -> None:
    """Row 35: one node, all GPUs taken; before the object was Ready nothing waits."""
    world = World(room=1)
    serving_plain(world)
    assert world.replicas == {0: 1, 1: 1}
    assert world.seen.deployments[1].pods[0].unschedulable
    world.later(60).settle()
    assert world.replicas == {0: 1, 1: 1}
    world.later(61).settle()
    assert world.replicas == {0: 0, 1: 1}
    world.ready(1).finish("probe", measured(accept=2.71, speed=126.9))
    assert world.serving == 1
    assert world.replicas == {0: 0, 1: 1}


def test_a_warm_revision_gives_way_to_a_candidate_before_the_serving_one_does() -> None:
    world = broken_draft(serving_draft(World(room=2)))
    assert world.replicas == {0: 0, 1: 1, 2: 1}
    assert world.reason() == ("False", Reason.SERVER_STARTING)
    world.later(300).settle()
    assert world.serving == 1
    assert world.replicas[1] == 1


def test_a_warm_revision_that_is_still_going_is_waited_for_before_the_serving_one_is_displaced() -> None:
    world = broken_draft(serving_draft(World(room=2)))
    going = Pod("old", world.now, "Running", started_at=world.now, terminating=True)
    waiting = Pod("new", world.now, unschedulable="Insufficient nvidia.com/gpu", unschedulable_since=world.now)
    world._put(replace(world.seen.deployments[0], pods=(going,)))
    world.pods(2, waiting)
    world.later(121).settle()
    assert world.outages == 0
    assert world.reason() == ("False", Reason.UNSCHEDULABLE)
    world._put(replace(world.seen.deployments[0], pods=()))
    world.settle()
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert world.outages == 0


def full_node() -> World:
    """r1 serves on a node with room for one server only."""
    world = World(room=1)
    serving_plain(world).later(121).settle()
    return world.ready(1).finish("probe", measured(accept=2.71, speed=126.9))


def test_once_ready_an_outage_waits_for_approval() -> None:
    world = broken_draft(full_node())
    before = world.outages
    world.later(121).settle()
    assert world.outages == before
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert world.serving == 1
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    world.approve().settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.ready(2).finish("probe", measured(accept=1.0, speed=54.8))
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    world.ready(1)
    assert world.serving == 1


def test_a_rollback_never_waits_even_where_the_gpus_are_full() -> None:
    world = full_node()
    world.window(verify=2900)
    world.window(verify=2900)
    assert world.replicas == {0: 1, 1: 0}
    world.ready(0)
    assert world.serving == 0


def test_a_rollback_takes_the_gpus_of_pods_that_are_going_and_not_those_of_what_serves() -> None:
    world = full_node()
    going = Pod("former", world.now, "Running", started_at=world.now, terminating=True)
    waiting = Pod("new", world.now, unschedulable="Insufficient nvidia.com/gpu", unschedulable_since=world.now)
    world.room = 2
    world.window(verify=2900)
    world.window(verify=2900)
    world.pods(0, going, waiting)
    assert (world.serving, world.replicas) == (1, {0: 1, 1: 1})
    world.pods(0, waiting)
    assert world.replicas == {0: 1, 1: 0}


def lost(world: World) -> Pod:
    """A pod whose node does not answer: it should have ended by now, and nobody can say that it has."""
    return Pod("lost", world.now, "Running", started_at=world.now, terminating=True, gone_by=world.now)


def test_a_pod_on_a_lost_node_holds_no_rollback_up() -> None:
    world = full_node()
    waiting = Pod("new", world.now, unschedulable="Insufficient nvidia.com/gpu", unschedulable_since=world.now)
    world.room = 2
    gone = lost(world)
    world.window(verify=2900)
    world.window(verify=2900)
    world.now = gone.created_at
    world.pods(0, gone, waiting).later(119).settle()
    assert (world.serving, world.replicas) == (1, {0: 1, 1: 1})
    world.later(1).settle()
    assert world.replicas == {0: 1, 1: 0}


def test_a_warm_revision_on_a_lost_node_holds_no_candidate_up() -> None:
    world = broken_draft(serving_draft(World(room=2)))
    waiting = Pod("new", world.now, unschedulable="Insufficient nvidia.com/gpu", unschedulable_since=world.now)
    world._put(replace(world.seen.deployments[0], pods=(replace(lost(world), gone_by=None),)))
    world.pods(2, waiting).later(3600).settle()
    assert world.reason() == ("False", Reason.UNSCHEDULABLE)
    world._put(replace(world.seen.deployments[0], pods=(lost(world),)))
    world.later(120).settle()
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)


def test_surge_never_replaces_without_trying_beside() -> None:
    world = serving_plain(World().edit(serve={"surge": "Never"}))
    assert world.replicas == {0: 0, 1: 1}


def test_autoapply_never_waits_for_every_new_revision_once_ready() -> None:
    world = broken_draft(serving_draft(World().edit(autoApply="Never")))
    assert world.reason() == ("False", Reason.AWAITING_APPROVAL)
    assert world.replicas.get(2, 0) == 0


def test_a_server_that_fails_to_start_is_retried_and_then_stalled_with_its_last_words() -> None:
    world = serving_plain()
    log = ("loading weights", "RuntimeError: captured 2 of 3 aux hidden states")
    for restarts in (1, 2, 3):
        pod = Pod("p", world.now, "Running", started_at=world.now, restarts=restarts, exit_code=1)
        world.pods(1, pod, log=log)
    assert world.replicas == {0: 1, 1: 0}
    assert world.reason("RevisionProven") == ("False", Reason.START_FAILED)
    assert "captured 2 of 3 aux hidden states" in world.condition("RevisionProven").message
    assert world.serving == 0
    world.later(1800).settle()
    assert world.replicas == {0: 1, 1: 0}
    world.later(1801).settle()
    assert world.replicas == {0: 1, 1: 1}


def test_a_start_that_hangs_past_its_budget_is_told_with_its_last_line() -> None:
    """Row 16 (a rule's table; the hang itself needs GPUs)."""
    world = serving_plain(World().edit(serve={"startTimeout": "25m"}))
    world.pods(1, Pod("p", world.now, "Running", started_at=world.now), log=("init draft worker, tp rank 5",))
    world.later(1400).settle()
    assert world.replicas[1] == 1
    world.later(200).settle()
    assert world.replicas[1] == 0
    assert world.reason("RevisionProven") == ("False", Reason.STARTUP_HUNG)
    assert "init draft worker, tp rank 5" in world.condition("RevisionProven").message


def test_the_time_in_which_an_image_was_pulled_is_no_part_of_a_start() -> None:
    world = serving_plain(World().edit(serve={"startTimeout": "25m"}))
    created = world.now
    world.later(20 * 60).pods(1, Pod("p", created, "Running", started_at=world.now))
    world.later(1499).settle()
    assert world.replicas[1] == 1
    world.later(2).settle()
    assert world.reason("RevisionProven") == ("False", Reason.STARTUP_HUNG)
    assert "no readiness after 25 min" in world.condition("RevisionProven").message


def test_gpu_memory_exhausted_at_start_advises_the_flag() -> None:
    """Row 39."""
    world = serving_plain(World().edit(serve={"startRetries": 0}))
    pod = Pod("p", world.now, "Running", started_at=world.now, restarts=1, exit_code=1)
    world.pods(1, pod, log=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",))
    assert world.reason("RevisionProven") == ("False", Reason.OUT_OF_MEMORY)
    assert "--mem-fraction-static" in world.condition("RevisionProven").message


def test_a_probe_that_could_not_measure_is_tried_three_times_and_rejects_nothing() -> None:
    world = serving_plain().ready(1)
    for _ in range(3):
        world.fail("probe", Reason.PROBE_ERROR, "the server closed the connection", code=21)
    assert world.reason("RevisionProven") == ("False", Reason.PROBE_ERROR)
    message = world.condition("RevisionProven").message
    assert "is tried again by: kubectl annotate e3d kimi -n llm eagle3.dev/retry=r" in message, (
        "only the annotation has it tried again"
    )
    assert world.told.revisions[1].state == "Stalled"
    assert world.serving == 0


def test_an_object_that_is_made_anew_is_measured_itself_and_takes_over_only_artifacts() -> None:
    """The claim of its drafts is there still, and with it all that was made for the former object of that name."""
    former, anew = serving_draft(), serving_draft(World(uid="uid-2"))
    probes = [{revision.probe_folder for revision in world.told.revisions} for world in (former, anew)]
    assert not probes[0] & probes[1]
    assert {stage.artifact for stage in former.told.stages} == {stage.artifact for stage in anew.told.stages}


def test_of_the_probes_of_a_revision_only_the_one_that_it_was_measured_by_last_is_kept() -> None:
    world = serving_plain().ready(1)
    world.finish("probe", measured(accept=1.0, speed=30.0, foreign_requests=7))
    world.finish("probe", measured(accept=2.71, speed=126.9))
    for draft, concurrency in ((2, 8), (3, 16)):
        world.edit(probe={"concurrency": concurrency}).settle()
        world.ready(0).finish("probe", measured(concurrency=concurrency))
        world.ready(draft).finish("probe", measured(accept=2.71, speed=126.9, concurrency=concurrency))
    assert world.reason("RevisionProven")[0] == "True"
    assert sorted(job.revision or 0 for job in world.jobs("probe")) == [0, 1, 2, 3]
    folders = {revision.probe_folder for revision in world.told.revisions}
    assert {job.key for job in world.jobs("probe")} == {(folder or "").rpartition("/")[2] for folder in folders}


def test_traffic_that_is_not_ours_makes_a_probe_inconclusive() -> None:
    world = serving_plain().ready(1)
    first = world.job("probe").key
    world.finish("probe", measured(accept=1.0, speed=30.0, foreign_requests=7))
    assert world.job("probe").key != first
    assert world.told.revisions[1].state == "Probing"


def test_arguments_that_the_server_changed_are_named() -> None:
    """Row 2's read-back."""
    world = serving_plain().ready(1)
    mismatch = Mismatch(name="speculative_num_draft_tokens", asked="16", got="2")
    world.finish("probe", measured(accept=1.2, speed=95.0, argument_mismatches=[mismatch]))
    assert world.reason("RevisionProven") == ("False", Reason.ARGUMENT_MISMATCH)
    assert str(mismatch) in world.condition("RevisionProven").message


def test_a_goal_that_cannot_start_is_passed_over_for_the_plain_revision() -> None:
    """Row 32: the files of the rollback target are gone."""
    world = serving_draft()
    world.later(700).settle()
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    world.ready(2).finish("probe", measured(accept=2.5, speed=130.0)).later(700).settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.window(verify=2900)
    world.window(verify=2900)
    assert world.replicas[1] == 1
    gone = Pod("p", world.now, "Running", started_at=world.now, restarts=3, exit_code=1)
    world.pods(1, gone, log=("FileNotFoundError: /eagle3/drafts/llm/kimi/convert",))
    assert world.replicas[0] == 1
    world.ready(0)
    assert world.serving == 0


def test_a_new_image_is_proven_plain_first_while_the_old_draft_serves_on() -> None:
    world = serving_draft().later(700).settle()
    world.edit(image="lmsysorg/sglang:v0.5.24").settle().finish("inspect")
    assert world.replicas == {0: 0, 1: 1, 2: 1}
    world.ready(2).finish("probe", measured(speed=95.0))
    assert world.serving == 1
    world.ready(3).finish("probe", measured(accept=2.7, speed=130.0, baseline_tokens_per_second=95.0))
    assert world.serving == 3
    assert world.served == [0, 1, 3]


def test_a_rollback_puts_no_other_target_behind_the_service_while_the_next_draft_is_made() -> None:
    world = serving_draft().later(700).settle()
    world.edit(target={"model": "/models/other"}).settle()
    world.finish("inspect", FACTS.model_copy(update={"target_digest": "target-2"}))
    assert world.serving == 1, "nothing of the new target is proven yet"
    for stage in ("extract", "train"):
        world.finish(stage)
    world.finish("convert", converted("e" * 64)).ready(2).finish("probe", measured())
    world.ready(3).finish("probe", measured(accept=2.71, speed=126.9)).later(700).settle()
    assert world.serving == 3
    world.edit(train={"epochs": 9}).settle()
    world.window(verify=2900)
    world.window(verify=2900)
    assert world.replicas == {0: 0, 1: 0, 2: 1, 3: 1}
    assert world.ready(2).serving == 2


@pytest.mark.parametrize("why", ["another load", "a person asks"])
def test_a_bad_draft_is_left_for_the_plain_server_also_while_that_waits_to_be_measured_again(why: str) -> None:
    world = serving_draft(World(room=2).edit(serve={"replicas": 2, "bakeTime": "0s"})).ready(1)
    if why == "another load":
        world.edit(probe={"concurrency": 8})
    else:
        world.annotations["eagle3.dev/retry"] = "r0@1"
    world.settle().later(700).settle()
    assert world.told.revisions[0].reason is Reason.AWAITING_APPROVAL
    assert world.replicas == {0: 0, 1: 2}
    world.window(verify=2900)
    world.window(verify=2900)
    assert world.replicas == {0: 2, 1: 1}, "nobody is left without an answer meanwhile"
    assert world.ready(0).serving == 0
    assert world.told.revisions[0].proof is not None
    assert world.replicas == {0: 2, 1: 0, 2: 1}, "what serves is measured by another of its kind"


def test_a_plain_server_that_is_fallen_back_to_while_it_is_measured_again_gets_all_its_pods() -> None:
    world = serving_draft(World().edit(serve={"replicas": 2, "bakeTime": "0s"})).ready(1)
    world.edit(probe={"concurrency": 8}).settle()
    assert world.replicas == {0: 1, 1: 2}
    world.window(verify=2900)
    world.window(verify=2900)
    assert world.replicas == {0: 2, 1: 2}
    assert world.ready(0).serving == 0
    assert world.replicas == {0: 2, 1: 0, 2: 1}, "and what serves is measured by another of its kind"


def test_what_failed_its_measurement_serves_no_sooner_because_it_is_measured_again() -> None:
    mismatch = Mismatch(name="attention_backend", asked='"flashinfer"', got='"triton"')
    world = trained().ready(0).finish("probe", measured(argument_mismatches=[mismatch]))
    assert world.told.revisions[0].state == "Rejected"
    world.annotations["eagle3.dev/retry"] = "r0@1"
    world.settle().ready(0)
    assert world.job("probe")
    assert world.serving is None


def test_retired_revisions_beyond_the_limit_are_deleted_but_never_what_is_fallen_back_to() -> None:
    world = serving_draft(World().edit(revisionHistoryLimit=1))
    for steps in (2, 4, 5):
        world.later(700).settle()
        speculative = {"numSteps": steps, "numDraftTokens": steps + 1}
        world.edit(serve={"speculative": speculative}).settle()
        newest = max(world.seen.deployments)
        world.ready(newest).finish("probe", measured(accept=2.7, speed=127.0))
    world.later(700).settle()
    assert world.serving == 4
    assert set(world.replicas) == {0, 2, 3, 4}
    assert "kimi-r1" not in world.seen.services
    assert {r.number for r in world.told.revisions} == {0, 2, 3, 4}


def test_the_baseline_of_what_serves_is_kept_while_the_next_draft_is_made() -> None:
    world = serving_draft(World().edit(revisionHistoryLimit=1))
    for steps in (2, 4):
        world.later(700).edit(serve={"speculative": {"numSteps": steps, "numDraftTokens": steps + 1}}).settle()
        world.ready(max(world.seen.deployments)).finish("probe", measured(accept=2.7, speed=127.0))
    world.later(700).edit(train={"epochs": 9}).settle()
    assert world.job("extract")
    assert set(world.replicas) == {0, 1, 2, 3}
    assert world.told.revisions[0].probe is not None
    world.edit(train={"epochs": 3}).settle()
    assert world.reason() == ("True", Reason.SERVING)
    assert world.serving == 3


def test_scaling_reaches_the_serving_revision_and_the_scale_subresource() -> None:
    world = serving_draft().edit(serve={"replicas": 3}).settle()
    assert world.replicas[1] == 3
    world.ready(1)
    assert world.told.replicas == 3
    assert "eagle3.dev/revision=r1" in world.told.selector


def test_a_lost_status_is_rebuilt_from_the_deployments_and_measured_again() -> None:
    world = serving_draft()
    world.status = {}
    for stage in ("extract", "train", "convert"):
        world._delete("Job", world.jobs(stage)[0].name)
    world.settle()
    for stage in ("extract", "train", "convert"):
        world.finish(stage)
    assert {r.number: r.draft for r in world.told.revisions} == {0: None, 1: "d" * 64}
    assert world.serving == 1


def test_a_status_lost_after_the_deployment_was_made_starts_no_second_one() -> None:
    world = trained()
    lost = {**world.status, "revisions": []}
    world.status = lost
    world.settle()
    assert world.replicas == {0: 1}


def test_a_deployment_that_is_not_ours_is_not_taken_for_a_revision() -> None:
    world = World().settle()
    stranger = Deployment("kimi-r0", 0, "other", world.now, 1, owned=False)
    world.seen = replace(world.seen, deployments={0: stranger})
    for stage in ("inspect", "extract", "train"):
        world.finish(stage)
    assert world.told.revisions == []


def test_the_window_after_a_promotion_is_waited_for() -> None:
    world = serving_draft()
    decision = world.step()
    assert decision.requeue_after is not None
    assert decision.requeue_after <= 61.0
    assert world.told.revisions[1].promoted_at == stamp(world.now)


def adapting() -> World:
    """r1 serves a draft with as many steps as the load allows; it was probed at concurrency 1."""
    return serving_draft(World().edit(serve={"speculative": {"mode": "Auto"}}))


def test_a_server_that_adapts_its_steps_is_not_judged_under_another_load_than_it_was_probed_with() -> None:
    world = adapting()
    for _ in range(6):
        world.window(verify=2900, running=40)
    assert world.serving == 1
    assert world.reason("DraftHealthy") == ("Unknown", Reason.OTHER_LOAD)
    assert world.reason()[0] == "True"


def test_under_the_load_that_it_was_probed_with_a_bad_draft_is_rolled_back_as_ever() -> None:
    world = adapting()
    world.window(verify=2900, running=3).window(running=40).window(verify=2900, running=3)
    assert world.serving == 0
    assert world.reason("RevisionProven")[0] == "False"


def adapting_and_measured_at(load: int, *, break_even: float, **probe: Any) -> World:
    """As ``adapting``, and measured at a load of another tier too."""
    world = trained(World().edit(serve={"speculative": {"mode": "Auto"}}, probe={"loads": [load], **probe}))
    plain = LoadResult(concurrency=load, tokens_per_second=900)
    world.ready(0).finish("probe", measured(loads=[plain]))
    at_load = plain.model_copy(update={"baseline_tokens_per_second": 900.0, "break_even": break_even})
    return world.ready(1).finish("probe", measured(accept=2.71, speed=126.9, loads=[at_load]))


def test_a_server_that_adapts_its_steps_is_judged_under_each_load_that_it_was_probed_with() -> None:
    world = adapting_and_measured_at(32, break_even=1.6, minAcceptLength=2.5)
    for verify in (1600, 1600, 1600):  # accept length 1.81, of a single step
        world.window(verify=verify, running=40)
    assert (world.serving, world.reason("DraftHealthy")) == (1, ("True", Reason.DRAFT_HEALTHY))
    world.window(running=20)
    assert world.reason("DraftHealthy") == ("Unknown", Reason.OTHER_LOAD)
    assert "at concurrency 1 and 32; only windows near that load" in world.condition("DraftHealthy").message
    world.window(verify=2900, running=40).window(verify=2900, running=40)
    assert world.serving == 0


def test_drift_is_from_windows_in_which_as_many_steps_were_drafted() -> None:
    world = adapting_and_measured_at(32, break_even=1.2)
    for _ in range(3):
        world.window(verify=1600, running=40)
    assert world.told.revisions[1].early_accept_length is None
    for running in (1, 1, 40, 40):
        world.window(verify=1600 if running == 40 else 1000, running=running)
    assert world.told.revisions[1].early_accept_length == pytest.approx(2.9)
    assert world.reason("DraftHealthy") == ("True", Reason.DRAFT_HEALTHY)


def test_a_load_at_which_a_draft_costs_time_is_warned_of_when_it_is_proven_and_left_when_it_is_served() -> None:
    world = trained(World().edit(probe={"loads": [32]}))
    plain = LoadResult(concurrency=32, tokens_per_second=900)
    world.ready(0).finish("probe", measured(loads=[plain]))
    costly = plain.model_copy(
        update={"tokens_per_second": 700.0, "baseline_tokens_per_second": 900.0, "break_even": 3.5}
    )
    world.ready(1).finish("probe", measured(accept=2.71, speed=126.9, loads=[costly]))
    assert (world.serving, world.reason("RevisionProven")) == (1, ("True", Reason.PROVEN))
    assert "(1.41x), 0.78x at 32" in world.condition("RevisionProven").message
    warning = "From concurrency 32 on speculation costs time instead of saving it (0.78x, break-even is 3.50)"
    assert warning in world.condition("RevisionProven").message
    told = [(event.type, event.message) for event in world.events if event.reason == EventReason.SLOWER_AT_LOAD]
    assert [type_ for type_, _ in told] == ["Warning"]
    assert told[0][1].startswith(f"r1: {warning}")
    world.window(running=1).window(running=1)
    assert world.serving == 1
    world.window(running=32).window(running=32)
    assert world.serving == 0
    assert "below 3.50: the bar for 32 requests together on a server" in world.condition("RevisionProven").message


def test_what_the_watch_left_under_a_load_that_was_not_measured_is_judged_anew_once_that_is() -> None:
    """Break-even of 32 requests together is too much to ask of one at a time."""
    world = trained(World().edit(probe={"concurrency": 32})).ready(0).finish("probe", measured(concurrency=32))
    proven = {"accept": 2.71, "speed": 126.9, "concurrency": 32, "break_even": 2.41}
    world.ready(1).finish("probe", measured(**proven)).later(700).settle()
    world.window(verify=1400).window(verify=1400)
    world.ready(0)
    assert (world.serving, world.told.revisions[1].state) == (0, "Rejected")
    assert "break-even is known only from 32 on: add the load" in world.condition("RevisionProven").message
    world.edit(probe={"loads": [1]}).settle()
    plain = LoadResult(concurrency=1, tokens_per_second=90)
    world.ready(2).finish("probe", measured(concurrency=32, loads=[plain]))
    assert world.serving == 0
    alone = plain.model_copy(update={"baseline_tokens_per_second": 90.0, "break_even": 1.49})
    world.ready(1).finish("probe", measured(**proven, loads=[alone]))
    assert (world.serving, world.reason()) == (1, ("True", Reason.SERVING))
    world.window(verify=2900).window(verify=2900)
    assert world.ready(2).serving in (0, 2)
    assert world.told.revisions[1].state == "Rejected"


def test_what_the_watch_has_failed_and_its_cooldown_holds_is_followed_by_no_other_of_its_kind() -> None:
    """That one would have no bad window yet."""
    world = serving_draft(World().edit(watch={"cooldown": "10h"})).later(700).settle()
    world.window(verify=2900).window(verify=2900).ready(0)
    world.edit(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}).settle()
    world.ready(2).finish("probe", measured(accept=2.71, speed=126.9)).later(700).settle()
    world.window(verify=2900).window(verify=2900)
    assert (world.serving, world.reason("DraftHealthy")[0]) == (2, "False")
    world.edit(probe={"loads": [8]}).settle()
    world.ready(0).finish("probe", measured(loads=[LoadResult(concurrency=8, tokens_per_second=900)])).settle()
    assert [revision.number for revision in world.told.revisions] == [0, 1, 2]


def test_what_is_bad_at_every_load_is_not_served_again_because_another_one_is_measured() -> None:
    world = serving_draft().later(700).settle()
    world.window(verify=2900).window(verify=2900).ready(0)
    assert world.serving == 0
    world.edit(probe={"loads": [8]}).settle()
    plain = LoadResult(concurrency=8, tokens_per_second=900)
    world.ready(2).finish("probe", measured(loads=[plain])).ready(1)
    at_load = plain.model_copy(update={"baseline_tokens_per_second": 900.0, "break_even": 2.0})
    world.finish("probe", measured(accept=2.71, speed=126.9, loads=[at_load])).settle()
    assert world.serving == 0
    assert world.told.revisions[1].state == "Rejected"
    assert world.replicas[1] == 0


def test_a_server_that_adapts_and_verifies_nothing_is_inactive_under_any_load() -> None:
    world = adapting()
    world.window(verify=0, running=40).window(verify=0, running=40)
    assert world.serving == 0


def test_of_a_server_that_adapts_no_more_is_expected_than_a_single_step_gives() -> None:
    assert adapting().told.revisions[1].expected_accept_length == 1.75
    assert serving_draft().told.revisions[1].expected_accept_length == 2.74


HELD_UP = {
    "no node": ({"unschedulable": "0/1 nodes match the node selector"}, Reason.UNSCHEDULABLE),
    "no image": ({"waiting_reason": "ErrImagePull", "waiting_message": "not found"}, Reason.IMAGE_PULL),
    "no container": (
        {"waiting_reason": "CreateContainerConfigError", "waiting_message": 'secret "hub" not found'},
        Reason.INVALID_CONFIGURATION,
    ),
    "no quota": ({"queue": "gpus"}, Reason.QUEUED),
}


@pytest.mark.parametrize("case", HELD_UP)
def test_what_took_the_place_of_the_serving_revision_and_never_starts_gives_it_back(case: str) -> None:
    """An approved mistake costs one start's budget, not the Service."""
    changes, reason = HELD_UP[case]
    world = serving_draft(World(room=1).edit(serve={"surge": "Never", "startTimeout": "20m"})).later(700).settle()
    world.edit(autoApply="Always", serve={"maxRunningRequests": 7}).settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.pods(2, Pod("kimi-r2-x", world.now, **changes))  # type: ignore[arg-type]
    assert world.reason() == ("False", reason)
    world.later(1100).settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.later(101).settle()
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    assert world.reason("RevisionProven") == ("False", reason)
    assert "for 20 min in place of r1" in world.condition("RevisionProven").message
    world.ready(1).later(86400).settle()
    assert world.replicas == {0: 0, 1: 1, 2: 0}, "nor is it tried again by itself"


@pytest.mark.parametrize(("pods", "minutes"), [((), 20), ((Pod("kimi-r2-x", START),), 50)], ids=["no pod", "no volume"])
def test_what_keeps_a_server_from_starting_need_not_be_known_for_it_to_be_given_up(
    pods: tuple[Pod, ...], minutes: int
) -> None:
    """A quota lets no pod be made; a volume is never attached."""
    world = serving_draft(World(room=1).edit(serve={"surge": "Never", "startTimeout": "20m"})).later(700).settle()
    world.edit(autoApply="Always", serve={"maxRunningRequests": 7}).settle()
    world.pods(2, *pods)
    world.later(60 * minutes - 1).settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.later(2).settle()
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    assert world.reason("RevisionProven") == ("False", Reason.START_FAILED)


def test_what_is_suspended_in_the_place_of_the_serving_revision_gives_it_back() -> None:
    world = displaced()
    world.edit(suspend=True).settle()
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    assert world.reason() == ("False", Reason.SUSPENDED)
    assert world.edit(suspend=False).settle().replicas == {0: 0, 1: 0, 2: 1}


def displaced() -> World:
    """r2 is ready in the place of r1, and is about to be probed."""
    world = serving_draft(World(room=1).edit(serve={"surge": "Never"})).later(700).settle()
    world.edit(autoApply="Always", serve={"maxRunningRequests": 7}).settle()
    assert world.ready(2).replicas == {0: 0, 1: 0, 2: 1}
    return world


NO_PROBE = {
    "no node": (HELD_UP["no node"], 121),
    "no image": (HELD_UP["no image"], 121),
    "no container": (HELD_UP["no container"], 121),
    "no pod": (None, 121),
    "no volume": (({}, Reason.PROBE_ERROR), 1801),
}


@pytest.mark.parametrize("case", NO_PROBE)
def test_a_probe_that_never_starts_keeps_the_place_of_the_serving_revision_no_longer_than_it_is_waited_for(
    case: str,
) -> None:
    held, patience = NO_PROBE[case]
    changes, reason = held or ({}, Reason.PROBE_ERROR)
    world = displaced()
    pods = (Pod("kimi-probe-x", world.now, **changes),) if held else ()  # type: ignore[arg-type]
    world._put_job(replace(world.job("probe"), pods=pods))
    world.later(patience - 1).settle()
    assert world.replicas == {0: 0, 1: 0, 2: 1}
    world.later(2).settle()
    assert world.replicas == {0: 0, 1: 1, 2: 0}
    assert world.reason("RevisionProven") == ("False", reason)
    assert "its probe could not be started in place of r1" in world.condition("RevisionProven").message
    assert [job for job in world.jobs("probe") if not job.finished] == []
    world.ready(1).later(86400).settle()
    assert world.replicas == {0: 0, 1: 1, 2: 0}, "nor is it tried again by itself"
    world.annotations["eagle3.dev/retry"] = "r2@mended"
    assert world.settle().replicas == {0: 0, 1: 0, 2: 1}


def test_a_probe_that_never_starts_beside_the_serving_revision_is_waited_for() -> None:
    world = serving_plain().ready(1)
    world._put_job(replace(world.job("probe"), pods=(Pod("kimi-probe-x", world.now, unschedulable="no node"),)))
    world.later(86400).settle()
    assert world.reason() == ("False", Reason.UNSCHEDULABLE)
    assert world.replicas == {0: 1, 1: 1}


def test_a_candidate_that_waits_beside_the_serving_revision_is_not_given_up() -> None:
    world = serving_plain(World().edit(serve={"startTimeout": "20m"}))
    world.pods(1, Pod("kimi-r1-x", world.now, waiting_reason="ErrImagePull", waiting_message="not found"))
    world.later(86400).settle()
    assert world.replicas == {0: 1, 1: 1}
    assert world.reason() == ("False", Reason.IMAGE_PULL)


def test_a_candidate_that_its_node_never_starts_is_given_up_beside_the_serving_revision_and_tried_again_in_an_hour() -> (
    None
):
    """Its volume is attached to another node, or its node's driver is broken: the next pod may be given another."""
    world = serving_plain(World().edit(serve={"startTimeout": "20m"}))
    world.pods(1, Pod("kimi-r1-x", world.now, node="gpu-1", placed_at=world.now))
    assert world.later(1800).settle().reason() == ("False", Reason.SERVER_STARTING)
    assert world.later(1).settle().reason() == ("False", Reason.POD_NOT_STARTED)
    assert world.reason("Stalled")[0] == "False", "it is given up without a person"
    world.later(1199).settle()
    assert world.replicas == {0: 1, 1: 1}
    world.later(1).settle()
    assert world.replicas == {0: 1, 1: 0}
    assert world.reason("RevisionProven") == ("False", Reason.POD_NOT_STARTED)
    assert world.reason("Stalled") == ("True", Reason.POD_NOT_STARTED)
    said = world.condition("RevisionProven").message
    assert "pod kimi-r1-x was scheduled to node gpu-1 at" in said
    assert "r0 is serving; r1 is tried again in an hour" in said
    assert world.later(3601).settle().replicas == {0: 1, 1: 1}


def test_the_first_server_too_is_given_up_where_its_node_never_starts_it() -> None:
    world = trained(World().edit(serve={"startTimeout": "20m"}))
    world.pods(0, Pod("kimi-r0-x", world.now, node="gpu-1", placed_at=world.now))
    assert world.later(3001).settle().replicas == {0: 0}
    assert world.reason("Stalled") == ("True", Reason.POD_NOT_STARTED)


def test_a_probe_that_its_node_never_starts_keeps_its_server_no_longer_than_half_an_hour() -> None:
    world = serving_plain().ready(1)
    pod = Pod("kimi-probe-x", world.now, node="cpu-1", placed_at=world.now)
    world._put_job(replace(world.job("probe"), pods=(pod,)))
    assert world.later(1800).settle().replicas == {0: 1, 1: 1}
    assert world.later(1).settle().replicas == {0: 1, 1: 0}
    assert world.reason("Stalled") == ("True", Reason.POD_NOT_STARTED)
    assert (
        "its probe could not be started: pod kimi-probe-x was scheduled to node cpu-1"
        in world.condition("RevisionProven").message
    )
    assert [job for job in world.jobs("probe") if not job.finished] == []
    world.later(3601).settle().ready(1).finish("probe", measured(accept=2.71, speed=126.9))
    assert world.serving == 1, "an hour later it is tried again"


def test_a_probe_whose_report_is_always_lost_is_no_endless_measurement() -> None:
    world = serving_plain().ready(1)
    for tries in (1, 2, 3):
        assert world.reason("RevisionProven")[0] == "Unknown"
        world.complete("probe")
        assert world.told.revisions[1].probe_errors == tries
    assert world.reason("RevisionProven") == ("False", Reason.PROBE_ERROR)
    assert "completed, but its report is lost" in world.condition("RevisionProven").message
    assert [job for job in world.jobs("probe") if not job.finished] == []
