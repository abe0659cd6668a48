"""Training on several nodes where JobSet is installed: its real controller and webhooks; only the nodes are a stand-in."""

from collections.abc import Iterator
from typing import Any

import pytest

from eagle3_api import PLURAL
from eagle3_api.conditions import Reason
from eagle3_api.jobs import CONFIG_ANNOTATION, JobEnvelope, StageName, TrainConfig
from operating import Controller, NotYetError, OperatorProcess, Site, condition, kubeconfig_of_the_chart
from operating.kubelet import MERGE_PATCH
from testcluster import AnyCluster, wait_for
from testcluster.build import binary
from unit.samples import LEAST

Json = dict[str, Any]

#: Trains on two nodes, and serves nothing.
SHARED = {"size": "1Gi", "accessMode": "ReadWriteMany"}
TOGETHER: Json = LEAST | {"storage": {"features": SHARED, "drafts": SHARED}, "train": {"nodes": 2, "gpus": 0}}

HELD = (StageName.TRAIN,)


@pytest.fixture(scope="module")
def operator(
    api_server: AnyCluster, jobset: Controller | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all namespaces, with the chart's rights, beside JobSet's controller."""
    if jobset is None:
        pytest.skip("this cluster's API server does not reach this machine")
    binary("helm")
    folder, namespace = tmp_path_factory.mktemp("operator"), api_server.create_namespace("operator")
    kubeconfig = kubeconfig_of_the_chart(api_server, namespace, folder)
    with jobset.running(), OperatorProcess(kubeconfig, folder, pollSeconds=1) as running:
        running.wait_until_alive()
        yield running
    print(*running.log(), sep="\n")
    api_server.delete_namespace(namespace)


@pytest.fixture
def site(operator: OperatorProcess, api_server: AnyCluster, namespace: str) -> Site:
    return Site(api_server, namespace)


def pods_of_train(site: Site) -> list[Json]:
    return [pod for pod in site.all("pods") if pod["metadata"]["labels"]["eagle3.dev/stage"] == StageName.TRAIN]


def training(site: Site) -> list[Json]:
    """The pods of a training on two nodes, once both are there."""
    alive = [pod for pod in pods_of_train(site) if "deletionTimestamp" not in pod["metadata"]]
    return alive if len(alive) == 2 else []


def of_train(site: Site) -> Json:
    """What the object says of its training."""
    stages = site.object("kimi").get("status", {}).get("stages", [])
    return next((stage for stage in stages if stage["name"] == StageName.TRAIN), {})


def until_it_trains(site: Site) -> tuple[Json, list[Json]]:
    """The JobSet and its pods, which run until somebody ends them."""
    pods = site.until("the training's pods", lambda: training(site), hold=HELD)
    (made,) = site.all("jobsets")
    return made, pods


def ended(site: Site, made: Json, how: str) -> Json:
    """What JobSet says in the end."""

    def said() -> Json:
        status: Json = site.get("jobsets", made["metadata"]["name"])["status"]
        return status if status.get("terminalState") == how else {}

    status: Json = site.until(f"the JobSet to have {how}", said, hold=HELD)
    return status


def uids(site: Site, kind: str) -> list[str]:
    return [one["metadata"]["uid"] for one in site.all(kind)]


def test_a_training_is_a_jobset_that_waits_as_a_whole_and_whose_pods_know_each_other(site: Site) -> None:
    """The test plays Kueue's part: it resumes what is queued."""
    site.create("kimi", TOGETHER | {"queueName": "gpus"})

    def queued(kind: str, stage: StageName) -> Json:
        found = [one for one in site.all(kind) if one["metadata"]["labels"]["eagle3.dev/stage"] == stage]
        said = condition(site.object("kimi"), "Ready")
        if not found or said.get("reason") != "Queued":
            raise NotYetError(str(said))
        return found[0]

    def resume(kind: str, one: Json) -> None:
        assert one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
        path = site.path(kind, one["metadata"]["name"])
        site.cluster.request("PATCH", path, {"spec": {"suspend": False}}, MERGE_PATCH)

    resume("jobs", site.until("extract to be queued", lambda: queued("jobs", StageName.EXTRACT)))
    made = site.until("the JobSet to be queued", lambda: queued("jobsets", StageName.TRAIN))
    (job,) = site.until("its Job", lambda: site.jobs("kimi", StageName.TRAIN))
    assert job["spec"]["suspend"]
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]
    resume("jobsets", made)

    made, pods = until_it_trains(site)
    name = made["metadata"]["name"]
    config = JobEnvelope.model_validate_json(pods[0]["metadata"]["annotations"][CONFIG_ANNOTATION]).config
    assert isinstance(config, TrainConfig)
    assert {f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}" for pod in pods} == set(config.hosts)
    service = site.get("services", config.hosts[0].partition(".")[2])
    assert service["spec"]["clusterIP"] == "None"
    assert all(service["spec"]["selector"].items() <= pod["metadata"]["labels"].items() for pod in pods)
    assert (of_train(site)["job"], of_train(site)["state"]) == (name, "Running")

    site.until_ready("kimi")
    ended(site, made, "Completed")
    assert of_train(site)["state"] == "Succeeded"


def test_a_training_that_failed_for_good_is_run_again_by_nobody_but_the_user(site: Site) -> None:
    site.create("kimi", TOGETHER)
    made, pods = until_it_trains(site)
    site.kubelet.fail(pods[1], code=15, reason=Reason.NON_FINITE, message="the loss is not finite at step 7")
    site.until("the failure", lambda: of_train(site).get("state") == "Failed", hold=HELD)
    assert of_train(site)["reason"] == "NonFinite"
    assert of_train(site)["message"].startswith("the loss is not finite at step 7")
    assert ended(site, made, "Failed")["restarts"] == 0

    site.retry("kimi", "train@again")
    site.until("the failed JobSet to be gone", lambda: made["metadata"]["uid"] not in uids(site, "jobsets"), hold=HELD)
    assert until_it_trains(site)[0]["metadata"]["name"] == made["metadata"]["name"]
    site.delete(PLURAL, "kimi")
    kinds = ("jobsets", "jobs", "pods", "services")
    wait_for("all of it to be gone", 60, lambda: not any(site.all(kind) for kind in kinds))


def test_a_training_is_suspended_with_its_object_and_outlives_jobset_itself(site: Site, jobset: Controller) -> None:
    site.create("kimi", TOGETHER)
    made, _ = until_it_trains(site)
    site.create("kimi", TOGETHER | {"suspend": True})
    site.until("the pods to be gone", lambda: not pods_of_train(site), hold=HELD)
    site.create("kimi", TOGETHER | {"suspend": False})
    assert until_it_trains(site)[0]["metadata"]["uid"] == made["metadata"]["uid"]

    jobset.remove_kinds()

    def alone() -> Json:
        jobs = site.jobs("kimi", StageName.TRAIN)
        ours = [job for job in jobs if job["metadata"]["ownerReferences"][0]["name"] == "kimi"]
        return ours[0] if ours and training(site) else {}

    job = site.until("an Indexed Job of the same name", alone, hold=HELD)
    assert (job["metadata"]["name"], job["spec"]["completionMode"]) == (made["metadata"]["name"], "Indexed")
    jobset.add_kinds()
    site.poke("kimi", "again")
    site.until_ready("kimi")
    assert site.all("jobsets") == []
    assert [one["metadata"]["uid"] for one in site.jobs("kimi", StageName.TRAIN)] == [job["metadata"]["uid"]]
