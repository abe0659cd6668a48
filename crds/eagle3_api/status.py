"""``Eagle3Draft.status``: what the operator observed and decided. Nobody else writes it.

It is the operator's only memory, and everything in it is an observation with its time: verdicts are computed anew from
the stored measurements at every reconcile, so that a change of policy needs no new measurement.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationInfo

from eagle3_api import times
from eagle3_api.base import Model
from eagle3_api.conditions import Reason, Status, Type
from eagle3_api.jobs import ConvertResult, Facts, ProbeResult, StageName
from eagle3_api.word import Word

#: Windows of the watch that a revision keeps: all that a verdict looks at (``judge.watch.kept``), also where ``watch.failures.in``
#: is the 10 that it may be.
WINDOWS_KEPT = 21

#: Former artifacts that the status remembers.
ARTIFACTS_KEPT = 3

#: Retries of finished stages that the status remembers.
ATTEMPTS_KEPT = 16

#: Edits of a revision's Deployment that are remembered once they are taken back.
MENDED_KEPT = 3

#: Servers of a revision whose counters are read, where no Prometheus does it.
PODS_READ = 64

#: So far two clocks may be apart: a time of the status that lies further ahead is of one that was wrong.
AHEAD = timedelta(minutes=5)


def _not_ahead(stamp: str, info: ValidationInfo) -> str:
    now: datetime | None = (info.context or {}).get("now")
    if now is None or times.parse(stamp) <= now + AHEAD:
        return stamp
    return times.text(now)


#: A time that is past, as the API writes it: RFC 3339 in UTC, to the second (``Eagle3DraftStatus.as_of``).
Past = Annotated[str, AfterValidator(_not_ahead)]


class Condition(Model):
    """One observation, as ``metav1.Condition``."""

    type: Type
    status: Status
    reason: Reason
    message: str
    observed_generation: int
    last_transition_time: Past


class StageState(Word):
    WAITING = "Waiting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class StageProgress(Model):
    """The last progress line of a running stage."""

    done: float
    seconds_left: float | None = None
    message: str = ""
    time: str = Field(description="When the line was written, by the clock of its node.")
    heard: Past | None = Field(
        None, description="When the operator first reported it, by its own clock: at most a minute after it saw it."
    )


class StageStatus(Model):
    """A stage of the newest desired chain."""

    name: StageName
    key: str
    state: StageState
    job: str | None = None
    started_at: Past | None = None
    finished_at: Past | None = None
    progress: StageProgress | None = None
    artifact: str | None = Field(None, description="Folder, as pods see it.")
    reason: Reason | None = None
    message: str = ""
    attempt: str | None = Field(None, description="Token of the retry that made a finished stage run again.")
    stalls: int = Field(0, description="How often this key's Job was ended because it showed no progress.")
    lost: int = Field(0, description="How often this key's Job completed without a report of the whole.")
    result: dict[str, Any] | None = Field(None, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})


class Attempt(Model):
    """A retry of a finished stage, which counts for the same inputs ever after."""

    stage: StageName
    inputs: str = Field(description="Key of the stage without a retry.")
    token: str


class RevisionState(Word):
    """For people; the operator derives it and never reads it."""

    WAITING = "Waiting"
    STARTING = "Starting"
    PROBING = "Probing"
    PROVEN = "Proven"
    SERVING = "Serving"
    REJECTED = "Rejected"
    STALLED = "Stalled"
    RETIRED = "Retired"


class Window(Model):
    """One window of the watch: increases of the serving revision's counters between two times."""

    start: Past
    end: Past
    tokens: float = Field(description="Generated tokens of finished requests.")
    requests: float = Field(description="Finished requests.")
    verify_calls: float
    running: float = Field(0, description="Requests that ran together on a server.")
    accept_length: float | None = Field(None, description="(tokens - requests) / verify calls.")


class PodReading(Model):
    """What one server had counted since its container started."""

    pod: str
    restarts: int = Field(0, description="Restarts of its container.")
    tokens: float
    requests: float
    verify_calls: float
    request_seconds: float = Field(0, description="How long its finished requests took, added up.")
    idle_seconds: float | None = Field(None, description="How long it had no request, if it tells that.")


class Reading(Model):
    """What the servers of a revision had counted at one time, as they say themselves."""

    time: Past
    pods: list[PodReading] = Field(max_length=PODS_READ)


class Template(Model):
    """The pod template of a revision's Deployment, by which it is seen whether it is what the operator made."""

    runs: str = Field("", description="Hash of what its pods run.")
    fields: str = Field("", description="Hash of the names of those of its fields that the operator wrote last.")


class Mended(Model):
    """An edit of a revision's Deployment that was undone."""

    at: Past
    runs: str = Field(description="Hash of what pods would have run by it.")


class RevisionStatus(Model):
    """A way of serving: a converted draft or none, and how."""

    number: int
    key: str
    target: str = Field("", description="Digest of the target.")
    draft: str | None = Field(None, description="Digest of the draft; none for the plain revision.")
    artifact: str | None = Field(None, description="Folder of the converted draft.")
    model: str | None = Field(
        None, description="Folder of the target that its servers read: a later fetch may have put the same elsewhere."
    )
    plain_key: str = Field(
        description="Key of the plain revision that this one is compared with; its own for a plain one."
    )
    expected_accept_length: float | None = None
    adaptive: bool = Field(False, description="Its servers choose how far they draft, by the load (mode Auto).")
    state: RevisionState = RevisionState.STARTING
    reason: Reason | None = None
    message: str = ""
    started_at: Past | None = Field(None, description="When its servers were last asked to start.")
    start_failures: int = 0
    start_problem: str = Field("", description="What the last failed start said.")
    failed_at: Past | None = Field(
        None, description="When its start was given up; an hour later it is tried again, beside what serves."
    )
    unready_since: Past | None = Field(
        None,
        description="Since when none of its pods has been ready for some minutes, if it serves. After the time that a "
        "start may take, another revision takes over.",
    )
    crashed: bool = Field(
        False,
        description="It was given up because it served and then had no ready pod: it is not tried again by itself.",
    )
    replicas: int | None = Field(None, description="Pods that it should have, as of the last look.")
    template: Template | None = Field(
        None, description="Its Deployment's pod template, when it was last seen unedited."
    )
    mended: list[Mended] = Field(
        default_factory=list,
        max_length=MENDED_KEPT,
        description="When somebody else's changes of its Deployment's pod template were undone; the newest last.",
    )
    displaces: bool = Field(
        False, description="Its pods found no GPU beside the serving revision, so it starts in place of that one."
    )
    covered: bool = Field(
        False,
        description="The outage that trying it takes is approved: by its name, by its plain revision's, or with the "
        "training of its draft, whose GPUs it starts on.",
    )
    probe: ProbeResult | None = Field(
        None,
        description="What its probe measured, which today's policy judges; of a plain revision also what drafts are compared with. None while it is to be measured, or measured again.",
    )
    proof: ProbeResult | None = Field(
        None,
        description="For a revision that is measured again: its earlier measurement, by which it serves meanwhile.",
    )
    probe_folder: str | None = Field(None, description="Where the measurement lies: answers, report.")
    probe_errors: int = 0
    probe_problem: str = ""
    promoted_at: Past | None = None
    bakes_until: str | None = Field(None, description="Kept warm until then, after another was promoted over it.")
    windows: list[Window] = Field(default_factory=list, max_length=WINDOWS_KEPT)
    reading: Reading | None = Field(
        None, description="The servers' counters where the next window begins, if no Prometheus is asked for them."
    )
    early_accept_length: float | None = Field(
        None, description="Accept length of its first windows with enough traffic; later ones may drift away from it."
    )
    watch_problem: str = Field("", description="Why the metrics could not be read, as of the last try.")
    retried: str | None = Field(None, description="Token of the retry annotation that gave it another chance.")


class Handled(Model):
    """What was acted on: annotations, and what the watch saw."""

    retry: str | None = Field(None, description="The last retry for which everything was inspected again.")
    beside: str | None = Field(
        None,
        description="The last retry of a revision, or of a stage that no revision waits for, which touches nothing "
        "else; or the last one that matched nothing.",
    )
    approve: str | None = Field(
        None, description="The last approval of a rollout that has ended: its revision serves, or was given up."
    )
    rollback: Past | None = Field(None, description="When the watch last moved the Service back.")
    drift: Past | None = Field(None, description="When the data was last inspected again because the draft drifts.")


class ArtifactStatus(Model):
    """A converted draft, for whoever serves it."""

    folder: str
    claim: str
    digest: str
    published: str | None = Field(
        None,
        description="registry/repository@digest of the OCI artifact, once it is pushed: what others pull, verify and sign.",
    )
    stored: str | None = Field(
        None, description="s3://BUCKET/PREFIX/sha256-…, the draft's folder in an object store, once it is there."
    )
    result: ConvertResult


class Phase(Word):
    """One word for people; do not program against it."""

    PENDING = "Pending"
    FETCHING = "Fetching"
    INSPECTING = "Inspecting"
    EXTRACTING = "Extracting"
    TRAINING = "Training"
    CONVERTING = "Converting"
    PUBLISHING = "Publishing"
    ROLLING_OUT = "RollingOut"
    PROBING = "Probing"
    SERVING = "Serving"
    PUBLISHED = "Published"
    DEGRADED = "Degraded"
    STALLED = "Stalled"
    SUSPENDED = "Suspended"


class Eagle3DraftStatus(Model):
    """What is so, as of ``observedGeneration``."""

    observed_generation: int = 0
    phase: Phase = Phase.PENDING
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    resolved: Facts | None = None
    stages: list[StageStatus] = Field(
        default_factory=list,
        max_length=8,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    revisions: list[RevisionStatus] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["number"]},
    )
    serving_revision: int | None = Field(None, description="The revision that the public Service selects.")
    ready_once: bool = Field(
        False,
        description="The object has been Ready, or its proven revision has served: from now on outages wait for approval.",
    )
    room_for: str | None = Field(
        None, description="Key of the training for which the servers are scaled to zero (serve.whileTraining)."
    )
    took: dict[str, float] = Field(
        default_factory=dict,
        description="Seconds that Extract and Train took when they last finished, of whatever key.",
    )
    artifact: ArtifactStatus | None = Field(None, description="The newest converted draft.")
    former_artifacts: list[ArtifactStatus] = Field(
        default_factory=list,
        max_length=ARTIFACTS_KEPT,
        description="What was converted before it, the newest first: an edit that goes back to one of them extracts and trains nothing again.",
    )
    attempts: list[Attempt] = Field(
        default_factory=list,
        max_length=ATTEMPTS_KEPT,
        description="The retries that made finished stages run again, the newest last.",
    )
    handled: Handled = Field(default_factory=Handled)
    replicas: int = 0
    selector: str = ""
    # What the printer columns show
    revision: str = Field("", description="r<n> of the serving revision, or of the one that is rolled out.")
    accept: str = Field("", description="Accept length, of the last window with traffic or else of the probe.")
    speedup: str = Field("", description="Tokens/s over the plain server's, from the probe.")
    baseline: str = Field("", description="Tokens/s of the plain server.")
    progress: str = Field("", description="Progress of the running stage.")
    draft: str = Field("", description="Digest of the served draft, shortened.")

    @classmethod
    def as_of(cls, stored: Mapping[str, Any], now: datetime) -> Self:
        """A status as it was stored, read at a time.

        What is past and lies ahead by more than ``AHEAD`` was written by a clock that was wrong, and is taken for now: what is reckoned
        from it, the next window of the watch among that, would otherwise wait until the right clock is there.

        Raises:
            ValidationError: it is no status that this version can read.
        """
        return cls.model_validate(stored, context={"now": now})

    def to_json(self) -> dict[str, object]:
        """Without what is empty too: it is what a reader takes anyway, and would be a dozen lines of kubectl describe."""
        return {name: value for name, value in super().to_json().items() if value not in ("", [], {})}
