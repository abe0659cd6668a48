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
from testcluster.provide import choice
from unit.samples import LEAST

Json = dict[str, Any]

CONFIGURATION = {
    "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
    "kind": "Configuration",
    "leaderElection": {"leaderElect": False},
    "internalCertManagement": {"enable": False},
    "metrics": {"bindAddress": "0"},
}

#: Trains on two nodes, and serves nothing.
SHARED = {"size": "1Gi", "accessMode": "ReadWriteMany"}
TOGETHER: Json = LEAST | {"storage": {"features": SHARED, "drafts": SHARED}, "train": {"nodes": 2, "gpus": 0}}

HELD = (StageName.TRAIN,)


@pytest.fixture(scope="module")
def jobset(api_server: AnyCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    if choice(node=False) != "embedded":
        pytest.skip("this cluster's API server does not reach this machine")
    controller = Controller(api_server, tmp_path_factory.mktemp("jobset"), "jobset", CONFIGURATION)
    controller.add_kinds()
    with controller.running():
        yield controller
    controller.remove_kinds()


@pytest.fixture(scope="module")
def operator(
    jobset: Controller, api_server: AnyCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all namespaces, with the chart's rights."""
    binary("helm")
    folder, namespace = tmp_path_factory.mktemp("operator"), api_server.create_namespace("operator")
    kubeconfig = kubeconfig_of_the_chart(api_server, namespace, folder)
    with OperatorProcess(kubeconfig, folder, pollSeconds=1) as running:
        running.wait_until_alive()
        yield running
    print(*running.log(), sep="\n")
    api_server.delete_namespace(namespace)


@pytest.fixture
def site(operator: OperatorProcess, api_server: AnyCluster, namespace: str) -> Site:
    return Site(api_server, namespace)


def training(site: Site) -> list[Json]:
    """The pods of a training on two nodes, once they are there."""
    pods = [pod for pod in site.all("pods") if pod["metadata"]["labels"]["eagle3.dev/stage"] == StageName.TRAIN]
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return alive if len(alive) == 2 else []


def of_train(site: Site) -> Json:
    """What the object says of its training."""
    stages = site.object("kimi").get("status", {}).get("stages", [])
    return next((stage for stage in stages if stage["name"] == StageName.TRAIN), {})


def test_the_training_is_a_jobset_whose_pods_have_the_names_by_which_they_look_for_each_other(site: Site) -> None:
    site.create("kimi", TOGETHER)
    pods = site.until("the training's pods", lambda: training(site), hold=HELD)
    (made,), (job,) = site.all("jobsets"), site.jobs("kimi", StageName.TRAIN)
    name = made["metadata"]["name"]
    config = JobEnvelope.model_validate_json(pods[0]["metadata"]["annotations"][CONFIG_ANNOTATION]).config
    assert isinstance(config, TrainConfig)
    assert {f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}" for pod in pods} == set(config.hosts)
    service = site.get("services", config.hosts[0].partition(".")[2])
    assert service["spec"]["clusterIP"] == "None"
    assert all(service["spec"]["selector"].items() <= pod["metadata"]["labels"].items() for pod in pods)
    assert [owner["name"] for owner in job["metadata"]["ownerReferences"]] == [name]
    assert (of_train(site)["job"], of_train(site)["state"]) == (name, "Running")

    site.until_ready("kimi")
    assert site.get("jobsets", name)["status"]["terminalState"] == "Completed"
    assert of_train(site)["state"] == "Succeeded"


def test_a_training_that_failed_for_good_is_run_again_by_nobody_but_the_user(site: Site) -> None:
    site.create("kimi", TOGETHER)
    pods = site.until("the training's pods", lambda: training(site), hold=HELD)
    site.kubelet.fail(pods[1], code=15, reason=Reason.NON_FINITE, message="the loss is not finite at step 7")
    site.until("the failure", lambda: of_train(site).get("state") == "Failed", hold=HELD)
    assert (of_train(site)["reason"], of_train(site)["message"][:32]) == (
        "NonFinite",
        "the loss is not finite at step 7",
    )
    (made,) = site.all("jobsets")
    assert made["status"]["restarts"] == 0
    assert made["status"]["terminalState"] == "Failed"

    site.retry("kimi", "train@again")
    site.until_ready("kimi")
    (again,) = site.all("jobsets")
    assert again["metadata"]["name"] == made["metadata"]["name"]
    assert again["metadata"]["uid"] != made["metadata"]["uid"]


def test_a_suspended_object_suspends_its_jobset_and_goes_on_with_it(site: Site) -> None:
    site.create("kimi", TOGETHER)
    site.until("the training's pods", lambda: training(site), hold=HELD)
    site.create("kimi", TOGETHER | {"suspend": True})
    site.until("the pods to be gone", lambda: not training(site), hold=HELD)
    (made,) = site.all("jobsets")
    assert made["spec"]["suspend"]
    site.create("kimi", TOGETHER | {"suspend": False})
    site.until_ready("kimi")
    assert [one["metadata"]["uid"] for one in site.all("jobsets")] == [made["metadata"]["uid"]]


def test_a_jobset_in_a_queue_waits_as_a_whole(site: Site) -> None:
    """The test plays Kueue's part: it resumes what is queued."""
    site.create("kimi", TOGETHER | {"queueName": "gpus"})
    resume = {"spec": {"suspend": False}}

    def queued(kind: str, stage: StageName) -> Json:
        found = [one for one in site.all(kind) if one["metadata"]["labels"]["eagle3.dev/stage"] == stage]
        if not found or condition(site.object("kimi"), "Ready").get("reason") != "Queued":
            raise NotYetError(str(condition(site.object("kimi"), "Ready")))
        return found[0]

    extract = site.until("extract to be queued", lambda: queued("jobs", StageName.EXTRACT))
    site.cluster.request("PATCH", site.path("jobs", extract["metadata"]["name"]), resume, MERGE_PATCH)
    made = site.until("the JobSet to be queued", lambda: queued("jobsets", StageName.TRAIN))
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    (job,) = site.until("its Job", lambda: site.jobs("kimi", StageName.TRAIN))
    assert job["spec"]["suspend"]
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]
    site.cluster.request("PATCH", site.path("jobsets", made["metadata"]["name"]), resume, MERGE_PATCH)
    site.until_ready("kimi")


def test_jobset_may_be_removed_and_installed_again_while_an_object_trains(site: Site, jobset: Controller) -> None:
    site.create("kimi", TOGETHER)
    site.until("the training's pods", lambda: training(site), hold=HELD)
    jobset.remove_kinds()

    def alone() -> Json:
        found = [
            job for job in site.jobs("kimi", StageName.TRAIN) if job["metadata"]["ownerReferences"][0]["name"] == "kimi"
        ]
        return found[0] if found and training(site) else {}

    job = site.until("an Indexed Job of the same name", alone, hold=HELD)
    assert job["spec"]["completionMode"] == "Indexed"
    jobset.add_kinds()
    site.poke("kimi", "again")
    site.until_ready("kimi")
    assert site.all("jobsets") == []
    assert [one["metadata"]["uid"] for one in site.jobs("kimi", StageName.TRAIN)] == [job["metadata"]["uid"]]


def test_an_object_takes_its_jobset_with_it(site: Site) -> None:
    site.create("kimi", TOGETHER)
    site.until("the training's pods", lambda: training(site), hold=HELD)
    site.delete(PLURAL, "kimi")
    kinds = ("jobsets", "jobs", "pods", "services")
    wait_for("all of it to be gone", 60, lambda: not any(site.all(kind) for kind in kinds))
