"""queueName: Kueue suspends and resumes, and the operator leaves it to that."""

from dataclasses import replace

from eagle3_api.conditions import Reason
from eagle3_operator.observation import Pod
from unit.decide.world import World, serving_draft, serving_plain, trained
from unit.samples import measured


def queued() -> World:
    """Extract waits in the queue."""
    return World().edit(queueName="gpus").settle().finish("inspect")


def test_only_what_is_large_waits_in_the_queue() -> None:
    world = World().edit(queueName="gpus").settle()
    assert world.job("inspect").queue is None
    world.finish("inspect")
    assert (world.job("extract").queue, world.job("extract").suspended) == ("gpus", True)
    for stage in ("extract", "train"):
        world.finish(stage)
    assert world.job("convert").queue is None


def test_a_job_in_the_queue_is_queued_and_neither_resumed_nor_called_stalled() -> None:
    world = queued()
    for _ in range(3):
        world.later(7200).settle()
    assert world.job("extract").suspended
    assert world.created.count(world.job("extract").name) == 1
    assert world.reason() == ("False", Reason.QUEUED)
    assert "queue gpus" in world.condition("Ready").message
    assert world.reason("Stalled")[0] == "False"
    assert world.told.phase == "Extracting"


def test_what_waits_for_quota_for_a_day_stalls_its_object_and_goes_on_once_it_is_admitted() -> None:
    """Of a LocalQueue that is not there, or has no quota of that kind, nobody was told to look."""
    world = queued()
    assert world.later(86_400).settle().reason("Stalled")[0] == "False"
    assert world.later(1).settle().reason("Stalled") == ("True", Reason.QUEUED)
    assert (world.reason("Reconciling")[0], world.told.phase) == ("False", "Stalled")
    running = Pod("e", world.now, "Running", started_at=world.now)
    world._put_job(replace(world.job("extract"), suspended=False, pods=(running,)))
    assert (world.settle().reason("Stalled")[0], world.told.phase) == ("False", "Extracting")
    world._put_job(replace(world.job("extract"), suspended=True, suspended_since=world.now, pods=()))
    assert world.settle().reason("Stalled")[0] == "False", "it waits from now on"


def test_a_first_server_that_waits_for_quota_for_a_day_stalls_its_object() -> None:
    world = trained(World().edit(queueName="gpus"))
    world.pods(0, Pod("kimi-r0-x", world.now, queue="gpus")).later(86_401).settle()
    assert world.reason("Stalled") == ("True", Reason.QUEUED)


def test_a_job_that_the_queue_admits_runs_and_one_that_it_takes_back_is_queued_again() -> None:
    world = queued()
    running = Pod("e", world.now, "Running", started_at=world.now)
    world._put_job(replace(world.job("extract"), suspended=False, pods=(running,)))
    world.settle()
    assert world.reason() == ("False", Reason.EXTRACTING)
    world._put_job(replace(world.job("extract"), suspended=True, pods=()))
    world.settle()
    assert world.reason() == ("False", Reason.QUEUED)
    assert world.job("extract").suspended


def test_a_suspended_object_takes_its_job_out_of_the_queue_which_would_resume_it() -> None:
    world = queued()
    name = world.job("extract").name
    world._put_job(
        replace(world.job("extract"), suspended=False, pods=(Pod("e", world.now, "Running", started_at=world.now),))
    )
    world.edit(suspend=True).settle()
    assert world.jobs("extract") == []
    assert world.reason() == ("False", Reason.SUSPENDED)
    world.edit(suspend=False).settle()
    assert world.created.count(name) == 2
    assert world.reason() == ("False", Reason.QUEUED)


def test_a_job_that_still_waits_moves_to_the_queue_that_is_named_now_and_a_running_one_stays() -> None:
    world = queued()
    name = world.job("extract").name
    world.edit(queueName="others").settle()
    assert world.job("extract").queue == "others"
    assert world.created.count(name) == 2
    world._put_job(
        replace(world.job("extract"), suspended=False, pods=(Pod("e", world.now, "Running", started_at=world.now),))
    )
    world.edit(queueName=None).settle()
    assert world.job("extract").queue == "others"
    assert world.created.count(name) == 2


def test_a_server_that_waits_for_quota_says_so_and_displaces_the_serving_one_as_if_it_found_no_gpu() -> None:
    world = serving_plain(World().edit(queueName="gpus"))
    gated = Pod("kimi-r1-x", world.now, queue="gpus")
    world.pods(1, gated)
    assert world.reason() == ("False", Reason.QUEUED)
    assert "kimi-r1-x waits for quota in queue gpus" in world.condition("Ready").message
    assert world.replicas == {0: 1, 1: 1}
    world.later(121).settle()
    assert world.replicas == {0: 0, 1: 1}
    world.ready(1).finish("probe", measured(accept=2.71, speed=126.9))
    assert world.serving == 1


def test_the_queue_is_no_new_way_of_serving_and_changes_no_key() -> None:
    world = serving_draft()
    created = list(world.created)
    world.edit(queueName="gpus").settle()
    assert world.replicas == {0: 1, 1: 1}
    assert world.created == created
    assert world.reason() == ("True", Reason.SERVING)
