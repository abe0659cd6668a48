"""The whole operator against a real API server and real controllers; only the nodes are a stand-in."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eagle3_api import PLURAL
from eagle3_api.jobs import StageName
from eagle3_operator.manifests.names import FIELD_MANAGER
from operating import NotYetError, OperatorProcess, Site, condition, counting
from operating.kubelet import MERGE_PATCH
from operating.site import NO_NODE
from testcluster import AnyCluster, wait_for
from testcluster.api import FIELD_MANAGER as USER
from unit.samples import MODELS, SPEC, merged

Json = dict[str, Any]

#: Trains and serves, without a Prometheus.
SERVING = merged(SPEC, {"watch": None})

#: How long the garbage collector may take for a kind whose definition is new.
COLLECTION_SECONDS = 120


@pytest.fixture(scope="module")
def operator(api_server: AnyCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator for all namespaces."""
    folder: Path = tmp_path_factory.mktemp("operator")
    with OperatorProcess(api_server.kubeconfig, folder, pollSeconds=1) as running:
        running.wait_until_alive()
        yield running
    print(*running.log(), sep="\n")


@dataclass(frozen=True)
class Serving:
    """Objects that serve, brought there at the same time: what takes long is that Kubernetes looks at a Job once a second.

    Attributes:
        site: where ``kimi`` is, which every test finds serving and leaves so, and ``leaving``, which one test deletes.
        created: what ``kimi``'s metadata were at first.
    """

    site: Site
    created: Json


@pytest.fixture(scope="module")
def serving(operator: OperatorProcess, api_server: AnyCluster) -> Iterator[Serving]:
    namespace = api_server.create_namespace("serving")
    site = Site(api_server, namespace)
    site.create("kimi", SERVING)
    created = site.object("kimi")["metadata"]
    site.create("leaving", SERVING)
    for name in ("kimi", "leaving"):
        site.until_ready(name)
    yield Serving(site, created)
    api_server.delete_namespace(namespace)


@pytest.fixture
def site(operator: OperatorProcess, api_server: AnyCluster, namespace: str) -> Site:
    return Site(api_server, namespace)


def test_a_new_object_has_its_first_status_and_its_job_at_once(site: Site) -> None:
    site.create("kimi", SERVING)
    status: Json = wait_for("the first status", 30, lambda: site.object("kimi").get("status", {}))
    assert status["observedGeneration"] == 1
    kinds = [one["type"] for one in status["conditions"]]
    assert kinds[0] == "Ready"
    assert {"Accepted", "DraftTrained", "RevisionProven", "Reconciling", "Stalled"} <= set(kinds)
    (job,) = wait_for("its first Job", 30, lambda: site.all("jobs"))
    assert job["metadata"]["name"].startswith("kimi-inspect-")


def test_an_object_is_brought_all_the_way_to_serving_and_each_step_is_told_once(
    serving: Serving, operator: OperatorProcess
) -> None:
    site = serving.site
    obj = site.object("kimi")
    assert (obj["status"]["servingRevision"], obj["status"]["revision"]) == (1, "r1")
    assert site.get("services", "kimi")["spec"]["selector"]["eagle3.dev/revision"] == "r1"
    states = {stage["name"]: stage["state"] for stage in obj["status"]["stages"]}
    assert [states[name] for name in ("inspect", "extract", "train", "convert")] == ["Succeeded"] * 4
    events = wait_for("its events", 10, lambda: site.events("kimi"))
    assert {one["involvedObject"]["uid"] for one in events} == {obj["metadata"]["uid"]}
    assert len({(one["reason"], one["message"]) for one in events}) == len(events)
    assert operator.metric('objects{phase="Serving"}') >= 1


def test_without_a_prometheus_the_servers_own_counters_decide_whether_the_draft_goes_on_serving(site: Site) -> None:
    with counting() as (servers, port):
        site.kubelet.address = "127.0.0.1"
        watch = {"window": "10s", "minTokens": 100}
        site.create("kimi", merged(SERVING, {"serve": {"port": port}, "watch": watch}))
        site.until_ready("kimi")

        def after_traffic(accept_length: float) -> Json:
            servers.traffic(requests=20, accept_length=accept_length)
            return site.object("kimi")

        site.until("a verdict", lambda: condition(after_traffic(2.5), "DraftHealthy").get("status") == "True")
        said = condition(site.object("kimi"), "DraftHealthy")["message"]
        assert said.startswith("accept length 2.50")
        assert said.endswith("Read directly from its pods, because spec.watch names no Prometheus")
        site.until("the roll-back", lambda: after_traffic(1.0)["status"]["servingRevision"] == 0)
        proven = condition(site.object("kimi"), "RevisionProven")
        assert (proven["status"], proven["reason"]) == ("False", "SlowerThanBaseline")


def test_every_line_of_the_log_about_an_object_names_it(serving: Serving, operator: OperatorProcess) -> None:
    lines = [line for line in operator.log() if line["logger"].startswith("eagle3_operator.cluster")]
    assert all("namespace" in line and "name" in line for line in lines)
    mine = [line["message"] for line in lines if (line["namespace"], line["name"]) == (serving.site.namespace, "kimi")]
    assert mine[-1].startswith("Serving: Serving")


def test_a_pod_that_finds_no_node_is_told_in_the_schedulers_words(site: Site) -> None:
    site.create("kimi", SERVING)

    def said() -> bool:
        ready = condition(site.object("kimi"), "Ready")
        return ready.get("reason") == "Unschedulable" and re.search(NO_NODE, ready["message"]) is not None

    wait_for("the scheduler's words", 60, said)


@pytest.mark.parametrize(("mode", "bound"), [("ReadWriteOnce", True), ("ReadWriteMany", False)])
def test_pods_that_mount_a_claim_of_one_node_are_to_be_on_one_node(site: Site, mode: str, bound: bool) -> None:
    for name, access in (("shared", "ReadWriteMany"), ("models", mode)):
        size = {"accessModes": [access], "resources": {"requests": {"storage": "1Ti"}}}
        site.apply("v1", "PersistentVolumeClaim", name, size)
    shared = {"features": {"claim": "shared"}, "drafts": {"claim": "shared"}}
    site.create("kimi", SERVING | {"storage": shared, "placement": {"volumes": [MODELS]}})
    (job,) = wait_for("its first Job", 20, lambda: site.jobs("kimi", StageName.INSPECT))
    template = job["spec"]["template"]
    assert ("podAffinity" in template["spec"].get("affinity", {})) is bound
    assert ("eagle3.dev/together" in template["metadata"]["labels"]) is bound


def test_the_operator_writes_nothing_to_an_objects_metadata(serving: Serving) -> None:
    created, metadata = serving.created, serving.site.object("kimi")["metadata"]
    same = set(created) - {"resourceVersion", "managedFields"}
    assert set(metadata) == set(created)
    assert {name: metadata[name] for name in same} == {name: created[name] for name in same}
    assert "finalizers" not in metadata
    assert "annotations" not in metadata
    written = {(one["manager"], one.get("subresource", "")) for one in metadata["managedFields"]}
    assert written == {(USER, ""), (FIELD_MANAGER, "status")}


def test_deleting_an_object_leaves_no_orphan_and_keeps_the_users_claims(
    serving: Serving, operator: OperatorProcess
) -> None:
    site = serving.site

    def left(kind: str) -> list[str]:
        return [one["metadata"]["name"] for one in site.all(kind) if one["metadata"]["name"].startswith("leaving")]

    kinds = ("jobs", "deployments", "services", "pods")
    assert all(map(left, kinds))
    site.delete(PLURAL, "leaving")
    wait_for("the object to be gone", 10, lambda: not left(PLURAL))
    wait_for("its children to be gone", COLLECTION_SECONDS, lambda: not any(map(left, kinds)))
    assert {claim["metadata"]["name"] for claim in site.all("persistentvolumeclaims")} == {"features", "drafts"}
    wrong = [line for line in operator.log() if line["level"] == "error" and line.get("namespace") == site.namespace]
    assert wrong == []


def test_a_claim_of_the_operators_goes_with_the_object_if_it_says_so_in_the_end(site: Site) -> None:
    def owned(*names: str) -> bool:
        found = {claim["metadata"]["name"]: claim["metadata"] for claim in site.all("persistentvolumeclaims")}
        made = found.get("kimi-drafts")
        return made is not None and tuple(owner["name"] for owner in made.get("ownerReferences", ())) == names

    storage = {"features": {"claim": "features"}, "drafts": {"size": "1Gi"}}
    for policy, owners in (("Delete", ("kimi",)), ("Retain", ()), ("Delete", ("kimi",))):
        site.create("kimi", SERVING | {"storage": storage, "deletionPolicy": policy})
        wait_for(f"the claim of an object with {policy}", 20, partial(owned, *owners))


def test_an_object_deleted_in_the_middle_leaves_no_orphan(site: Site) -> None:
    site.create("kimi", SERVING)
    hold = (StageName.TRAIN,)
    site.until("the training", lambda: site.jobs("kimi", StageName.TRAIN), hold=hold)
    site.delete(PLURAL, "kimi")
    wait_for("its children to be gone", COLLECTION_SECONDS, lambda: not site.all("jobs") and not site.all("pods"))
    assert site.all(PLURAL) == []


def test_a_service_of_the_objects_name_that_is_not_its_own_is_never_applied_over(site: Site) -> None:
    foreign = {"ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}], "selector": {"app": "a-shop"}}
    site.apply("v1", "Service", "kimi", foreign)
    before = site.get("services", "kimi")
    site.create("kimi", SERVING)
    said = site.until_says("kimi", "Stalled", "NameConflict")
    assert said["status"] == "True"
    assert "Service kimi" in said["message"]
    assert site.all("jobs") == [], "nothing is trained that could not be served"
    assert condition(site.object("kimi"), "Ready")["reason"] == "NameConflict"
    assert site.get("services", "kimi") == before

    site.delete("services", "kimi")
    site.retry("kimi", "inspect@now")  # it is looked at again by itself too, within half a minute
    assert site.until_ready("kimi")["status"]["servingRevision"] == 1


def test_a_quota_that_refuses_a_job_is_told_and_once_it_is_raised_the_object_goes_on(
    site: Site, operator: OperatorProcess
) -> None:
    site.apply("v1", "ResourceQuota", "few", {"hard": {"count/jobs.batch": "1"}})
    wait_for("the quota", 30, lambda: "used" in site.get("resourcequotas", "few").get("status", {}))
    site.create("kimi", SERVING)
    words: str = site.until_says("kimi", "Ready", "Refused")["message"]
    assert words.startswith("Job kimi-extract-")
    assert "exceeded quota: few, requested: count/jobs.batch=1, used: count/jobs.batch=1" in words
    assert f"kubectl describe quota -n {site.namespace}" in words
    assert condition(site.object("kimi"), "FeaturesReady")["message"] == words
    assert condition(site.object("kimi"), "Reconciling")["status"] == "True"
    (event,) = wait_for("its event", 10, lambda: [one for one in site.events("kimi") if one["reason"] == "Refused"])
    assert (event["type"], event["message"]) == ("Warning", words)
    assert operator.metric('reconciles_total{result="refused"}') >= 1
    site.apply("v1", "ResourceQuota", "few", {"hard": {"count/jobs.batch": "50"}})
    site.until_ready("kimi")
    assert condition(site.object("kimi"), "Reconciling")["status"] == "False"


def test_a_budget_of_disruptions_that_somebody_deletes_is_made_again(serving: Serving) -> None:
    site = serving.site
    right = site.get("poddisruptionbudgets", "kimi-servers")["spec"]
    assert right["selector"]["matchLabels"]["eagle3.dev/revision"] == "r1"
    site.delete("poddisruptionbudgets", "kimi-servers")

    def again() -> bool:
        site.poke("kimi", str(time.monotonic()))
        return bool(site.get("poddisruptionbudgets", "kimi-servers")["spec"] == right)

    site.until("it to be back", again)


def test_a_job_in_a_queue_waits_until_it_is_resumed_there(site: Site) -> None:
    """The test plays Kueue's part: it resumes what is queued."""
    spec = SERVING | {"queueName": "gpus"}
    site.create("kimi", spec)

    def queued(stage: StageName, generation: int) -> Json:
        obj = site.object("kimi")
        said = condition(obj, "Ready")
        jobs = site.jobs("kimi", stage)
        if not jobs or said.get("reason") != "Queued" or said["observedGeneration"] != generation:
            raise NotYetError(str(said))
        return jobs[0]

    for generation, stage in enumerate((StageName.EXTRACT, StageName.TRAIN), 2):
        # An edit that changes nothing of the Job: by its generation one knows that the operator has looked at it again.
        site.create("kimi", merged(spec, {"probe": {"minSpeedup": generation / 10}}))
        job: Json = site.until(f"{stage} to be queued", partial(queued, stage, generation))
        labels, path = job["metadata"]["labels"], site.path("jobs", job["metadata"]["name"])
        assert (job["spec"]["suspend"], labels["kueue.x-k8s.io/queue-name"]) == (True, "gpus")
        site.cluster.request("PATCH", path, {"spec": {"suspend": False}}, MERGE_PATCH)
    assert site.until_ready("kimi")["status"]["servingRevision"] == 1
    labels = site.get("deployments", "kimi-r1")["spec"]["template"]["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "gpus"


def test_servers_make_room_for_an_approved_training_and_serve_again_after_it(site: Site) -> None:
    site.create("kimi", merged(SERVING, {"serve": {"whileTraining": "ScaleToZero", "surge": "Never"}}))
    site.until_ready("kimi")
    site.create("kimi", merged(SERVING, {"serve": {"whileTraining": "ScaleToZero"}, "train": {"epochs": 9}}))
    asked = site.until_says("kimi", "Ready", "AwaitingApproval")["message"]
    word = asked.split("eagle3.dev/approve=")[1].split()[0]
    assert site.get("deployments", "kimi-r1")["spec"]["replicas"] == 1
    approval = {"metadata": {"annotations": {"eagle3.dev/approve": word}}}
    site.cluster.request("PATCH", site.path(PLURAL, "kimi"), approval, MERGE_PATCH)
    hold = (StageName.TRAIN,)
    site.until("the training", lambda: len(site.jobs("kimi", StageName.TRAIN)) == 1, hold=hold)
    assert site.get("deployments", "kimi-r1")["spec"]["replicas"] == 0
    assert not [pod for pod in site.all("pods") if pod["metadata"]["name"].startswith("kimi-r")]
    site.until_ready("kimi")
    assert condition(site.object("kimi"), "ServerAvailable")["status"] == "True"
