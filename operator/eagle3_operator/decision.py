"""What one reconcile does, as plain values: ``decide`` makes them, ``cluster.act`` carries them out.

The order is fixed: deletions, applications, mendings, scalings, suspensions, owners, Jobs, the budget of disruptions, then one status write,
then Events. Everything is idempotent, so a reconcile that dies anywhere is simply run again.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from eagle3_api.conditions import EventReason, Reason
from eagle3_api.status import Eagle3DraftStatus

Manifest = dict[str, Any]


#: What ``Because.about`` names.
FEATURES_CLAIM = "claim of the features"


class Because(NamedTuple):
    """Why something stands where it does, or does not go on yet: a reason, and a sentence for people.

    ``about`` says what it waits for where code asks for that. It is never shown; nobody compares sentences.
    """

    reason: Reason
    message: str
    about: str = ""


@dataclass(frozen=True)
class Delete:
    """Delete a child in the foreground: its pods go first."""

    kind: str
    name: str


@dataclass(frozen=True)
class Mend:
    """Put back the pod template of a revision's Deployment, which somebody else has changed."""

    manifest: Manifest

    @property
    def name(self) -> str:
        """Of the Deployment."""
        name: str = self.manifest["metadata"]["name"]
        return name


@dataclass(frozen=True)
class Scale:
    """Set the replicas of a revision's Deployment; its template is never touched."""

    name: str
    replicas: int


@dataclass(frozen=True)
class Suspend:
    """Suspend or resume a Job, or the JobSet that runs one."""

    kind: str
    name: str
    suspend: bool


@dataclass(frozen=True)
class Own:
    """Have a claim go with its object, or outlive it, and change nothing else of it."""

    claim: str
    #: Of ``metadata.ownerReferences`` those that are this object's.
    owners: tuple[Manifest, ...]


@dataclass(frozen=True)
class Event:
    """A transition worth telling; posted only after the status write succeeded, where there is anything to write."""

    type: Literal["Normal", "Warning"]
    reason: EventReason
    message: str


@dataclass(frozen=True)
class Decision:
    """The outcome of one reconcile."""

    status: Eagle3DraftStatus
    delete: tuple[Delete, ...] = ()
    apply: tuple[Manifest, ...] = ()
    mend: tuple[Mend, ...] = ()
    scale: tuple[Scale, ...] = ()
    suspend: tuple[Suspend, ...] = ()
    own: tuple[Own, ...] = ()
    events: tuple[Event, ...] = ()
    #: Seconds until the object must be looked at again without being called; None for the resync only.
    requeue_after: float | None = None
