"""A training on several nodes, with JobSet and without."""

from dataclasses import replace

import pytest

from eagle3_api.conditions import Reason
from eagle3_operator.observation import Claim, Pod
from unit.decide.world import World, training_of


def about_to_train(*, jobsets: bool, name: str = "kimi") -> World:
    """Everything is there for a training on three nodes but its Job."""
    world = World(name=name).edit(train={"nodes": 3, "gpus": 8, "sharding": "Hybrid"})
    shared = {name: Claim(name, 10**13, access_modes=("ReadWriteMany",)) for name in ("features", "drafts")}
    world.seen = replace(world.seen, claims=shared, jobsets=jobsets)
    return world.settle().finish("inspect").finish("extract")


def test_the_pods_of_a_training_on_several_nodes_have_their_names_before_they_start() -> None:
    world = about_to_train(jobsets=False)
    service, job = world.applied[-2:]
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert (training_of(job).processes, training_of(job).sharding) == (8, "Hybrid")
    subdomain = service["metadata"]["name"]
    assert training_of(job).hosts == [f"{job['metadata']['name']}-{index}.{subdomain}" for index in range(3)]
    assert job["spec"]["template"]["spec"]["subdomain"] == subdomain


def test_where_the_cluster_serves_jobsets_one_of_them_runs_the_training_and_names_its_pods() -> None:
    world = about_to_train(jobsets=True)
    former, made = world.applied[-2:]
    assert (former["metadata"]["labels"]["eagle3.dev/stage"], made["kind"]) == ("extract", "JobSet")
    name = made["metadata"]["name"]
    (replicated,) = made["spec"]["replicatedJobs"]
    assert training_of(replicated["template"]).hosts == [f"{name}-nodes-0-{index}.{name}" for index in range(3)]
    assert world.told.stages[-1].message == ""
    world.finish("train").finish("convert")
    assert world.created.count(name) == 1


@pytest.mark.parametrize(("length", "kind"), [(32, "JobSet"), (33, "Job")])
def test_a_name_too_long_for_the_pods_of_a_jobset_goes_without(length: int, kind: str) -> None:
    made = about_to_train(jobsets=True, name="k" * length).applied[-1]
    assert made["kind"] == kind
    pod = f"{made['metadata']['name']}-nodes-0-2-abcde"
    assert (len(pod) <= 63) == (kind == "JobSet")


@pytest.mark.parametrize("installed", [True, False], ids=["installed", "removed"])
def test_a_training_goes_on_in_the_form_in_which_it_began(installed: bool) -> None:
    world = about_to_train(jobsets=not installed)
    name = world.job("train").name
    world._put_job(replace(world.job("train"), pods=(Pod("p", world.now, "Running", started_at=world.now),)))
    world.seen = replace(world.seen, jobsets=installed)
    world.settle()
    world.edit(suspend=True).settle()
    assert world.job("train").suspended
    world.edit(suspend=False).settle().finish("train")
    assert world.created.count(name) == 1


def test_a_jobset_that_makes_no_job_is_told() -> None:
    world = about_to_train(jobsets=True)
    world._put_job(replace(world.job("train"), unmade=True))
    world.settle()
    assert world.told.stages[-1].reason is Reason.PENDING
    assert f"kubectl describe jobset {world.job('train').name}" in world.told.stages[-1].message


def test_a_jobset_whose_pods_nobody_lets_be_made_is_told_with_the_job_that_it_made() -> None:
    world = about_to_train(jobsets=True)
    world._put_job(replace(world.job("train"), pods=()))
    world.later(121).settle()
    assert f"kubectl describe job {world.job('train').name}-nodes-0 -n" in world.told.stages[-1].message


def test_a_jobset_whose_pods_are_gone_is_looked_at_until_it_is_gone_itself() -> None:
    world = about_to_train(jobsets=True)
    going = replace(world.job("train"), terminating=True, deleted_at=world.now, pods=())
    world._put_job(going)
    assert world.step().requeue_after == 1.0
    assert world.later(3600).step().requeue_after == 30.0
