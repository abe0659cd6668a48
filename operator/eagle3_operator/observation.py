"""What one reconcile sees, as plain values: the object's children as they are now.

``cluster.observe`` fills these; ``decide`` reads them and nothing else. Times are aware datetimes in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from eagle3_api.jobs import Progress, Report
from eagle3_api.status import Reading, Template, Window


@dataclass(frozen=True)
class Pod:
    """A pod of a Job or of a Deployment."""

    name: str
    created_at: datetime
    phase: str = "Pending"
    #: Its IP address.
    address: str | None = None
    #: Where its server answers: what the object says of it may have been edited since the pod was made.
    port: int | None = None
    ready: bool = False
    #: Since when it is, if it is.
    ready_since: datetime | None = None
    terminating: bool = False
    #: When it is to have ended, if it is terminating.
    gone_by: datetime | None = None
    #: The node that the scheduler gave it, and since when.
    node: str | None = None
    placed_at: datetime | None = None
    #: When the main container was started last; None if it never was. A pod may have waited for hours before.
    started_at: datetime | None = None
    #: The scheduler's words when it found no place, and since when.
    unschedulable: str | None = None
    unschedulable_since: datetime | None = None
    #: It is not even looked at by the scheduler: the queue of Kueue that holds it back for want of quota.
    queue: str | None = None
    #: The claim that another node has, and the pod that mounts it there. Only looked for once it is late.
    kept_from: str | None = None
    #: Why a container waits (ImagePullBackOff, CrashLoopBackOff, ...), with the kubelet's words.
    waiting_reason: str | None = None
    waiting_message: str = ""
    restarts: int = 0
    #: Of the main container's last termination.
    exit_code: int | None = None
    oom_killed: bool = False
    termination_message: str = ""
    finished_at: datetime | None = None
    #: A container that is not ours and runs on, though the main one has ended for good.
    held_by: str | None = None

    @property
    def started(self) -> bool:
        """The main container has run, or runs."""
        return self.started_at is not None

    @property
    def on_its_way(self) -> bool:
        """It has a node, and its main container was not started there yet."""
        return self.node is not None and self.phase == "Pending" and not self.started and not self.terminating

    @property
    def timed_out(self) -> bool:
        """The kubelet has ended it when its time was up (``activeDeadlineSeconds``)."""
        return self.phase == "Failed" and self.waiting_reason == "DeadlineExceeded"


@dataclass(frozen=True)
class Job:
    """A Job of one of the object's stages, or the JobSet of which it is the only one."""

    name: str
    stage: str
    key: str
    template: str
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    complete: bool = False
    failed: bool = False
    failure_reason: str = ""
    failure_message: str = ""
    suspended: bool = False
    #: Since when it is, if it is and that is known.
    suspended_since: datetime | None = None
    #: Who has last said whether it is, if that is known.
    suspended_by: str | None = None
    #: The queue of Kueue that suspends and resumes it.
    queue: str | None = None
    terminating: bool = False
    #: Since when it is, if it is.
    deleted_at: datetime | None = None
    #: Pods that are to succeed, and that have.
    completions: int = 1
    succeeded: int = 0
    revision: int | None = None
    owned: bool = True
    #: ``JobSet`` where we made one of these: it has the name, and is what is deleted and suspended.
    kind: str = "Job"
    #: There is a JobSet, and no Job of it yet.
    unmade: bool = False
    pods: tuple[Pod, ...] = ()
    report: Report | None = None
    progress: Progress | None = None
    #: Why its log could not be read just now: then no progress means nothing.
    progress_problem: str = ""

    @property
    def finished(self) -> bool:
        """Complete or failed, with its pods gone or terminal."""
        return self.complete or self.failed


@dataclass(frozen=True)
class Deployment:
    """The Deployment of one revision."""

    name: str
    revision: int
    key: str
    created_at: datetime
    replicas: int
    #: Who has last said how many, if that is known.
    scaled_by: str | None = None
    #: Who else has written into its pod template since it was made, and what: the paths of these fields.
    edited_by: str | None = None
    edited: tuple[str, ...] = ()
    #: Of that template as it is now.
    template: Template = field(default_factory=Template)
    ready_replicas: int = 0
    #: Pods that still exist, ready or not, terminating or not.
    pods: tuple[Pod, ...] = ()
    #: The words of what let a pod of it not be made (a quota, an admission), and since when.
    refused: str | None = None
    refused_since: datetime | None = None
    terminating: bool = False
    owned: bool = True
    #: What the revision is, kept on the Deployment so that a lost status can be rebuilt: draft digest, artifact, plain key.
    record: Mapping[str, str] = field(default_factory=dict)
    #: The last lines of its newest container's log, when it is not ready and the decision may need them.
    log: tuple[str, ...] = ()

    @property
    def without_former_pods(self) -> "Deployment":
        """It, without the pods that are about to end: they run, wait or crash in the name of what was wanted before."""
        return replace(self, pods=tuple(pod for pod in self.pods if not pod.terminating))


@dataclass(frozen=True)
class Service:
    """The public Service (``revision`` is what it selects) or a revision's own."""

    name: str
    selected_revision: int | None = None
    owned: bool = True


@dataclass(frozen=True)
class Budget:
    """The PodDisruptionBudget of the serving pods, or a stranger's of that name."""

    #: As the API server has it.
    spec: Mapping[str, Any]
    #: Whose pods it selects.
    revision: int | None
    owned: bool = True


@dataclass(frozen=True)
class Claim:
    """A PersistentVolumeClaim that the object names for all its pods, or that the operator made."""

    name: str
    #: Bytes, of the bound volume or else asked for.
    capacity: int | None = None
    access_modes: tuple[str, ...] = ()
    #: Of one that the operator made: whether it goes with this object. None of anybody else's.
    owned: bool | None = None
    #: It is being deleted: no pod that is made now gets it. And since when.
    terminating: bool = False
    deleted_at: datetime | None = None
    #: Objects whose specs name it, and pods of others that mount it. None: nobody looked, as it is not about to be deleted.
    used_by: tuple[str, ...] | None = None

    @property
    def one_node(self) -> bool:
        """Only the pods of one node can mount it at a time."""
        return "ReadWriteOnce" in self.access_modes and "ReadWriteMany" not in self.access_modes


@dataclass(frozen=True)
class ServerMetrics:
    """What this reconcile heard of the serving revision's counters."""

    revision: int
    window: Window | None = None
    #: The counters themselves, where they were read from the servers: the next window begins there.
    reading: Reading | None = None
    #: Why there is neither: Prometheus's, the servers' or the network's words.
    problem: str = ""


@dataclass(frozen=True)
class Refusal:
    """Something that this very reconcile has tried to do to a child, and was not let do."""

    kind: str
    name: str
    #: What was to become of it: ``created``, ``applied``, ``scaled``, ``deleted``, ...
    verb: str
    #: The words of whoever refused it: a quota, an admission webhook or policy, the API server itself.
    message: str

    @property
    def what(self) -> str:
        """What could not be done."""
        return f"{self.kind} {self.name} could not be {self.verb}"

    def __str__(self) -> str:
        return f"{self.what}: {self.message}"


@dataclass(frozen=True)
class Observation:
    """All that one reconcile sees besides the object itself."""

    jobs: Mapping[str, Job] = field(default_factory=dict)
    deployments: Mapping[int, Deployment] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    budget: Budget | None = None
    claims: Mapping[str, Claim] = field(default_factory=dict)
    metrics: ServerMetrics | None = None
    #: The cluster serves JobSets, and the operator may make them. Only looked up where it matters.
    jobsets: bool = False
    #: What was decided before from the same look, and could not be done.
    refused: tuple[Refusal, ...] = ()

    @property
    def one_node_claims(self) -> frozenset[str]:
        """Names of the claims that only one node can have at a time. An inspection mounts all of them: they lie on one."""
        return frozenset(name for name, claim in self.claims.items() if claim.one_node)

    def refusal(self, kind: str, name: str) -> Refusal | None:
        """What could not be done to this child."""
        return next((one for one in self.refused if (one.kind, one.name) == (kind, name)), None)
