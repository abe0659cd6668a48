"""A small pure world for the decisions: it carries out what was decided and lets time pass when told to.

It is no cluster and pretends none: Jobs end, pods get ready and nodes are full only because a test says so. What real
Kubernetes makes of the same decisions is tested in tests/cluster and tests/e2e.
"""

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

from eagle3_api.conditions import Reason
from eagle3_api.jobs import CONFIG_ANNOTATION, JobEnvelope, Report, StageName, TrainConfig
from eagle3_api.spec import Eagle3Draft
from eagle3_api.status import Condition, Eagle3DraftStatus, Template, Window
from eagle3_operator.cluster.parse import revision_number
from eagle3_operator.decide import decide
from eagle3_operator.decision import Decision, Event, Manifest
from eagle3_operator.manifests import names
from eagle3_operator.observation import (
    Budget,
    Claim,
    Deployment,
    Job,
    Observation,
    Pod,
    Refusal,
    ServerMetrics,
    Service,
)
from eagle3_operator.settings import Settings
from unit.samples import RESULTS, SETTINGS, SPEC, measured, merged

#: The words of a quota.
QUOTA = "exceeded quota: few, requested: count/things=1, used: count/things=3, limited: count/things=3"

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@dataclass
class World:
    """One object and its children, as a test wants them."""

    spec: dict[str, Any] = field(default_factory=lambda: dict(SPEC))
    status: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    name: str = "kimi"
    uid: str = "uid-1"
    seen: Observation = field(default_factory=Observation)
    now: datetime = START
    generation: int = 1
    #: Pods that the nodes have room for; a Deployment beyond it stays Unschedulable.
    room: int = 100
    settings: Settings = SETTINGS
    events: list[Event] = field(default_factory=list)
    applied: list[Manifest] = field(default_factory=list)
    #: Every revision that the public Service has selected, in order.
    served: list[int] = field(default_factory=list)
    #: Names of Jobs that were created, in order.
    created: list[str] = field(default_factory=list)
    #: Names of Deployments whose templates were put back, in order.
    mended: list[str] = field(default_factory=list)
    #: Names of Jobs that completed, in order.
    completed: list[str] = field(default_factory=list)
    #: How often the serving revision was scaled to nothing.
    outages: int = 0
    #: The status write after the next move of the Service does not arrive, though all before it was carried out.
    loses_next_move: bool = False
    #: What the API server lets nobody make or scale: patterns of kind/name.
    refuses: tuple[str, ...] = ()
    #: With which words.
    refusal: str = QUOTA
    last: Decision | None = None

    def __post_init__(self) -> None:
        claims = {name: Claim(name, 10**13) for name in ("features", "drafts")}
        self.seen = replace(self.seen, claims=claims)

    # --------------------------------------------------------------------------------------------------- reading

    @property
    def obj(self) -> Eagle3Draft:
        metadata = {
            "name": self.name,
            "namespace": "llm",
            "uid": self.uid,
            "generation": self.generation,
            "annotations": self.annotations,
        }
        return Eagle3Draft.model_validate({"metadata": metadata, "spec": self.spec, "status": self.status})

    @property
    def told(self) -> Eagle3DraftStatus:
        return Eagle3DraftStatus.model_validate(self.status)

    def condition(self, kind: str) -> Condition:
        return next(c for c in self.told.conditions if c.type == kind)

    def reason(self, kind: str = "Ready") -> tuple[str, Reason]:
        condition = self.condition(kind)
        return condition.status, condition.reason

    def job(self, stage: str) -> Job:
        """The one Job of this stage that has not finished, or else the newest."""
        of_stage = [job for job in self.seen.jobs.values() if job.stage == stage and not job.terminating]
        found = [job for job in of_stage if not job.finished] or of_stage[-1:]
        assert len(found) == 1, f"{len(found)} Jobs of {stage}: {[j.name for j in found]}"
        return found[0]

    def applied_job(self, stage: str) -> Manifest:
        """The Job of this stage, as it was last applied."""
        return [m for m in self.applied if m["metadata"].get("labels", {}).get("eagle3.dev/stage") == stage][-1]

    def jobs(self, stage: str) -> list[Job]:
        return [job for job in self.seen.jobs.values() if job.stage == stage]

    @property
    def serving(self) -> int | None:
        public = self.seen.services.get(self.name)
        return public.selected_revision if public else None

    @property
    def replicas(self) -> dict[int, int]:
        return {number: d.replicas for number, d in sorted(self.seen.deployments.items())}

    # --------------------------------------------------------------------------------------------------- acting

    def edit(self, **changes: Any) -> "World":
        self.spec = merged(self.spec, changes)
        self.generation += 1
        return self

    def approve(self) -> "World":
        """A person does what the message of Ready says."""
        word = self.condition("Ready").message.split("eagle3.dev/approve=")[1].split()[0]
        self.annotations["eagle3.dev/approve"] = word
        return self

    def step(self) -> Decision:
        """One reconcile, carried out."""
        decision, former = self.decided(), self.serving
        for deleted in decision.delete:
            if not self._refuses(deleted.kind, deleted.name):
                self._delete(deleted.kind, deleted.name)
        applied = [manifest for manifest in decision.apply if not self.is_refused(manifest)]
        for manifest in applied:
            self._apply(manifest)
        self.applied += applied
        for mend in decision.mend:
            if self._refuses("Deployment", mend.name):
                continue
            number = int(mend.manifest["metadata"]["labels"][names.REVISION_LABEL][1:])
            mended = replace(
                self.seen.deployments[number], template=Template(), edited_by=None, edited=(), pods=(), ready_replicas=0
            )
            self._put(mended)
            self._schedule(number)
            self.mended.append(mend.name)
        for scale in decision.scale:
            if not self._refuses("Deployment", scale.name):
                self._scale(scale.name, scale.replicas)
        for suspend in decision.suspend:
            job = self.seen.jobs[suspend.name]
            assert suspend.kind == job.kind
            started = tuple(pod for pod in job.pods if pod.started)  # it takes its time to end
            pods = started if suspend.suspend else (Pod(f"{job.name}-0", self.now),)
            self._put_job(replace(job, suspended=suspend.suspend, started_at=self.now, pods=pods))
        if self.loses_next_move and self.serving != former:
            self.loses_next_move = False
        else:
            self.status = json.loads(json.dumps(decision.status.to_json()))
            self.events += decision.events
            self.seen = replace(self.seen, metrics=None)
        self.last = decision
        return decision

    def decided(self) -> Decision:
        """What is decided once it is known what of it cannot be done, as ``cluster.reconcile`` does."""
        seen = self.seen
        while True:
            decision = decide(self.obj, seen, self.settings, self.now)
            asked = [("deleted", deletion.kind, deletion.name) for deletion in decision.delete]
            asked += [
                ("created" if m["kind"] in ("Job", "JobSet") else "applied", m["kind"], m["metadata"]["name"])
                for m in decision.apply
            ]
            asked += [("mended", "Deployment", mend.name) for mend in decision.mend]
            asked += [("scaled", "Deployment", scale.name) for scale in decision.scale]
            new = (one for one in asked if self._refuses(*one[1:]) and seen.refusal(*one[1:]) is None)
            if (first := next(new, None)) is None:
                return decision
            verb, kind, name = first
            seen = replace(seen, refused=(*seen.refused, Refusal(kind, name, verb, self.refusal)))

    def is_refused(self, manifest: Manifest) -> bool:
        """Whether the API server lets nobody make this."""
        return self._refuses(manifest["kind"], manifest["metadata"]["name"])

    def _refuses(self, kind: str, name: str) -> bool:
        return any(re.fullmatch(pattern, f"{kind}/{name}") for pattern in self.refuses)

    def use(self, claim: str, *, by: tuple[str, ...] | None) -> "World":
        """A claim is used by others from now on; None: nobody has looked."""
        used = replace(self.seen.claims[claim], used_by=by)
        self.seen = replace(self.seen, claims={**self.seen.claims, claim: used})
        return self

    def hang_a_server(self) -> "World":
        """A pod of a server that was sent away last does not end: its node is lost."""
        if going := [d for d in self.seen.deployments.values() if d.replicas == 0]:
            lost = Pod("lost", self.now, "Running", started_at=self.now, terminating=True, gone_by=self.now)
            self._put(replace(going[-1], pods=(lost,)))
        return self

    def end_lost_pods(self) -> "World":
        """What hung is gone: its node is back, or was deleted, and whoever waits for its place gets that."""
        for deployment in self.seen.deployments.values():
            self._put(replace(deployment, pods=tuple(pod for pod in deployment.pods if not pod.terminating)))
        for number in self.seen.deployments:
            self._schedule(number)
        return self

    def settle(self, limit: int = 20) -> "World":
        """Reconcile until a reconcile changes nothing."""
        for _ in range(limit):
            before = (self.status, self.seen)
            self.step()
            if (self.status, self.seen) == before:
                return self
        raise AssertionError(f"not settled after {limit} reconciles: {self.status}")

    def later(self, seconds: float) -> "World":
        self.now += timedelta(seconds=seconds)
        return self

    def finish(self, stage: str, result: Any = None) -> "World":
        """The stage's Job completes with this result."""
        job, name = self.job(stage), StageName(stage)
        given = RESULTS[name] if result is None else result
        report = Report(stage=name, key=job.key, ok=True, result=given.to_json())
        self.completed.append(job.name)
        self._put_job(replace(job, complete=True, finished_at=self.now, report=report))
        return self.settle()

    def complete(self, stage: str) -> "World":
        """The stage's Job completes and leaves no report: it was somebody else's command, or its pod is gone."""
        job = self.job(stage)
        self.completed.append(job.name)
        self._put_job(replace(job, complete=True, finished_at=self.now))
        return self.settle()

    def crash(self, stage: str, *, code: int, said: str, timed_out: bool = False) -> "World":
        """The stage's Job fails without a report; its pod's log ended with these words, perhaps because its time was up."""
        job = self.job(stage)
        pod = Pod(
            f"{job.name}-x",
            self.now,
            "Failed",
            started_at=self.now,
            exit_code=code,
            termination_message=said,
            finished_at=self.now,
            waiting_reason="DeadlineExceeded" if timed_out else None,
        )
        why = "Job has reached the specified backoff limit"
        self._put_job(replace(job, failed=True, finished_at=self.now, failure_message=why, pods=(pod,)))
        return self.settle()

    def fail(self, stage: str, reason: Reason, message: str, code: int = 11, retry: StageName | None = None) -> "World":
        """The stage's Job fails with this report."""
        job = self.job(stage)
        report = Report(stage=StageName(stage), key=job.key, ok=False, reason=reason, message=message, retry=retry)
        pod = Pod(f"{job.name}-x", self.now, "Failed", started_at=self.now, exit_code=code, finished_at=self.now)
        self._put_job(replace(job, failed=True, finished_at=self.now, report=report, pods=(pod,)))
        return self.settle()

    def ready(self, *numbers: int) -> "World":
        """The servers of these revisions get ready, as far as there is room."""
        for number in numbers:
            deployment = self.seen.deployments[number]
            pods = tuple(
                Pod(
                    f"{deployment.name}-{i}", self.now, "Running", ready=True, ready_since=self.now, started_at=self.now
                )
                for i in range(deployment.replicas)
            )
            self._put(replace(deployment, pods=pods, ready_replicas=len(pods)))
        return self.settle()

    def pods(self, number: int, *pods: Pod, log: tuple[str, ...] = ()) -> "World":
        """The pods of a revision, as a test wants them."""
        ready = sum(pod.ready for pod in pods)
        self._put(replace(self.seen.deployments[number], pods=pods, ready_replicas=ready, log=log))
        return self.settle()

    def window(
        self, tokens: float = 3000, requests: float = 100, verify: float = 1000, problem: str = "", running: float = 1
    ) -> "World":
        """One window of the watch passes with these increases."""
        assert self.serving is not None
        begin = self.now
        self.later(60)
        accept = (tokens - requests) / verify if verify else None
        window = Window(
            start=stamp(begin),
            end=stamp(self.now),
            tokens=tokens,
            requests=requests,
            verify_calls=verify,
            running=running,
            accept_length=accept,
        )
        metrics = ServerMetrics(self.serving, problem=problem) if problem else ServerMetrics(self.serving, window)
        self.seen = replace(self.seen, metrics=metrics)
        self.step()
        return self.settle()

    # ------------------------------------------------------------------------------------------- carrying out

    def _apply(self, manifest: Manifest) -> None:
        kind, metadata = manifest["kind"], manifest["metadata"]
        apply: dict[str, Callable[[Manifest], None]] = {
            "Job": self._apply_job,
            "JobSet": self._apply_job,
            "Deployment": self._apply_deployment,
            "Service": self._apply_service,
            "PodDisruptionBudget": self._apply_budget,
        }
        if kind == "PersistentVolumeClaim":  # which may outlive the object
            claim = Claim(metadata["name"], 10**13, owned="ownerReferences" in metadata, used_by=())
            self.seen = replace(self.seen, claims={**self.seen.claims, claim.name: claim})
            return
        assert metadata["ownerReferences"][0]["uid"] == self.uid, "every child is the object's"
        apply[kind](manifest)

    def _apply_job(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        assert metadata["name"] not in self.seen.jobs, "a Job is never patched"
        revision = metadata["labels"].get(names.REVISION_LABEL)
        if manifest["kind"] == "Job":
            volumes = manifest["spec"]["template"]["spec"]["volumes"]
            mounted = {v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v}
            missing = {claim for claim in mounted if claim.startswith(f"{self.name}-")} - set(self.seen.claims)
            assert not missing, f"the pods of {metadata['name']} would wait for {missing}"
        self.created.append(metadata["name"])
        self._put_job(
            Job(
                name=metadata["name"],
                stage=metadata["labels"][names.STAGE_LABEL],
                key=metadata["annotations"][names.KEY_ANNOTATION],
                template=metadata["annotations"][names.TEMPLATE_ANNOTATION],
                created_at=self.now,
                started_at=self.now,
                suspended=manifest["spec"]["suspend"],
                queue=metadata["labels"].get(names.QUEUE_LABEL),
                revision=int(revision[1:]) if revision else None,
                kind=manifest["kind"],
                pods=() if manifest["spec"]["suspend"] else (Pod(f"{metadata['name']}-0", self.now),),
            )
        )

    def _apply_deployment(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        number = int(metadata["labels"][names.REVISION_LABEL][1:])
        assert number not in self.seen.deployments, "a Deployment's template is never touched"
        self._put(
            Deployment(
                name=metadata["name"],
                revision=number,
                key=metadata["annotations"][names.KEY_ANNOTATION],
                created_at=self.now,
                replicas=0,
                record=json.loads(metadata["annotations"][names.RECORD_ANNOTATION]),
            )
        )
        self._scale(metadata["name"], manifest["spec"]["replicas"])

    def _apply_service(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        selected = revision_number(manifest["spec"]["selector"])
        if name == self.name and selected is not None:
            self.served.append(selected)
        self.seen = replace(self.seen, services={**self.seen.services, name: Service(name, selected)})

    def _apply_budget(self, manifest: Manifest) -> None:
        spec = manifest["spec"]
        self.seen = replace(self.seen, budget=Budget(spec, revision_number(spec["selector"]["matchLabels"])))

    def _scale(self, name: str, replicas: int) -> None:
        deployment = next(d for d in self.seen.deployments.values() if d.name == name)
        if deployment.revision == self.serving and replicas == 0:
            self.outages += 1
        self._put(replace(deployment, replicas=replicas, scaled_by=names.FIELD_MANAGER, pods=(), ready_replicas=0))
        for number in self.seen.deployments:
            self._schedule(number)

    def _schedule(self, number: int) -> None:
        """Pods that are not there yet are made; beyond the room they stay Unschedulable."""
        deployment = self.seen.deployments[number]
        placed = sum(
            1
            for d in self.seen.deployments.values()
            for p in d.pods
            if d.revision != number and p.unschedulable is None
        )
        pods = []
        for i in range(deployment.replicas):
            fits = placed + i < self.room
            old = deployment.pods[i] if i < len(deployment.pods) else None
            if old is not None and (old.unschedulable is None) == fits:
                pods.append(old)
            elif fits:
                pods.append(Pod(f"{deployment.name}-{i}", self.now))
            else:
                text = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
                pods.append(Pod(f"{deployment.name}-{i}", self.now, unschedulable=text, unschedulable_since=self.now))
        self._put(replace(deployment, pods=tuple(pods), ready_replicas=sum(p.ready for p in pods)))

    def _delete(self, kind: str, name: str) -> None:
        if kind in ("Job", "JobSet"):
            assert name not in self.seen.jobs or self.seen.jobs[name].kind == kind
            self.seen = replace(self.seen, jobs={n: j for n, j in self.seen.jobs.items() if n != name})
        elif kind == "Deployment":
            left = {n: d for n, d in self.seen.deployments.items() if d.name != name}
            self.seen = replace(self.seen, deployments=left)
        elif kind == "PodDisruptionBudget":
            self.seen = replace(self.seen, budget=None)
        elif kind == "PersistentVolumeClaim":
            left_claims = {n: c for n, c in self.seen.claims.items() if n != name}
            self.seen = replace(self.seen, claims=left_claims)
        else:
            left_services = {n: s for n, s in self.seen.services.items() if n != name}
            self.seen = replace(self.seen, services=left_services)

    def _put(self, deployment: Deployment) -> None:
        self.seen = replace(self.seen, deployments={**self.seen.deployments, deployment.revision: deployment})

    def _put_job(self, job: Job) -> None:
        self.seen = replace(self.seen, jobs={**self.seen.jobs, job.name: job})


def stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def remembered(come: Callable[[World], World]) -> Callable[..., World]:
    """Goes a way once for all worlds that are the same at its beginning, as most tests begin far along; each keeps what is its own."""
    ends: dict[str, bytes] = {}

    @wraps(come)
    def goes(world: World | None = None) -> World:
        world = world or World()
        if (begin := repr(world)) not in ends:
            ends[begin] = pickle.dumps(vars(come(world)))
        vars(world).update(pickle.loads(ends[begin]))  # noqa: S301 - it was written above
        return world

    return goes


@remembered
def trained(world: World) -> World:
    """Up to the converted draft."""
    world.settle()
    for stage in ("inspect", "extract", "train", "convert"):
        world.finish(stage)
    return world


@remembered
def serving_plain(world: World) -> World:
    """Up to r0, measured and serving; r1 is starting."""
    return trained(world).ready(0).finish("probe", measured())


@remembered
def serving_draft(world: World) -> World:
    """Up to r1, proven and serving."""
    return serving_plain(world).ready(1).finish("probe", measured(accept=2.71, speed=126.9))


def training_of(job: Manifest) -> TrainConfig:
    """What the pods of a training are told."""
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    config = JobEnvelope.model_validate_json(annotations[CONFIG_ANNOTATION]).config
    assert isinstance(config, TrainConfig)
    return config
