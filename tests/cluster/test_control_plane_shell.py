"""One reconcile at a time, in this process, against a real API server: what it sees, does, refuses and writes.

The decision is the test's own, so that each test says what the shell makes of it.
"""

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from eagle3_api import KIND, PLURAL
from eagle3_api.conditions import EventReason, Reason, Type
from eagle3_api.jobs import StageName
from eagle3_api.spec import Eagle3Draft
from eagle3_api.status import Eagle3DraftStatus, Phase
from eagle3_operator.cluster.client import ApiError, Client, ConflictError, NameConflictError
from eagle3_operator.cluster.observe import Observer
from eagle3_operator.cluster.queue import Key, UnfinishedError
from eagle3_operator.cluster.reconcile import Reconciler
from eagle3_operator.decide.refusals import as_before, told
from eagle3_operator.decision import Decision, Delete, Event, Manifest, Scale, Suspend
from eagle3_operator.manifests import names
from eagle3_operator.metrics import Metrics
from eagle3_operator.observation import Observation
from eagle3_operator.settings import Settings
from operating import Site, client_of, condition
from operating.site import NO_NODE, NOWHERE
from testcluster import AnyCluster, wait_for
from unit.samples import SPEC

Json = dict[str, Any]

NAME = "kimi"


@dataclass
class Shell:
    """An object and a reconciler whose decision a test chooses."""

    site: Site
    client: Client
    #: Makes the next decision from the status so far.
    choose: Callable[[Eagle3Draft, Eagle3DraftStatus], Decision] = lambda obj, status: Decision(status)
    seen: list[Observation] = field(default_factory=list)

    def __post_init__(self) -> None:
        observer = Observer(self.client, {}, poll_seconds=10)
        settings = Settings(namespace=self.site.namespace, workers=1)
        self.reconciler = Reconciler(self.client, observer, settings, decide=self._decide, metrics=Metrics())

    def _decide(self, obj: Eagle3Draft, seen: Observation, settings: Settings, now: datetime) -> Decision:
        self.seen.append(seen)
        return self.choose(obj, Eagle3DraftStatus.model_validate(obj.status))

    def reconcile(self) -> float | None:
        return asyncio.run(self.reconciler.reconcile(Key(self.site.namespace, NAME)))

    def decides(self, **decision: Any) -> "Shell":
        """From now on every decision has these parts, with the status as it is in phase Training."""
        self.choose = lambda obj, status: Decision(
            status.model_copy(update={"phase": Phase.TRAINING}),
            **{name: part(obj) if callable(part) else part for name, part in decision.items()},
        )
        return self

    @property
    def version(self) -> str:
        version: str = self.site.object(NAME)["metadata"]["resourceVersion"]
        return version


@pytest.fixture
def shell(api_server: AnyCluster, namespace: str) -> Iterator[Shell]:
    made = Shell(Site(api_server, namespace), client_of(api_server.kubeconfig))
    made.site.create(NAME, SPEC)
    yield made
    made.reconciler.close()


# The children that the tests' decisions make: small ones, with the names and labels of real ones.


def service(obj: Eagle3Draft) -> Manifest:
    metadata = names.metadata(obj, NAME, labels=names.labels(NAME))
    spec = {"selector": {names.NAME_LABEL: NAME, names.REVISION_LABEL: "r2"}, "ports": [{"port": 30000}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def pod_template(obj: Eagle3Draft, **labels: Any) -> Manifest:
    container = {"name": "main", "image": "kit.local/nothing:1"}
    spec = {"containers": [container], "nodeSelector": NOWHERE}
    return {"metadata": {"labels": names.labels(obj.metadata.name, **labels)}, "spec": spec}


def job(obj: Eagle3Draft, name: str = f"{NAME}-train-01234567") -> Manifest:
    annotations = {names.KEY_ANNOTATION: "0123456789abcdef", names.TEMPLATE_ANNOTATION: "cafe"}
    labels = names.labels(NAME, stage=StageName.TRAIN)
    template = pod_template(obj, stage=StageName.TRAIN)
    template["spec"]["restartPolicy"] = "Never"
    metadata = names.metadata(obj, name, labels=labels, annotations=annotations)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}


def deployment(obj: Eagle3Draft) -> Manifest:
    labels = names.labels(NAME, revision=1)
    annotations = {names.KEY_ANNOTATION: "k", names.RECORD_ANNOTATION: '{"draft":"sha256:9f"}'}
    metadata = names.metadata(obj, f"{NAME}-r1", labels=labels, annotations=annotations)
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": pod_template(obj, revision=1)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


# ------------------------------------------------------------------------------------------------------- seeing


def test_it_sees_an_objects_children_as_they_are(shell: Shell) -> None:
    shell.decides(apply=lambda obj: (job(obj), deployment(obj), service(obj))).reconcile()
    shell.decides()

    def all_pods() -> Observation | None:
        shell.reconcile()
        seen = shell.seen[-1]
        waiting = [*seen.jobs[f"{NAME}-train-01234567"].pods, *seen.deployments[1].pods]
        return seen if len(waiting) == 3 and all(pod.unschedulable for pod in waiting) else None

    seen = wait_for("all pods to be found unschedulable", 30, all_pods)
    assert seen is not None
    (trained,) = seen.jobs.values()
    assert (trained.stage, trained.key, trained.template) == ("train", "0123456789abcdef", "cafe")
    assert (trained.owned, trained.complete, trained.suspended) == (True, False, False)
    assert re.search(NO_NODE, trained.pods[0].unschedulable or "")
    served = seen.deployments[1]
    assert (served.replicas, served.ready_replicas, served.owned) == (2, 0, True)
    assert served.record == {"draft": "sha256:9f"}
    assert (seen.services[NAME].selected_revision, seen.services[NAME].owned) == (2, True)
    assert {name: claim.capacity for name, claim in seen.claims.items()} == {"features": 2**40, "drafts": 2**40}


def test_a_child_that_another_object_controls_is_seen_as_not_owned(shell: Shell) -> None:
    """So are the children of a former object of the same name, until the garbage collector has taken them."""
    owner = shell.site.get("configmaps", "kube-root-ca.crt")["metadata"]
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner["name"],
        "uid": owner["uid"],
        "controller": True,
    }
    spec = {"ports": [{"port": 80}]}
    shell.site.apply("v1", "Service", NAME, spec, labels=names.labels(NAME), ownerReferences=[reference])
    shell.decides().reconcile()
    assert not shell.seen[-1].services[NAME].owned


# -------------------------------------------------------------------------------------------------------- acting


def test_it_scales_suspends_and_deletes_what_is_its_own(shell: Shell) -> None:
    shell.decides(apply=lambda obj: (job(obj), deployment(obj))).reconcile()
    name = f"{NAME}-train-01234567"
    shell.decides(scale=(Scale(f"{NAME}-r1", 0),), suspend=(Suspend("Job", name, True),)).reconcile()
    assert shell.site.get("deployments", f"{NAME}-r1")["spec"]["replicas"] == 0
    assert shell.site.get("jobs", name)["spec"]["suspend"] is True
    shell.decides(delete=(Delete("Job", name), Delete("Job", "one-that-is-gone")))
    wait_for("the deletion", 30, lambda: shell.reconcile() is None, tolerate=(ConflictError,))
    wait_for("the Job to be gone", 120, lambda: shell.site.all("jobs") == [])


def test_applying_the_same_again_writes_nothing(shell: Shell) -> None:
    shell.decides(apply=lambda obj: (service(obj),)).reconcile()
    before = shell.site.get("services", NAME)
    shell.reconcile()
    assert shell.site.get("services", NAME) == before


@pytest.mark.parametrize("labelled", [True, False], ids=["with our labels", "without our labels"])
def test_a_strangers_object_of_a_childs_name_is_left_alone_and_all_else_is_done(shell: Shell, labelled: bool) -> None:
    foreign = {"ports": [{"port": 80}], "selector": {"app": "a-shop"}}
    shell.site.apply("v1", "Service", NAME, foreign, labels=names.labels(NAME) if labelled else {})
    before = shell.site.get("services", NAME)
    shell.decides(apply=lambda obj: (service(obj), deployment(obj), job(obj)))
    with pytest.raises(UnfinishedError, match=f"Service {NAME} exists and does not belong to this object"):
        shell.reconcile()
    assert shell.site.get("services", NAME) == before
    assert len(shell.site.all("deployments")) == len(shell.site.all("jobs")) == 1
    (refused,) = shell.seen[-1].refused
    assert (refused.kind, refused.name, refused.verb) == ("Service", NAME, "applied")
    assert shell.site.object(NAME)["status"]["phase"] == "Training", "what the decision remembers is written"


def test_a_job_is_created_and_never_changed(shell: Shell) -> None:
    shell.decides(apply=lambda obj: (job(obj),)).reconcile()
    name = f"{NAME}-train-01234567"
    before = shell.site.get("jobs", name)["metadata"]
    changed = {"metadata": {"labels": {names.NAME_LABEL: "hidden"}}}
    shell.site.cluster.request("PATCH", shell.site.path("jobs", name), changed, "application/merge-patch+json")
    shell.reconcile()
    after = shell.site.get("jobs", name)["metadata"]
    assert (after["uid"], after["labels"][names.NAME_LABEL]) == (before["uid"], "hidden")
    assert condition(shell.site.object(NAME), "Stalled") == {}


def test_a_job_of_that_name_that_is_a_strangers_is_left_alone(shell: Shell) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "theirs", "image": "kit.local/nothing:1"}]}}
    shell.site.apply("batch/v1", "Job", f"{NAME}-train-01234567", {"template": template, "suspend": True})
    before = shell.site.get("jobs", f"{NAME}-train-01234567")
    shell.decides(apply=lambda obj: (job(obj),))
    with pytest.raises(UnfinishedError, match="does not belong to this object"):
        shell.reconcile()
    after = shell.site.get("jobs", f"{NAME}-train-01234567")
    # The Job controller writes its status and what it manages of it
    assert after["spec"] == before["spec"]
    written = {"resourceVersion", "managedFields"}
    assert {name: value for name, value in after["metadata"].items() if name not in written} == {
        name: value for name, value in before["metadata"].items() if name not in written
    }
    assert [(one.kind, one.verb) for one in shell.seen[-1].refused] == [("Job", "created")]


def test_a_claim_that_outlives_objects_is_known_by_its_labels(shell: Shell) -> None:
    def claim(obj: Eagle3Draft) -> Manifest:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        metadata = names.metadata(obj, f"{NAME}-drafts", labels=names.labels(NAME), owned=False)
        return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}

    shell.decides(apply=lambda obj: (claim(obj),)).reconcile()
    shell.site.delete(PLURAL, NAME)
    wait_for("the object to be gone", 30, lambda: shell.site.all(PLURAL) == [])
    shell.site.create(NAME, SPEC)
    assert shell.reconcile() is None
    assert condition(shell.site.object(NAME), "Stalled") == {}


def test_a_child_that_changed_since_it_was_seen_is_not_deleted(shell: Shell) -> None:
    shell.decides(apply=lambda obj: (service(obj),)).reconcile()
    metadata = shell.site.get("services", NAME)["metadata"]
    shell.site.cluster.request(
        "PATCH",
        shell.site.path("services", NAME),
        {"metadata": {"annotations": {"a": "b"}}},
        "application/merge-patch+json",
    )
    with pytest.raises(ConflictError):
        shell.client.delete("Service", shell.site.namespace, metadata)
    assert shell.site.all("services")


def test_a_budget_of_disruptions_is_deleted_though_its_status_has_changed_since_it_was_seen(shell: Shell) -> None:
    name = names.budget_name(NAME)

    def budget(obj: Eagle3Draft) -> Manifest:
        selector = {"matchLabels": {names.NAME_LABEL: NAME, names.REVISION_LABEL: "r2"}}
        metadata = names.metadata(obj, name, labels=names.labels(NAME))
        spec = {"maxUnavailable": 1, "selector": selector}
        return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}

    shell.site.cluster.request(
        "PATCH", shell.site.path(PLURAL, NAME), {"spec": {"serve": {}}}, "application/merge-patch+json"
    )
    shell.decides(apply=lambda obj: (deployment(obj), service(obj), budget(obj))).reconcile()
    shell.reconcile()
    assert shell.seen[-1].budget is not None
    status = {"status": {"conditions": [], "currentHealthy": 7}}
    path = shell.site.path("poddisruptionbudgets", name) + "/status"
    shell.site.cluster.request("PATCH", path, status, "application/merge-patch+json")
    shell.decides(delete=(Delete("PodDisruptionBudget", name),)).reconcile()
    wait_for("it to be gone", 30, lambda: shell.site.all("poddisruptionbudgets") == [])


# ------------------------------------------------------------------------------------------------------- refusals


def forbid(shell: Shell, expression: str, *kinds: tuple[str, str], message: str) -> None:
    """A ValidatingAdmissionPolicy of the cluster's owner, for this namespace alone."""
    name = f"{shell.site.namespace}-policy"
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "resources": [kind], "operations": ["CREATE", "UPDATE"]}
        for group, kind in kinds
    ]
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": shell.site.namespace}}}
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules, **here},
        "validations": [{"expression": expression, "message": message}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    group = "admissionregistration.k8s.io/v1"
    shell.site.cluster.apply(
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": policy},
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": binding},
    )


def test_what_is_refused_is_known_to_the_next_decision_and_all_else_is_done(shell: Shell) -> None:
    forbid(shell, "false", ("", "services"), ("apps", "deployments"), message="nothing is served in this namespace")
    dry = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}}

    def in_force() -> bool:
        """The policy is a moment after it was made."""
        try:
            shell.site.cluster.request("POST", shell.site.path("services") + "?dryRun=All", dry)
        except ApiException as refused:
            return "denied request" in str(refused)
        return False

    wait_for("the policy", 30, in_force)
    shell.decides(apply=lambda obj: (service(obj), deployment(obj), job(obj)))
    with pytest.raises(UnfinishedError, match="nothing is served in this namespace"):
        shell.reconcile()
    refused = shell.seen[-1].refused
    assert [(one.kind, one.name, one.verb) for one in refused] == [
        ("Service", NAME, "applied"),
        ("Deployment", f"{NAME}-r1", "applied"),
    ]
    assert all("denied request: nothing is served in this namespace" in one.message for one in refused)
    assert [one["metadata"]["name"] for one in shell.site.all("jobs")] == [f"{NAME}-train-01234567"]
    assert shell.site.object(NAME)["status"]["phase"] == "Training", "the status is written all the same"


@contextmanager
def hanging_up() -> Iterator[int]:
    """The port of a server that hangs up on whoever has said something."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # closed
                while True:
                    caller, _ = server.accept()
                    caller.recv(1)
                    # With unread words, and nothing lingering, it is a reset
                    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    caller.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_webhook_whose_errors_name_another_port_each_time_is_told_in_the_words_of_the_first(shell: Shell) -> None:
    name = f"{shell.site.namespace}.policy.example"
    rule = {"apiGroups": [""], "apiVersions": ["*"], "resources": ["services"], "operations": ["CREATE"]}
    with hanging_up() as port:
        hook = {
            "name": name,
            "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": shell.site.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        group, kind = "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"
        shell.site.cluster.apply({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "webhooks": [hook]})
        manifest = service(Eagle3Draft.model_validate(shell.site.object(NAME)))

        def words() -> str:
            try:
                shell.site.cluster.request("POST", shell.site.path("services") + "?dryRun=All", manifest)
            except ApiException as refused:
                return str(refused.body)
            return ""

        wait_for("the webhook", 30, lambda: "reset by peer" in words())
        assert words() != words(), "the port of the API server is another each time"
        shell.decides(apply=lambda obj: (service(obj),))
        tried = []
        for _ in range(2):
            with pytest.raises(UnfinishedError, match="failed calling webhook"):
                shell.reconcile()
            tried.append(shell.seen[-1].refused)
        once, again = tried
        said = {
            "type": Type.RECONCILING,
            "status": "True",
            "reason": Reason.REFUSED,
            "message": told(once[0], shell.site.namespace)[1],
            "observedGeneration": 1,
            "lastTransitionTime": "2026-11-29T12:00:00Z",
        }
        assert as_before(again, Eagle3DraftStatus.model_validate({"conditions": [said]})) == once
    shell.site.cluster.request("DELETE", f"/apis/{group}/validatingwebhookconfigurations/{name}")


# ------------------------------------------------------------------------------------------------ status and events


def test_the_status_is_written_once_and_only_if_it_changed(shell: Shell) -> None:
    shell.decides().reconcile()
    assert shell.site.object(NAME)["status"]["phase"] == "Training"
    before = shell.version
    for _ in range(5):
        shell.reconcile()
    assert shell.version == before


def test_an_object_that_changed_meanwhile_is_not_written_but_looked_at_again(shell: Shell) -> None:
    shell.decides()
    calm = shell.choose

    def while_the_user_edits(obj: Eagle3Draft, status: Eagle3DraftStatus) -> Decision:
        patch = {"spec": {"train": {"epochs": 7}}}
        shell.site.cluster.request("PATCH", shell.site.path(PLURAL, NAME), patch, "application/merge-patch+json")
        return calm(obj, status)

    shell.choose = while_the_user_edits
    with pytest.raises(ConflictError):
        shell.reconcile()
    assert "status" not in shell.site.object(NAME)
    shell.choose = calm
    shell.reconcile()
    assert shell.site.object(NAME)["status"]["phase"] == "Training"


def test_a_status_that_the_schema_refuses_is_no_conflict(shell: Shell) -> None:
    seen = shell.site.object(NAME)
    with pytest.raises(ApiError, match="observedGeneration") as refused:
        shell.client.replace_status(KIND, seen, {"observedGeneration": "one"})
    assert not isinstance(refused.value, ConflictError)


def test_an_event_is_posted_after_the_write_if_there_is_one_and_a_repetition_is_counted(shell: Shell) -> None:
    event = Event("Normal", EventReason.TRAIN_SUCCEEDED, "expected accept length 2.74")
    shell.decides(events=(event,)).reconcile()
    (posted,) = shell.site.events(NAME)
    assert (posted["reason"], posted["message"], posted["count"]) == ("TrainSucceeded", event.message, 1)
    assert posted["source"]["component"] == "eagle3-operator"
    version = shell.version
    shell.reconcile()
    (posted,) = shell.site.events(NAME)
    assert (posted["count"], shell.version) == (2, version), "what has happened may leave the status as it was"
    shell.choose = lambda obj, status: Decision(status.model_copy(update={"phase": Phase.SERVING}), events=(event,))
    shell.reconcile()
    (posted,) = shell.site.events(NAME)
    assert posted["count"] == 3
    assert shell.version != version


def test_an_object_that_is_gone_or_going_is_left_alone(shell: Shell) -> None:
    finalizer = {"metadata": {"finalizers": ["test.example/hold"]}}
    path = shell.site.path(PLURAL, NAME)
    shell.site.cluster.request("PATCH", path, finalizer, "application/merge-patch+json")
    shell.site.delete(PLURAL, NAME)
    before = shell.version
    assert shell.decides(apply=lambda obj: (service(obj),)).reconcile() is None
    assert shell.version == before
    assert shell.site.all("services") == []
    shell.site.cluster.request("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
    wait_for("the object to be gone", 30, lambda: shell.site.all(PLURAL) == [])
    assert shell.reconcile() is None
    assert shell.seen == []


def test_all_objects_are_listed_page_by_page(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3_operator.cluster.client._PAGE", 2)
    for number in range(4):
        shell.site.create(f"other-{number}", SPEC)
    keys = asyncio.run(shell.reconciler.keys())
    assert sorted(key.name for key in keys) == [NAME, "other-0", "other-1", "other-2", "other-3"]
    assert {key.namespace for key in keys} == {shell.site.namespace}


def test_the_refusal_to_touch_a_stranger_names_it_and_says_what_to_do() -> None:
    assert str(NameConflictError("Service", NAME)) == (
        f"Service {NAME} exists and does not belong to this object. It is left as it is. "
        "Rename or delete it, or give this object another name."
    )
