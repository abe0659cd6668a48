"""Jobs that do not get on: silent, hanging, without a place, without a log."""

from dataclasses import replace

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import (
    Progress,
    StageName,
)
from eagle3_operator.observation import Pod
from unit.decide.world import World, trained
from unit.samples import FACTS


def test_a_job_without_progress_is_resumed_once_and_then_failed() -> None:
    """Row 41."""
    world = World().settle().finish("inspect")
    name = world.job("extract").name
    for expected in (2, 2):
        world._put_job(replace(world.job("extract"), pods=(Pod("p", world.now, "Running", started_at=world.now),)))
        world.settle().later(1801).settle()
        assert world.created.count(name) == expected
    assert world.jobs("extract") == []
    assert world.reason("FeaturesReady") == ("False", Reason.JOB_STALLED)


@pytest.mark.parametrize("off", [-7200, 0, 7200], ids=["late", "right", "early"])
def test_a_job_on_a_node_with_another_time_is_ended_when_it_is_silent_and_not_before(off: float) -> None:
    world = World().settle().finish("inspect")
    job = world.job("extract")
    pods = (Pod("p", world.now, "Running", started_at=world.now),)
    for step in range(1, 5):
        said = Progress(done=step / 10, message="", time=world.later(1000).now.timestamp() + off)
        world._put_job(replace(job, pods=pods, progress=said))
        world.settle().later(500).settle()
    assert world.created.count(job.name) == 1
    world.later(1301).settle()
    assert world.created.count(job.name) == 2


def test_a_pod_that_waited_long_for_its_gpus_has_the_whole_timeout_once_it_runs() -> None:
    world = World().settle().finish("inspect")
    name, created = world.job("extract").name, world.now
    running = Pod("p", created, "Running", started_at=world.later(2 * 3600).now)
    world._put_job(replace(world.job("extract"), pods=(running,)))
    world.settle().later(1799).settle()
    assert world.created.count(name) == 1
    world.later(2).settle()
    assert world.created.count(name) == 2


@pytest.mark.parametrize("stage", ["inspect", "extract"])
def test_a_job_whose_report_is_always_lost_is_made_anew_twice_and_then_failed(stage: str) -> None:
    """Something removes finished pods at once, or takes their termination messages away."""
    world = World().settle()
    if stage != "inspect":
        world.finish("inspect")
    name = world.job(stage).name
    for made in (2, 3):
        world.complete(stage)
        assert world.created.count(name) == made
        assert world.reason("Stalled")[0] == "False"
    world.complete(stage).later(86400).settle()
    assert world.created.count(name) == 3
    assert name not in world.seen.jobs
    assert world.reason() == ("False", Reason.JOB_FAILED)
    assert world.reason("Stalled") == ("True", Reason.JOB_FAILED)
    said = world.condition("Ready").message
    assert f"Job {name} completed 3 times, but its report is lost. See what removes its pods" in said
    world.annotations["eagle3.dev/retry"] = said.split("eagle3.dev/retry=")[1].split()[0]
    if stage != "inspect":
        world.settle().finish("inspect")
    world.settle().finish(stage)
    assert {s.name: s.state for s in world.told.stages}[StageName(stage)] == "Succeeded"


def test_a_failed_job_that_is_not_let_go_is_not_counted_on() -> None:
    world = World().settle()
    world.complete("inspect").complete("inspect")
    world.refuses = ("Job/.*",)
    world.complete("inspect")
    lost = [stage.lost for stage in world.told.stages]
    assert world.later(3600).settle().told.stages[0].lost == lost[0] == 3


def test_a_pod_that_is_not_started_on_its_node_for_half_an_hour_is_told_of() -> None:
    """A volume that cannot be mounted, or that another node has: the pod stays in ContainerCreating, of which only Events tell."""
    world = World().settle().finish("inspect")
    pod = Pod("kimi-extract-0", world.now, node="gpu-1", placed_at=world.now)
    world._put_job(replace(world.job("extract"), pods=(pod,)))
    assert world.later(1800).step().requeue_after == 1.0, "nobody calls when the half hour is over"
    assert world.reason() == ("False", Reason.EXTRACTING)
    world.later(1).settle()
    assert world.reason() == ("False", Reason.POD_NOT_STARTED)
    assert world.reason("Stalled")[0] == "False", "its node tries on"
    assert world.reason("Reconciling") == ("True", Reason.POD_NOT_STARTED)
    said = world.condition("FeaturesReady").message
    assert said.startswith(
        "pod kimi-extract-0 was scheduled to node gpu-1 at 2026-11-29T12:00:00Z, but its container has not started. "
    )
    assert "kubectl get events" in said
    why = "claim drafts can be mounted by one node at a time, and gpu-2 has it, for pod llama-r1-x of Eagle3Draft llama"
    world._put_job(replace(world.job("extract"), pods=(replace(pod, kept_from=why),)))
    assert f"but its container has not started: {why}. " in world.settle().condition("FeaturesReady").message
    told = world.status
    assert world.later(5000).settle().status == told, "its words do not change with the time"
    assert world.later(500).settle().reason("Stalled") == ("True", Reason.POD_NOT_STARTED), "two hours are for a person"
    assert world.told.phase == "Stalled", "which the alert of the chart goes by"
    assert len(world.created) == 2, "it is left: it may come yet"
    world._put_job(replace(world.job("extract"), pods=(replace(pod, phase="Running", started_at=world.now),)))
    assert world.settle().reason() == ("False", Reason.EXTRACTING)


def test_a_conversion_that_hangs_while_it_runs_the_target_keeps_no_gpus() -> None:
    """Row 41."""
    world = World().edit(draft={"checkpoint": "/drafts/mine"}).settle()
    world.finish("inspect", FACTS.model_copy(update={"checkpoint_digest": "c1"}))
    name = world.job("convert").name
    world._put_job(replace(world.job("convert"), pods=(Pod("p", world.now, "Running", started_at=world.now),)))
    world.settle().later(1801).settle()
    assert world.created.count(name) == 2


def test_a_job_whose_pods_fail_and_are_tried_again_says_so() -> None:
    world = World().settle().finish("inspect")
    crashed = Pod("p", world.now, "Failed", started_at=world.now, exit_code=1, finished_at=world.now)
    world._put_job(replace(world.job("extract"), pods=(crashed, Pod("q", world.now, "Running", started_at=world.now))))
    world.settle()
    assert "pod p ended with code 1; it is tried again" in world.condition("FeaturesReady").message


def test_a_log_that_cannot_be_read_is_no_stalled_job() -> None:
    world = World().settle().finish("inspect")
    pod = Pod("p", world.now, "Running", started_at=world.now)
    world._put_job(replace(world.job("extract"), pods=(pod,), progress_problem="the kubelet does not answer"))
    world.later(3600).settle()
    assert world.jobs("extract") != []
    assert len(world.created) == 2
    assert "the log of one of its pods cannot be read" in world.condition("FeaturesReady").message


def test_a_pod_without_a_place_for_a_day_stalls_its_object_and_goes_on_once_it_has_one() -> None:
    """The GPUs may be others' for the night; one that asks for what no node has waits for ever, and nobody was told to look."""
    world = World().settle().finish("inspect")
    why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    pod = Pod("kimi-extract-0", world.now, unschedulable=why, unschedulable_since=world.now)
    world._put_job(replace(world.job("extract"), pods=(pod,)))
    world.later(86_400).settle()
    assert (world.reason("Stalled")[0], world.reason()) == ("False", ("False", Reason.UNSCHEDULABLE))
    assert world.later(1).settle().reason("Stalled") == ("True", Reason.UNSCHEDULABLE)
    assert (world.reason("Reconciling")[0], world.told.phase) == ("False", "Stalled")
    world._put_job(replace(world.job("extract"), pods=(replace(pod, unschedulable=None, unschedulable_since=None),)))
    assert (world.settle().reason("Stalled")[0], world.told.phase) == ("False", "Extracting")


def test_a_job_of_which_some_pods_work_waits_for_nobody_though_one_finds_no_place() -> None:
    """Of sixteen shards fifteen were at work, and the object said that nothing more would happen without a person."""
    world = World().settle().finish("inspect")
    working = Pod("kimi-extract-0", world.now, "Running", started_at=world.now)
    waiting = Pod(
        "kimi-extract-1", world.now, unschedulable="Insufficient nvidia.com/gpu.", unschedulable_since=world.now
    )
    world.later(86_401)
    said = Progress(done=0.5, message="", time=world.now.timestamp())
    world._put_job(replace(world.job("extract"), pods=(working, waiting), progress=said))
    assert (world.settle().reason(), world.reason("Stalled")[0]) == (("False", Reason.UNSCHEDULABLE), "False")
    world._put_job(replace(world.job("extract"), pods=(waiting,), progress=None))
    assert world.settle().reason("Stalled")[0] == "True"


def test_shards_that_hang_are_ended_though_another_one_finds_no_place() -> None:
    """Those that ran kept their GPUs for as long as one waited, and how far they were stood still."""
    world = World().settle().finish("inspect")
    name = world.job("extract").name
    working = Pod("kimi-extract-0", world.now, "Running", started_at=world.now)
    waiting = Pod(
        "kimi-extract-1", world.now, unschedulable="Insufficient nvidia.com/gpu.", unschedulable_since=world.now
    )
    said = Progress(done=0.5, message="", time=world.now.timestamp())
    world._put_job(replace(world.job("extract"), pods=(working, waiting), progress=said))
    assert world.settle().reason() == ("False", Reason.UNSCHEDULABLE)
    assert world.told.progress == "50%"
    world.later(1799).settle()
    assert world.created.count(name) == 1
    world.later(2).settle()
    assert world.created.count(name) == 2


def test_a_job_of_which_no_pod_is_let_be_made_for_a_day_stalls_its_object() -> None:
    world = World().settle().finish("inspect")
    world._put_job(replace(world.job("extract"), pods=()))
    assert world.later(86_400).settle().reason("Stalled")[0] == "False"
    assert world.later(1).settle().reason("Stalled") == ("True", Reason.UNSCHEDULABLE)


def test_an_image_that_does_not_come_for_two_hours_stalls_the_object() -> None:
    world = World().settle()
    pulling = Pod("p", world.now, node="gpu-1", placed_at=world.now, waiting_reason="ImagePullBackOff")
    world._put_job(replace(world.job("inspect"), pods=(pulling,)))
    assert world.later(7200).settle().reason("Stalled")[0] == "False"
    assert world.later(1).settle().reason("Stalled") == ("True", Reason.IMAGE_PULL)


def test_a_first_server_that_finds_no_node_for_a_day_stalls_the_object() -> None:
    world = trained(World(room=0))
    assert world.later(86_000).settle().reason("Stalled")[0] == "False"
    assert world.later(1000).settle().reason("Stalled") == ("True", Reason.UNSCHEDULABLE)


def test_a_job_stalls_by_the_logs_that_come_though_one_is_missing() -> None:
    """A node whose kubelet does not answer hid for days that all others had stopped."""
    world = World().settle().finish("inspect")
    job = world.job("extract")
    pods = tuple(Pod(name, world.now, "Running", started_at=world.now) for name in ("p", "q"))
    said = Progress(done=0.5, message="", time=world.now.timestamp())
    world._put_job(replace(job, pods=pods, progress=said, progress_problem="the kubelet does not answer"))
    world.settle().later(1799).settle()
    assert world.created.count(job.name) == 1
    world.later(2).settle()
    assert world.created.count(job.name) == 2
