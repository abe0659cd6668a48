"""API objects, as the API server's JSON, to the plain values of an ``Observation``. Pure functions, no requests."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eagle3_api import GROUP, times
from eagle3_api.jobs import FATAL_EXIT_CODES, Progress, Report
from eagle3_api.quantity import quantity
from eagle3_api.status import Template
from eagle3_operator.manifests import names
from eagle3_operator.manifests.jobs import CONTAINER as STAGE_CONTAINER
from eagle3_operator.manifests.servers import CONTAINER as SERVER_CONTAINER
from eagle3_operator.manifests.servers import PORT_NAME
from eagle3_operator.observation import Budget, Claim, Deployment, Job, Pod, Service

Json = Mapping[str, Any]

#: How Reloader, which restarts pods when a Secret or a ConfigMap changes, names the variables that it does that by.
_RELOADER = "STAKATER_"
_RELOADED = re.compile(rf"spec\.(initContainers|containers)\[[^]]*\]\.env\[{_RELOADER}")

#: What every container waits for on its way, and what tells nothing.
_NORMAL_WAITS = frozenset({"ContainerCreating", "PodInitializing"})


def controller_uid(metadata: Json) -> str | None:
    """UID of the object that controls this one."""
    found: str | None = _controller(metadata).get("uid")
    return found


def _controller(metadata: Json) -> Json:
    references = metadata.get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), {})


def revision_number(labels: Json | None) -> int | None:
    """The revision in a set of labels, or in a Service's selector."""
    label = (labels or {}).get(names.REVISION_LABEL, "")
    return int(label[1:]) if label[:1] == "r" and label[1:].isdecimal() else None


def main_container(pod: Json) -> str:
    """Name of the container that does the pod's work, which need not be the first: meshes put theirs before it."""
    name: str = _main(pod)["name"]
    return name


def _main(pod: Json) -> Json:
    containers = pod["spec"]["containers"]
    found: Json = next((one for one in containers if one["name"] in (STAGE_CONTAINER, SERVER_CONTAINER)), containers[0])
    return found


def pod_from(pod: Json) -> Pod:
    """A pod of a Job or a Deployment."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    conditions = _conditions(status)
    node, readiness = pod["spec"].get("nodeName"), conditions.get("Ready", {})
    scheduled = conditions.get("PodScheduled", {})
    ready = readiness.get("status") == "True"
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    queue = (metadata.get("labels") or {}).get(names.QUEUE_LABEL) if pod["spec"].get("schedulingGates") else None
    main: Json = next((c for c in status.get("containerStatuses") or () if c["name"] == main_container(pod)), {})
    ended = _ending(main) or _failed_before(pod)
    waiting_reason, waiting_message = _waiting(status)
    return Pod(
        name=metadata["name"],
        created_at=times.parse(metadata["creationTimestamp"]),
        phase=status.get("phase", "Pending"),
        address=status.get("podIP"),
        port=_port(pod),
        ready=ready,
        ready_since=_time(readiness.get("lastTransitionTime")) if ready else None,
        terminating="deletionTimestamp" in metadata,
        gone_by=_time(metadata.get("deletionTimestamp")),
        node=node,
        placed_at=_placed(pod) if node else None,
        started_at=_started(pod, main),
        unschedulable=scheduled.get("message", "") if unschedulable else None,
        unschedulable_since=_time(scheduled.get("lastTransitionTime")) if unschedulable else None,
        queue=queue,
        waiting_reason=waiting_reason,
        waiting_message=waiting_message,
        restarts=main.get("restartCount", 0),
        exit_code=ended.get("exitCode") if ended else None,
        oom_killed=bool(ended) and ended.get("reason") == "OOMKilled",
        termination_message=ended.get("message", "") if ended else "",
        finished_at=_time(ended.get("finishedAt")) if ended else None,
        held_by=_held_by(pod, main),
    )


def _conditions(status: Json) -> dict[str, Json]:
    return {condition["type"]: condition for condition in status.get("conditions") or ()}


def _port(pod: Json) -> int | None:
    """Where the main container serves HTTP; None of one that serves none."""
    ports = _main(pod).get("ports") or ()
    return next((port["containerPort"] for port in ports if port.get("name") == PORT_NAME), None)


def _started(pod: Json, main: Json) -> datetime | None:
    """When the main container was started last, by its node's clock; but not before the pod had that node, by another's.

    A server whose node's clock is an hour late would else be found to hang as soon as it starts. Of a container that was lost
    with its node only its pod's creation is known.
    """
    if not (run := (main.get("state") or {}).get("running") or _ending(main)):
        return None
    placed = _placed(pod)
    return max(placed, times.parse(run["startedAt"])) if run.get("startedAt") else placed


def _placed(pod: Json) -> datetime:
    """When a pod was given its node; where nobody has noted that, when it was made."""
    scheduled = _conditions(pod.get("status") or {}).get("PodScheduled", {})
    since = scheduled.get("lastTransitionTime") if scheduled.get("status") == "True" else None
    return times.parse(since or pod["metadata"]["creationTimestamp"])


def _ending(container: Json) -> Json:
    """How a container ended last: now, or before it was started again."""
    found: Json = (
        (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    )
    return found


def _failed_before(pod: Json) -> Json:
    """How a container that runs before the main one failed; then the main one has no ending of its own.

    One that runs beside it is restarted by itself, and is no business of the Job's.
    """
    beside = {one["name"] for one in pod["spec"].get("initContainers") or () if one.get("restartPolicy") == "Always"}
    before = [c for c in (pod.get("status") or {}).get("initContainerStatuses") or () if c["name"] not in beside]
    return next((end for container in before if (end := _ending(container)).get("exitCode")), {})


def _held_by(pod: Json, main: Json) -> str | None:
    """The container that keeps a pod from ending, though what it was made for has ended for good: a sidecar of somebody else's."""
    status = pod.get("status") or {}
    done = (main.get("state") or {}).get("terminated") and pod["spec"].get("restartPolicy") == "Never"
    if not done or status.get("phase") != "Running":
        return None
    others = (c for c in status.get("containerStatuses") or () if "running" in (c.get("state") or {}))
    return next((container["name"] for container in others), None)


def _waiting(status: Json) -> tuple[str | None, str]:
    """Why the first container that waits does so; of a pod that was turned away, why that was."""
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting and waiting.get("reason") not in _NORMAL_WAITS:
            return waiting.get("reason"), waiting.get("message", "")
    return status.get("reason"), status.get("message", "") if status.get("reason") else ""


@dataclass(frozen=True)
class Run:
    """What we made for a stage, and the Job whose pods do its work."""

    #: A Job or a JobSet: it is what has a name, a key and an owner, and is suspended and deleted.
    made: Json
    #: The same Job, or that of the JobSet, which may be still to come.
    job: Json | None
    kind: str = "Job"


def of_a_jobset(job: Json) -> bool:
    """Whether a Job was made by a JobSet."""
    return bool(_controller(job["metadata"]).get("kind") == "JobSet")


def runs(jobs: Iterable[Json], jobsets: Iterable[Json]) -> list[Run]:
    """What was made for an object's stages, each once.

    Args:
        jobs: all Jobs that carry our labels, those that JobSets made among them.
        jobsets: the JobSets that carry them.
    """
    jobs = list(jobs)
    theirs = {controller_uid(job["metadata"]): job for job in jobs if of_a_jobset(job)}
    found = [Run(job, job) for job in jobs if not of_a_jobset(job)]
    found += [Run(made, theirs.pop(made["metadata"]["uid"], None), "JobSet") for made in jobsets]
    return found + [Run(_going(job), job, "JobSet") for job in theirs.values()]


def _going(job: Json) -> Json:
    """The JobSet of a Job, if it is gone: the Job will go too, but until its pods have they hold its place."""
    metadata = job["metadata"]
    deleted = metadata.get("deletionTimestamp", metadata["creationTimestamp"])
    return {
        "metadata": metadata | {"name": _controller(metadata)["name"], "deletionTimestamp": deleted},
        "spec": job["spec"],
    }


def job_from(run: Run, pods: Iterable[Json], *, owner: str) -> Job:
    """A Job of one of the object's stages, without its progress, which only its log tells.

    Args:
        run: the API objects, found by our labels.
        pods: any pods; those that the Job controls are taken.
        owner: UID of our object.
    """
    metadata, job = run.made["metadata"], run.job or {"metadata": {}, "spec": {}}
    spec, status = job["spec"], job.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    uid = job["metadata"].get("uid")
    mine = tuple(pod_from(pod) for pod in pods if uid and controller_uid(pod["metadata"]) == uid)
    conditions = {c["type"]: c for c in status.get("conditions") or () if c.get("status") == "True"}
    complete, failed = conditions.get("Complete"), conditions.get("Failed")
    held = _conditions(run.made.get("status") or {}).get("Suspended", {})
    ended = status.get("completionTime") or (failed or {}).get("lastTransitionTime")
    return Job(
        name=metadata["name"],
        stage=labels.get(names.STAGE_LABEL, ""),
        key=annotations.get(names.KEY_ANNOTATION, ""),
        template=annotations.get(names.TEMPLATE_ANNOTATION, ""),
        created_at=times.parse(metadata["creationTimestamp"]),
        started_at=_time(status.get("startTime")),
        finished_at=_time(ended),
        complete=complete is not None,
        failed=failed is not None,
        failure_reason=(failed or {}).get("reason", ""),
        failure_message=(failed or {}).get("message", ""),
        suspended=bool(run.made["spec"].get("suspend")),
        suspended_since=_time(held.get("lastTransitionTime")) if held.get("status") == "True" else None,
        suspended_by=_wrote(metadata, "suspend"),
        queue=labels.get(names.QUEUE_LABEL),
        completions=spec.get("completions", 1),
        succeeded=status.get("succeeded", 0),
        terminating="deletionTimestamp" in metadata,
        deleted_at=_time(metadata.get("deletionTimestamp")),
        revision=revision_number(labels),
        owned=controller_uid(metadata) == owner,
        kind=run.kind,
        unmade=run.job is None,
        pods=mine,
        report=_report(mine),
    )


def _wrote(metadata: Json, field: str) -> str | None:
    """Who has last written a field of an object's spec, as the API server keeps it; None where it keeps nothing."""
    wrote = (
        entry
        for entry in metadata.get("managedFields") or ()
        if f"f:{field}" in (entry.get("fieldsV1") or {}).get("f:spec", {})
    )
    latest = max(wrote, key=lambda entry: entry.get("time", ""), default=None)
    return latest.get("manager") if latest is not None else None


def _written(metadata: Json) -> dict[str, set[str]]:
    """Who has written what of what a Deployment has pods run, the last one first.

    What an admission adds to a request is written by whoever made that. Labels, annotations and Reloader's variables change nothing
    of what pods run: by one of these ``kubectl rollout restart``, and whoever reloads Secrets, has them made anew.
    """
    written: dict[str, set[str]] = {}
    entries = metadata.get("managedFields") or ()
    for entry in sorted(entries, key=lambda entry: entry.get("time", ""), reverse=True):
        template = ((entry.get("fieldsV1") or {}).get("f:spec") or {}).get("f:template") or {}
        written.setdefault(entry["manager"], set()).update(filter(_is_run, _leaves(template)))
    return written


def _is_run(path: str) -> bool:
    """Whether a field of a pod template changes what its pods run."""
    return (path.startswith("spec.") and not _RELOADED.match(path)) or f"{GROUP}/" in path


def _template(template: Json, ours: Collection[str]) -> Template:
    """A pod template of which these fields are the operator's; the same for the same, whoever restarts its pods meanwhile."""
    spec, metadata = template.get("spec") or {}, template.get("metadata") or {}
    containers = [
        one | {"env": [variable for variable in one.get("env") or () if not variable["name"].startswith(_RELOADER)]}
        for one in spec.get("containers") or ()
    ]
    annotations = {n: v for n, v in (metadata.get("annotations") or {}).items() if n.startswith(f"{GROUP}/")}
    return Template(runs=_hash([spec | {"containers": containers}, annotations]), fields=_hash(sorted(ours)))


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _leaves(fields: Json, path: str = "") -> Iterable[str]:
    """The fields of a ``fieldsV1``, such as ``spec.containers[server].image``."""
    for key, value in fields.items():
        kind, _, name = key.partition(":")
        if key == ".":  # that a list or a map is there at all
            continue
        if kind == "k":
            name = f"[{'/'.join(map(str, json.loads(name).values()))}]"
        elif kind == "v":
            name = f"[{name}]"
        elif path:
            name = f".{name}"
        yield from _leaves(value, path + name) if value.keys() - {"."} else (path + name,)


def _report(pods: Iterable[Pod]) -> Report | None:
    """The newest report that the pods left behind; one of the whole Job before one of a pod's share.

    Before all of them one that ended the Job: the pods that trained together with its own may have ended after it, and know
    only that they were left.
    """
    ended = sorted(
        (pod for pod in pods if pod.finished_at),
        key=lambda pod: (pod.exit_code in FATAL_EXIT_CODES, pod.finished_at, pod.name),
        reverse=True,
    )
    found = [report for pod in ended if (report := Report.parse(pod.termination_message))]
    return next((report for report in found if not report.partial), found[0] if found else None)


def together(said: Sequence[Progress], finished: int, pods: int) -> Progress | None:
    """The progress of a Job whose pods share its work equally.

    Args:
        said: what the running ones said last.
        finished: those that are done.
        pods: how many there are to be.

    Returns:
        The mean of what is done, with the time of the pod that was heard of longest ago and the words of the one that is
        least far.
    """
    if not said:
        return None
    slowest = min(said, key=lambda progress: progress.done)
    if pods == 1:
        return slowest
    left = [progress.seconds_left for progress in said if progress.seconds_left is not None]
    return Progress(
        done=min(1.0, (finished + sum(progress.done for progress in said)) / pods),
        seconds_left=max(left) if left else None,
        message=f"{len(said)} of {pods} pods at work; {slowest.message}",
        time=min(progress.time for progress in said),
    )


def deployment_from(deployment: Json, pods: Iterable[Json], *, owner: str) -> Deployment | None:
    """The Deployment of a revision, without its log; None if its labels say no revision.

    Args:
        deployment: the API object, found by our labels.
        pods: pods of the object; those of this revision's servers are taken.
        owner: UID of our object.
    """
    metadata, status = deployment["metadata"], deployment.get("status") or {}
    number = revision_number(metadata.get("labels"))
    if number is None:
        return None
    annotations, written = metadata.get("annotations") or {}, _written(metadata)
    ours = written.pop(names.FIELD_MANAGER, set())
    # What both have written is as the operator has it
    edits = {who: paths - ours for who, paths in written.items() if paths - ours}
    conditions = _conditions(status)
    failure = conditions.get("ReplicaFailure", {})
    refused = failure.get("status") == "True"
    made = tuple(pod_from(pod) for pod in servers(pods, number))
    return Deployment(
        name=metadata["name"],
        revision=number,
        key=annotations.get(names.KEY_ANNOTATION, ""),
        created_at=times.parse(metadata["creationTimestamp"]),
        replicas=deployment["spec"].get("replicas", 1),
        scaled_by=_wrote(metadata, "replicas"),
        edited_by=next(iter(edits), None),
        edited=tuple(sorted(path for paths in edits.values() for path in paths)),
        template=_template(deployment["spec"].get("template") or {}, ours),
        # What the Deployment counts may be from before one of them began to end
        ready_replicas=min(status.get("readyReplicas", 0), sum(pod.ready and not pod.terminating for pod in made)),
        pods=made,
        refused=failure.get("message", "") if refused else None,
        refused_since=_time(failure.get("lastTransitionTime")) if refused else None,
        terminating="deletionTimestamp" in metadata,
        owned=controller_uid(metadata) == owner,
        record=_record(annotations.get(names.RECORD_ANNOTATION, "{}")),
    )


def servers(pods: Iterable[Json], number: int) -> list[Json]:
    """The pods that serve a revision; the pods that probe it carry a stage too."""
    found = []
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if revision_number(labels) == number and names.STAGE_LABEL not in labels:
            found.append(pod)
    return found


def _record(text: str) -> dict[str, str]:
    """What a revision is. Somebody may have edited the annotation; a record that is not ours is no record."""
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in record.items()} if isinstance(record, dict) else {}


def service_from(service: Json, *, owner: str) -> Service:
    """The public Service, or a revision's own."""
    return Service(
        name=service["metadata"]["name"],
        selected_revision=revision_number(service["spec"].get("selector")),
        owned=controller_uid(service["metadata"]) == owner,
    )


def budget_from(budget: Json, *, owner: str) -> Budget:
    """The budget of disruptions of the serving pods."""
    spec = budget["spec"]
    return Budget(
        spec=spec,
        revision=revision_number((spec.get("selector") or {}).get("matchLabels")),
        owned=controller_uid(budget["metadata"]) == owner,
    )


def claim_from(claim: Json, *, owner: str) -> Claim:
    """A claim; its capacity is what was asked for until it is bound."""
    status, spec = claim.get("status") or {}, claim["spec"]
    asked = (spec.get("resources") or {}).get("requests") or {}
    size = (status.get("capacity") or asked).get("storage")
    return Claim(
        name=claim["metadata"]["name"],
        capacity=None if size is None else quantity(size),
        access_modes=tuple(status.get("accessModes") or spec.get("accessModes") or ()),
        owned=(controller_uid(claim["metadata"]) == owner) if is_ours(claim["metadata"], owner) else None,
        terminating="deletionTimestamp" in claim["metadata"],
        deleted_at=_time(claim["metadata"].get("deletionTimestamp")),
    )


def names_claim(spec: object, claim: str) -> bool:
    """Whether a claim stands anywhere in an object's spec: as one of its roots, or as a volume of its pods."""
    if isinstance(spec, Mapping):
        named = claim in (spec.get("claim"), spec.get("claimName"))
        return named or any(names_claim(value, claim) for value in spec.values())
    return isinstance(spec, list) and any(names_claim(value, claim) for value in spec)


def mounts_claim(pod: Json, claim: str) -> bool:
    """Whether a pod that has not ended has a claim among its volumes."""
    return claim in claims_of(pod) and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def claims_of(pod: Json) -> set[str]:
    """The claims among a pod's volumes."""
    volumes = (volume.get("persistentVolumeClaim") for volume in pod["spec"].get("volumes") or ())
    return {volume["claimName"] for volume in volumes if volume is not None}


def kept_from(pod: Json, others: Iterable[Json], one_node: Collection[str]) -> str | None:
    """Why a pod cannot be started on its node: another one has a claim of its. None where that is not so.

    Args:
        pod: with a node.
        others: pods of its namespace.
        one_node: claims that only one node can mount at a time.
    """
    wanted, node = claims_of(pod) & set(one_node), pod["spec"]["nodeName"]
    for other in others:
        where = other["spec"].get("nodeName")
        held = next(
            (claim for claim in sorted(wanted) if where not in (None, node) and mounts_claim(other, claim)), None
        )
        if held is not None:
            metadata = other["metadata"]
            owner = (metadata.get("labels") or {}).get(names.NAME_LABEL)
            whose = f" of Eagle3Draft {owner}" if owner is not None else ""
            return f"claim {held} can be mounted by one node at a time, and {where} has it, for pod {metadata['name']}{whose}"
    return None


def is_ours(claim: Json, owner: str) -> bool:
    """Whether the operator made a claim for the object, by its metadata; one that outlives its object names none."""
    made = (claim.get("labels") or {}).get(names.MANAGED_BY_LABEL) == names.FIELD_MANAGER
    return made and controller_uid(claim) in (None, owner)


def _time(stamp: str | None) -> datetime | None:
    return None if stamp is None else times.parse(stamp)
