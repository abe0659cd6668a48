"""What an API object says, as plain values: one table for each kind."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from eagle3_api.jobs import Progress, Report, StageName
from eagle3_api.quantity import quantity
from eagle3_operator.cluster.parse import (
    Run,
    claim_from,
    controller_uid,
    deployment_from,
    job_from,
    main_container,
    pod_from,
    revision_number,
    runs,
    service_from,
    together,
)
from eagle3_operator.manifests import names
from eagle3_operator.observation import Job

Json = dict[str, Any]

UID = "11111111-owner"
BORN = "2026-11-29T10:00:00Z"
LATER = "2026-11-29T10:05:00Z"
LAST = "2026-11-29T10:09:00Z"


def metadata(name: str, *, owner: str | None = UID, **more: Any) -> Json:
    made: Json = {"name": name, "namespace": "llm", "uid": f"uid-of-{name}", "creationTimestamp": BORN, **more}
    if owner:
        made["ownerReferences"] = [{"kind": "Node", "uid": "not-the-controller"}, {"uid": owner, "controller": True}]
    return made


def pod(name: str = "p", *, owner: str = "uid-of-j", status: Json | None = None, **more: Any) -> Json:
    containers = [{"name": "stage"}, {"name": "a-sidecar"}]
    return {"metadata": metadata(name, owner=owner, **more), "spec": {"containers": containers}, "status": status or {}}


def container(state: Json, *, name: str = "stage", **more: Any) -> Json:
    return {"name": name, "state": state, **more}


def ended(code: int, *, at: str = LATER, reason: str = "Error", message: str = "") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": at}}


def at(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp).astimezone(UTC)


# ---------------------------------------------------------------------------------------------------------- pods


def test_a_server_answers_where_its_own_pod_says_so() -> None:
    serving, training = pod(), pod()
    serving["spec"]["containers"][0]["ports"] = [{"name": "http", "containerPort": 30007}]
    training["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 9400}]
    assert (pod_from(serving).port, pod_from(training).port, pod_from(pod()).port) == (30007, None, None)


def test_a_pod_that_was_just_made_is_pending_and_nothing_is_known() -> None:
    made = pod_from(pod())
    assert (made.phase, made.ready, made.started, made.terminating) == ("Pending", False, False, False)
    assert (made.exit_code, made.unschedulable, made.waiting_reason, made.finished_at) == (None, None, None, None)
    assert made.created_at == at(BORN)


def test_the_scheduler_words_and_since_when() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": LATER}
    made = pod_from(pod(status={"conditions": [said | {"message": "0/1 nodes: 1 Insufficient nvidia.com/gpu."}]}))
    assert made.unschedulable == "0/1 nodes: 1 Insufficient nvidia.com/gpu."
    assert made.unschedulable_since == at(LATER)


def test_a_pod_is_on_its_way_from_when_it_has_its_node_to_when_its_container_is_started() -> None:
    waiting = container({"waiting": {"reason": "ContainerCreating"}})
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": LATER}
    made = pod(status={"phase": "Pending", "conditions": [placed], "containerStatuses": [waiting]})
    assert not pod_from(made).on_its_way, "it has no node"
    made["spec"]["nodeName"] = "gpu-1"
    on_its_way = pod_from(made)
    assert (on_its_way.on_its_way, on_its_way.node, on_its_way.placed_at) == (True, "gpu-1", at(LATER))
    made["status"] |= {"phase": "Running", "containerStatuses": [container({"running": {"startedAt": LAST}})]}
    assert not pod_from(made).on_its_way


def test_a_pod_held_back_by_a_scheduling_gate_is_not_unschedulable() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "kueue"}
    assert pod_from(pod(status={"conditions": [said]})).unschedulable is None


@pytest.mark.parametrize(("gates", "queue"), [([{"name": "kueue.x-k8s.io/admission"}], "gpus"), ([], None)])
def test_a_pod_in_a_queue_waits_for_quota_until_its_gate_is_taken_away(gates: list[Json], queue: str | None) -> None:
    made = pod(labels=names.labels("kimi", revision=1, queue="gpus"))
    made["spec"]["schedulingGates"] = gates
    assert pod_from(made).queue == queue


@pytest.mark.parametrize("normal", ["ContainerCreating", "PodInitializing"])
def test_what_every_container_waits_for_is_no_reason(normal: str) -> None:
    made = pod_from(pod(status={"containerStatuses": [container({"waiting": {"reason": normal}})]}))
    assert made.waiting_reason is None
    assert not made.started


def test_an_image_that_cannot_be_pulled_is_told_in_the_kubelets_words_of_init_containers_too() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nope"'}}
    status = {
        "initContainerStatuses": [container(waiting, name="draft")],
        "containerStatuses": [container({"waiting": {"reason": "PodInitializing"}})],
    }
    made = pod_from(pod(status=status))
    assert (made.waiting_reason, made.waiting_message) == ("ImagePullBackOff", 'Back-off pulling image "nope"')


def test_a_pod_whose_time_was_up_is_told_from_one_that_failed() -> None:
    failed = {"phase": "Failed", "containerStatuses": [container(ended(137, message="waiting for the device flow"))]}
    up = failed | {
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
    }
    assert [pod_from(pod(status=status)).timed_out for status in (failed, up)] == [False, True]
    assert pod_from(pod(status=up)).termination_message == "waiting for the device flow"


def test_the_main_container_counts_and_no_sidecar() -> None:
    status = {
        "phase": "Running",
        "containerStatuses": [
            container({"running": {}}, name="a-sidecar", restartCount=5),
            container(ended(11, message="bad data"), restartCount=1),
        ],
    }
    made = pod_from(pod(status=status))
    assert (made.exit_code, made.termination_message, made.restarts) == (11, "bad data", 1)
    assert made.finished_at == at(LATER)


def test_a_mesh_that_puts_its_container_first_takes_nothing_for_its_own() -> None:
    made = pod(
        status={
            "phase": "Failed",
            "containerStatuses": [container({"running": {}}, name="proxy"), container(ended(11))],
        }
    )
    made["spec"]["containers"].insert(0, {"name": "proxy", "ports": [{"name": "http", "containerPort": 15001}]})
    assert main_container(made) == "stage"
    assert (pod_from(made).exit_code, pod_from(made).port) == (11, None)


def test_a_sidecar_of_kubernetes_own_that_is_restarted_is_no_failure_of_the_pod() -> None:
    restarted = container({"running": {}}, name="proxy", lastState=ended(1), restartCount=1)
    made = pod(
        status={
            "phase": "Running",
            "initContainerStatuses": [restarted],
            "containerStatuses": [container({"running": {}})],
        }
    )
    made["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}]
    assert pod_from(made).exit_code is None
    made["spec"]["initContainers"] = [{"name": "proxy"}]
    assert pod_from(made).exit_code == 1


@pytest.mark.parametrize(
    ("policy", "phase", "sidecar", "held_by"),
    [
        ("Never", "Running", {"running": {}}, "a-sidecar"),
        ("Never", "Running", ended(0), None),
        ("Never", "Succeeded", {"running": {}}, None),
        ("Always", "Running", {"running": {}}, None),
    ],
)
def test_a_pod_whose_work_has_ended_is_held_by_a_container_that_runs_on(
    policy: str, phase: str, sidecar: Json, held_by: str | None
) -> None:
    statuses = [container(sidecar, name="a-sidecar"), container(ended(0))]
    made = pod(status={"phase": phase, "containerStatuses": statuses})
    made["spec"]["restartPolicy"] = policy
    assert pod_from(made).held_by == held_by


def test_who_has_suspended_a_job_last_is_known() -> None:
    def wrote(manager: str, time: str, field: str = "f:suspend") -> Json:
        return {"manager": manager, "time": time, "fieldsV1": {"f:spec": {field: {}}}}

    job: Json = {"metadata": metadata("j"), "spec": {"suspend": True}}
    assert job_from(Run(job, job), (), owner=UID).suspended_by is None
    job["metadata"]["managedFields"] = [
        wrote("kueue", LATER),
        wrote("eagle3-operator", BORN),
        wrote("a-person", LAST, "f:parallelism"),
        {"manager": "a-controller", "subresource": "status", "time": LAST, "fieldsV1": {"f:status": {"f:active": {}}}},
    ]
    assert job_from(Run(job, job), (), owner=UID).suspended_by == "kueue"


@pytest.mark.parametrize(("clock", "started"), [("2026-11-29T09:00:00Z", LATER), (LAST, LAST)], ids=["late", "right"])
def test_a_container_is_not_older_than_its_place_on_a_node_whatever_its_nodes_clock_says(
    clock: str, started: str
) -> None:
    status = {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": LATER}],
        "containerStatuses": [container({"running": {"startedAt": clock}})],
    }
    assert pod_from(pod(status=status)).started_at == at(started)


def test_a_crash_looping_server_has_an_ending_a_reason_and_has_started() -> None:
    status = {
        "phase": "Running",
        "containerStatuses": [
            container({"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended(1, reason="Error"), restartCount=3)
        ],
    }
    made = pod_from(pod(status=status))
    assert (made.started, made.waiting_reason, made.exit_code, made.restarts) == (True, "CrashLoopBackOff", 1, 3)


@pytest.mark.parametrize(
    ("states", "started"),
    [
        ({"state": {"running": {"startedAt": LATER}}}, LATER),
        ({"state": {"running": {"startedAt": LATER}}, "lastState": {"terminated": {"startedAt": BORN}}}, LATER),
        ({"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 1, "startedAt": LATER}}}, LATER),
        ({"state": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None}}}, BORN),
    ],
)
def test_a_pod_has_started_when_its_container_did_last(states: Json, started: str) -> None:
    status = {"containerStatuses": [{"name": "stage", **states}]}
    assert pod_from(pod(status=status)).started_at == at(started)


def test_a_pod_killed_for_its_memory_says_so() -> None:
    made = pod_from(pod(status={"phase": "Failed", "containerStatuses": [container(ended(137, reason="OOMKilled"))]}))
    assert made.oom_killed
    assert made.exit_code == 137


def test_an_init_container_that_failed_lends_the_pod_its_ending() -> None:
    status = {
        "phase": "Failed",
        "initContainerStatuses": [container(ended(2, message="no space"), name="draft")],
        "containerStatuses": [container({"waiting": {"reason": "PodInitializing"}})],
    }
    made = pod_from(pod(status=status))
    assert (made.exit_code, made.termination_message, made.started) == (2, "no space", False)


def test_an_init_container_that_did_its_work_lends_nothing() -> None:
    status = {"initContainerStatuses": [container(ended(0), name="draft")], "containerStatuses": []}
    assert pod_from(pod(status=status)).exit_code is None


def test_an_evicted_pod_has_no_container_and_still_says_why() -> None:
    made = pod_from(pod(status={"phase": "Failed", "reason": "Evicted", "message": "low on ephemeral-storage"}))
    assert (made.waiting_reason, made.waiting_message) == ("Evicted", "low on ephemeral-storage")


def test_a_ready_pod_that_is_being_deleted_is_both() -> None:
    since = "2026-11-29T12:00:00Z"
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]}
    made = pod_from(pod(status=status, deletionTimestamp=LATER))
    assert (made.ready, made.ready_since) == (True, at(since))
    assert made.terminating
    assert made.gone_by == datetime(2026, 11, 29, 10, 5, tzinfo=UTC)


# ---------------------------------------------------------------------------------------------------------- jobs


def job(status: Json | None = None, *, owner: str | None = UID, **spec: Any) -> Json:
    labels = names.labels("kimi", stage=StageName.TRAIN)
    annotations = {names.KEY_ANNOTATION: "0123456789abcdef", names.TEMPLATE_ANNOTATION: "cafe"}
    made = metadata("j", owner=owner, labels=labels, annotations=annotations)
    return {"metadata": made, "spec": spec, "status": status or {}}


def made_of(job: Json, pods: Sequence[Json]) -> Job:
    """A Job that we made ourselves."""
    (run,) = runs([job], [])
    return job_from(run, pods, owner=UID)


def report(message: str, *, ok: bool = True) -> str:
    return Report(stage=StageName.TRAIN, key="0123456789abcdef", ok=ok, message=message).dump()


def test_a_job_says_whose_stage_it_is_and_under_which_key() -> None:
    made = made_of(job({"startTime": LATER}), [])
    assert (made.stage, made.key, made.template, made.revision) == ("train", "0123456789abcdef", "cafe", None)
    assert (made.owned, made.complete, made.failed, made.suspended) == (True, False, False, False)
    assert (made.created_at, made.started_at, made.finished_at) == (at(BORN), at(LATER), None)


def test_a_job_says_which_queue_suspends_and_resumes_it() -> None:
    queued = job(suspend=True)
    queued["metadata"]["labels"] = names.labels("kimi", stage=StageName.TRAIN, queue="gpus")
    made = made_of(queued, [])
    assert (made.queue, made.suspended, made.suspended_since) == ("gpus", True, None)
    for status, since in (("True", at(LATER)), ("False", None)):
        queued["status"]["conditions"] = [{"type": "Suspended", "status": status, "lastTransitionTime": LATER}]
        assert made_of(queued, []).suspended_since == since
    assert made_of(job(suspend=True), []).queue is None


def test_a_complete_job_has_its_report_and_its_time() -> None:
    done = pod(status={"phase": "Succeeded", "containerStatuses": [container(ended(0, message=report("done")))]})
    status = {"completionTime": LAST, "conditions": [{"type": "Complete", "status": "True"}]}
    made = made_of(job(status), [done])
    assert made.complete
    assert made.finished_at == at(LAST)
    assert made.report is not None
    assert made.report.message == "done"


def test_a_complete_job_whose_pod_is_gone_has_no_report() -> None:
    made = made_of(job({"conditions": [{"type": "Complete", "status": "True"}]}), [])
    assert made.complete
    assert made.report is None


def test_a_failed_job_says_why_and_when() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "exit code 12"}
    made = made_of(job({"conditions": [failed | {"lastTransitionTime": LAST}]}), [])
    assert (made.failed, made.failure_reason, made.failure_message) == (True, "PodFailurePolicy", "exit code 12")
    assert made.finished_at == at(LAST)


def test_a_job_that_is_about_to_fail_has_not_failed_while_its_pods_end() -> None:
    made = made_of(job({"conditions": [{"type": "FailureTarget", "status": "True"}]}), [])
    assert not made.finished


def test_the_newest_report_counts() -> None:
    def reporting(name: str, message: str, when: str) -> Json:
        ending = ended(12, at=when, message=report(message, ok=False))
        return pod(name, status={"phase": "Failed", "containerStatuses": [container(ending)]})

    silent = pod("c", status={"phase": "Failed", "containerStatuses": [container(ended(137, at=LAST))]})
    made = made_of(job(), [reporting("b", "second", LATER), silent, reporting("a", "first", BORN)])
    assert made.report is not None
    assert made.report.message == "second"


def test_the_pod_that_ended_the_job_speaks_before_those_that_it_left_alone() -> None:
    def reporting(name: str, code: int, when: str) -> Json:
        ending = ended(code, at=when, message=report(f"code {code}", ok=False))
        return pod(name, status={"phase": "Failed", "containerStatuses": [container(ending)]})

    made = made_of(job(), [reporting("a", 12, BORN), reporting("b", 21, LAST)])
    assert made.report is not None
    assert made.report.message == "code 12"


def test_pods_of_a_former_job_of_the_same_name_are_not_this_jobs() -> None:
    made = made_of(job(), [pod("mine"), pod("former", owner="uid-of-former-j")])
    assert [one.name for one in made.pods] == ["mine"]


@pytest.mark.parametrize("owner", [None, "another-object-of-the-same-name"])
def test_a_job_that_another_or_nobody_controls_is_not_owned(owner: str | None) -> None:
    assert not made_of(job(owner=owner), []).owned


def test_an_owner_that_is_not_the_controller_controls_nothing() -> None:
    assert controller_uid({"ownerReferences": [{"uid": UID}, {"uid": UID, "controller": False}]}) is None


# ------------------------------------------------------------------------------------- deployments, services, claims


def deployment(labels: Json, annotations: Json | None = None, **status: Any) -> Json:
    made = metadata("kimi-r3", labels=labels, annotations=annotations or {})
    return {"metadata": made, "spec": {"replicas": 2}, "status": status}


def test_a_deployment_is_a_revision_with_its_servers_and_what_it_is() -> None:
    labels = names.labels("kimi", revision=3)
    annotations = {names.KEY_ANNOTATION: "k", names.RECORD_ANNOTATION: '{"draft": "sha256:9f", "plainKey": "p"}'}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    server = pod("server", labels=labels, status=status)
    probe = pod("probe", labels=names.labels("kimi", stage=StageName.PROBE, revision=3))
    other = pod("other", labels=names.labels("kimi", revision=4))
    made = deployment_from(deployment(labels, annotations, readyReplicas=1), [server, probe, other], owner=UID)
    assert made is not None
    assert (made.revision, made.key, made.replicas, made.ready_replicas) == (3, "k", 2, 1)
    assert made.record == {"draft": "sha256:9f", "plainKey": "p"}
    assert [one.name for one in made.pods] == ["server"]


def test_who_has_scaled_a_deployment_last_is_known() -> None:
    scaled = deployment(names.labels("kimi", revision=3))
    fields: dict[str, Any] = {"fieldsV1": {"f:spec": {"f:replicas": {}}}}
    scaled["metadata"]["managedFields"] = [
        {"manager": "eagle3-operator", "operation": "Apply", "time": BORN, **fields},
        {"manager": "kube-controller-manager", "subresource": "scale", "time": LATER, **fields},
        {"manager": "kube-controller-manager", "subresource": "status", "time": LAST, "fieldsV1": {"f:status": {}}},
    ]
    made = deployment_from(scaled, [], owner=UID)
    assert made is not None
    assert made.scaled_by == "kube-controller-manager"


def test_who_else_has_written_into_the_pod_template_of_a_deployment_is_known() -> None:
    """A rollout that kubectl restarts changes nothing of it; what was set as it was is no edit."""
    edited = deployment(names.labels("kimi", revision=3))
    edited["spec"]["template"] = {"spec": {"containers": [{"name": "server"}]}}

    def wrote(who: str, time: str, template: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"manager": who, "time": time, "fieldsV1": {"f:spec": {"f:template": template}}, **more}

    def server(**fields: Any) -> dict[str, Any]:
        return {"f:spec": {"f:containers": {'k:{"name":"server"}': {".": {}, **fields}}}}

    def noted(annotation: str) -> dict[str, Any]:
        return {"f:metadata": {"f:annotations": {".": {}, f"f:{annotation}": {}}}}

    def variable(name: str) -> dict[str, Any]:
        return {"f:env": {".": {}, f'k:{{"name":"{name}"}}': {".": {}, "f:name": {}, "f:value": {}}}}

    ours = wrote("eagle3-operator", BORN, server(**{"f:image": {}}))
    harmless = [
        ours,
        wrote("kubectl-rollout", LATER, noted("kubectl.kubernetes.io/restartedAt")),
        wrote("argocd", LATER, server(**{"f:image": {}})),
        wrote("Reloader", LATER, server(**variable("STAKATER_HF_TOKEN_SECRET"))),
    ]
    edited["metadata"]["managedFields"] = harmless
    made = deployment_from(edited, [], owner=UID)
    assert made is not None
    assert (made.edited_by, made.edited) == (None, ())
    edited["metadata"]["managedFields"] = [
        *harmless,
        wrote("kubectl-edit", LAST, server(**{"f:command": {}, **variable("DEBUG")})),
        {"manager": "kube-controller-manager", "subresource": "status", "time": LAST, "fieldsV1": {"f:status": {}}},
    ]
    made = deployment_from(edited, [], owner=UID)
    assert made is not None
    assert made.edited_by == "kubectl-edit"
    container = "spec.containers[server]"
    assert made.edited == (f"{container}.command", f"{container}.env[DEBUG].name", f"{container}.env[DEBUG].value")
    edited["metadata"]["managedFields"] = [ours, wrote("kubectl-edit", LAST, noted("eagle3.dev/adaptive"))]
    made = deployment_from(edited, [], owner=UID)
    assert made is not None
    assert made.edited == ("metadata.annotations.eagle3.dev/adaptive",), "which the server reads"


def test_an_edit_is_the_same_though_its_pods_are_restarted_meanwhile() -> None:
    edited = deployment(names.labels("kimi", revision=3))

    def edit(image: str, restarted: str) -> str:
        variables = [{"name": "STAKATER_HF_TOKEN_SECRET", "value": restarted}]
        edited["spec"]["template"] = {
            "metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": restarted}},
            "spec": {"containers": [{"name": "server", "image": image, "env": variables}]},
        }
        made = deployment_from(edited, [], owner=UID)
        assert made is not None
        return made.template.runs

    assert edit("one", "now") == edit("one", "later") != edit("two", "now")


def test_what_is_taken_out_of_a_pod_template_is_missed_among_what_the_operator_wrote() -> None:
    made = deployment(names.labels("kimi", revision=3))

    def fields(*wrote: str) -> str:
        server: dict[str, Any] = {f"f:{name}": {} for name in wrote}
        spec = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"server"}': server}}}}}
        others = {"manager": "kube-controller-manager", "time": LAST, "fieldsV1": {"f:status": {}}}
        made["metadata"]["managedFields"] = [
            {"manager": "eagle3-operator", "time": BORN, "fieldsV1": spec},
            others,
        ]
        seen = deployment_from(made, [], owner=UID)
        assert seen is not None
        return seen.template.fields

    assert fields("image", "livenessProbe") == fields("livenessProbe", "image") != fields("image")


def test_a_pod_that_is_about_to_end_is_no_ready_one_of_its_deployment() -> None:
    labels = names.labels("kimi", revision=3)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    going = pod("going", labels=labels, status=status, deletionTimestamp=LATER)
    made = deployment_from(deployment(labels, readyReplicas=1), [going], owner=UID)
    assert made is not None
    assert made.ready_replicas == 0


def test_a_deployment_that_may_make_no_pod_says_why_and_since_when() -> None:
    said = 'pods "kimi-r3-x" is forbidden: exceeded quota: gpus'
    condition = {"type": "ReplicaFailure", "status": "True", "message": said, "lastTransitionTime": LATER}
    labels = names.labels("kimi", revision=3)
    made = deployment_from(deployment(labels, conditions=[condition]), [], owner=UID)
    assert made is not None
    assert (made.refused, made.refused_since) == (said, at(LATER))


@pytest.mark.parametrize("text", ["", "not json", "[1]", "null"])
def test_a_record_that_somebody_has_edited_is_no_record(text: str) -> None:
    made = deployment_from(deployment(names.labels("k", revision=1), {names.RECORD_ANNOTATION: text}), [], owner=UID)
    assert made is not None
    assert made.record == {}


def test_a_deployment_without_a_revision_is_none_of_ours() -> None:
    assert deployment_from(deployment(names.labels("kimi")), [], owner=UID) is None


@pytest.mark.parametrize(
    ("label", "number"), [("r0", 0), ("r12", 12), ("r", None), ("12", None), ("rx", None), ("", None), ("r-1", None)]
)
def test_the_number_in_a_revision_label(label: str, number: int | None) -> None:
    assert revision_number({names.REVISION_LABEL: label}) == number


@pytest.mark.parametrize(
    ("selector", "revision"), [({names.REVISION_LABEL: "r3"}, 3), ({names.NAME_LABEL: "kimi"}, None), (None, None)]
)
def test_a_service_says_which_revision_it_selects(selector: Json | None, revision: int | None) -> None:
    spec = {} if selector is None else {"selector": selector}
    made = service_from({"metadata": metadata("kimi"), "spec": spec}, owner=UID)
    assert (made.selected_revision, made.owned) == (revision, True)


def test_a_claims_capacity_is_what_it_was_given_and_until_then_what_it_asks_for() -> None:
    asked = {"metadata": metadata("c", owner=None), "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    assert claim_from(asked, owner=UID).capacity == 2**30
    bound = asked | {"status": {"phase": "Bound", "capacity": {"storage": "10G"}}}
    assert claim_from(bound, owner=UID).capacity == 10**10


@pytest.mark.parametrize(
    ("manager", "owner", "owned"),
    [
        (names.FIELD_MANAGER, UID, True),
        (names.FIELD_MANAGER, None, False),
        (names.FIELD_MANAGER, "another", None),
        ("somebody", None, None),
    ],
)
def test_a_claim_that_the_operator_made_goes_with_its_object_or_not(
    manager: str, owner: str | None, owned: bool | None
) -> None:
    made = metadata("c", owner=owner, labels={names.MANAGED_BY_LABEL: manager})
    assert claim_from({"metadata": made, "spec": {}}, owner=UID).owned is owned


def test_what_is_being_deleted_says_since_when() -> None:
    going = {"metadata": metadata("c", deletionTimestamp=LATER), "spec": {}}
    assert claim_from(going, owner=UID).deleted_at == at(LATER)
    job = job_from(Run(going, going), (), owner=UID)
    assert (job.terminating, job.deleted_at) == (True, at(LATER))


def test_a_claim_is_shared_as_its_volume_is_and_until_then_as_it_asks() -> None:
    asked: Json = {"metadata": metadata("c"), "spec": {"accessModes": ["ReadWriteMany"]}}
    assert claim_from(asked, owner=UID).access_modes == ("ReadWriteMany",)
    bound = claim_from(asked | {"status": {"accessModes": ["ReadWriteOnce"]}}, owner=UID)
    assert bound.access_modes == ("ReadWriteOnce",)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("1024", 1024), ("1k", 1000), ("1Ki", 1024), ("1.5Ti", 3 * 2**39), ("500G", 500 * 10**9),
        ("2E", 2 * 10**18), ("3Ei", 3 * 2**60), ("12e6", 12 * 10**6), ("12E6", 12 * 10**6), ("1500m", 1), ("7P", 7 * 10**15),
    ],
)  # fmt: skip
def test_quantities_as_kubernetes_writes_them(text: str, number: int) -> None:
    assert quantity(text) == number


def jobset(**spec: Any) -> Json:
    """A JobSet of ours; what it makes names it as its owner."""
    labels = names.labels("kimi", stage=StageName.TRAIN, queue="gpus")
    annotations = {names.KEY_ANNOTATION: "0123456789abcdef", names.TEMPLATE_ANNOTATION: "cafe"}
    return {"metadata": metadata("s", labels=labels, annotations=annotations), "spec": spec}


def its_job(status: Json | None = None, **more: Any) -> Json:
    made = metadata("s-nodes-0", owner=None, labels=names.labels("kimi", stage=StageName.TRAIN), **more)
    made["ownerReferences"] = [{"kind": "JobSet", "name": "s", "uid": "uid-of-s", "controller": True}]
    return {"metadata": made, "spec": {"completions": 2}, "status": status or {}}


def test_a_jobset_of_ours_and_the_job_that_it_made_are_one() -> None:
    theirs = pod("s-nodes-0-0-x", owner="uid-of-s-nodes-0", status={"phase": "Running"})
    complete = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 2, "startTime": LATER}
    (run,) = runs([its_job(complete)], [jobset(suspend=True)])
    made = job_from(run, [theirs, pod("another")], owner=UID)
    assert (made.kind, made.name, made.stage, made.key, made.template) == (
        "JobSet",
        "s",
        "train",
        "0123456789abcdef",
        "cafe",
    )
    assert (made.owned, made.queue, made.suspended, made.unmade) == (True, "gpus", True, False)
    assert (made.complete, made.completions, made.succeeded, made.started_at) == (True, 2, 2, at(LATER))
    assert [one.name for one in made.pods] == ["s-nodes-0-0-x"]


def test_a_jobset_that_made_no_job_yet_is_known_by_its_own_words() -> None:
    (run,) = runs([], [jobset(suspend=False)])
    made = job_from(run, [{**pod(), "metadata": metadata("nobody's", owner=None)}], owner=UID)
    assert (made.kind, made.name, made.owned, made.unmade, made.suspended) == ("JobSet", "s", True, True, False)
    assert (made.pods, made.complete, made.started_at) == ((), False, None)


def test_the_job_of_a_jobset_that_is_gone_holds_its_place_until_it_is_gone_too() -> None:
    (run,) = runs([its_job()], [])
    made = job_from(run, [], owner=UID)
    assert (made.name, made.terminating, made.owned) == ("s", True, False)


def test_jobs_and_jobsets_are_each_seen_once() -> None:
    found = runs([job(), its_job()], [jobset()])
    assert [(run.kind, run.made["metadata"]["name"]) for run in found] == [("Job", "j"), ("JobSet", "s")]


def shared(name: str, *, whole: bool, ended: str) -> Json:
    report = Report(stage=StageName.EXTRACT, key="k", ok=True, result={"whole": whole, "parts": 1})
    ending = {"exitCode": 0, "finishedAt": ended, "message": report.dump()}
    return pod(name, status={"containerStatuses": [{"name": "stage", "state": {"terminated": ending}}]})


def test_of_pods_that_share_the_work_the_one_that_published_the_whole_speaks_for_the_job() -> None:
    pods = [shared("a", whole=True, ended=LATER), shared("b", whole=False, ended=LAST)]
    found = made_of({"metadata": metadata("j"), "spec": {"completions": 2}}, pods)
    assert found.report is not None
    assert not found.report.partial
    assert found.completions == 2
    alone = made_of({"metadata": metadata("j"), "spec": {}}, pods[1:])
    assert alone.report is not None
    assert alone.report.partial


def test_pods_that_share_the_work_are_as_far_as_all_of_them_and_as_fresh_as_the_oldest_word() -> None:
    slow = Progress(done=0.2, seconds_left=90, message="20 of 100", time=100)
    fast = Progress(done=0.6, seconds_left=30, message="60 of 100", time=200)
    found = together([fast, slow], 1, 4)
    assert found is not None
    assert found.done == pytest.approx(0.45)
    assert (found.seconds_left, found.time) == (90, 100)
    assert found.message == "2 of 4 pods at work; 20 of 100"
    assert together([slow], 0, 1) == slow
    assert together([], 1, 2) is None
