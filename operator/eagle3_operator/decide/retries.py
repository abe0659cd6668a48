"""The retry annotation: another chance for a stage or a revision, on purpose, once per token.

``eagle3.dev/retry: <stage | r<n>>@<token>`` is acted on while it differs from ``status.handled``, which is written in the
same status write. The operator never edits the annotation.
"""

from dataclasses import dataclass, replace

from eagle3_api.conditions import EventReason
from eagle3_api.jobs import StageName
from eagle3_api.status import Eagle3DraftStatus, RevisionStatus, StageState, StageStatus
from eagle3_operator.decision import Delete, Event
from eagle3_operator.observation import Observation
from eagle3_operator.traits import Part, stages_of

RETRY_ANNOTATION = "eagle3.dev/retry"

#: Before one of these is tried again everything is looked at again, and meanwhile nothing is tried: what it reads may be mended.
_INSPECTED = stages_of(Part.CHAIN)

_FORGOTTEN: dict[str, object] = {
    "probe": None,
    "probe_errors": 0,
    "probe_problem": "",
    "start_failures": 0,
    "start_problem": "",
    "failed_at": None,
    "crashed": False,
    "windows": [],
    "reading": None,
    "early_accept_length": None,
    "reason": None,
    "message": "",
}


@dataclass(frozen=True)
class Retried:
    """The status and the observation as the rest of the decision is to see them."""

    status: Eagle3DraftStatus
    seen: Observation
    delete: tuple[Delete, ...] = ()
    #: What to tell: that the annotation names nothing.
    told: tuple[Event, ...] = ()


def act_on(annotations: dict[str, str], status: Eagle3DraftStatus, seen: Observation) -> Retried:
    """Forget what stands in the way of another try, if the annotation asks for one that was not given yet."""
    asked = annotations.get(RETRY_ANNOTATION)
    if not asked or asked in (status.handled.retry, status.handled.beside):
        return Retried(status, seen)
    what, _, token = asked.partition("@")
    if not token or what not in {*_INSPECTED, *_there(status)}:
        # It is told once, and does nothing either when there is something of that name one day
        handled = status.handled.model_copy(update={"beside": asked})
        return Retried(status.model_copy(update={"handled": handled}), seen, told=(_unknown(asked, status),))
    stage = next((s for s in status.stages if s.name == what and what != StageName.INSPECT), None)
    former = seen.jobs.get(stage.job or "") if stage is not None else None
    if former is not None and seen.refusal(former.kind, former.name) is not None:
        return Retried(status, seen)  # it cannot be deleted, which is tried again: the other try is still to come
    handled = status.handled.model_copy(update={"retry" if what in _INSPECTED else "beside": asked})
    status = status.model_copy(update={"handled": handled})
    if stage is not None:
        return _retry_stage(status, seen, stage, token)
    serving = status.serving_revision
    revisions = [
        _forget(r, token, serves=r.number == serving) if f"r{r.number}" == what else r for r in status.revisions
    ]
    return Retried(status.model_copy(update={"revisions": revisions}), seen)


def _there(status: Eagle3DraftStatus) -> list[str]:
    """What can be named: the stages and the revisions of the object."""
    return [*(stage.name.value for stage in status.stages), *(f"r{r.number}" for r in status.revisions)]


def _unknown(asked: str, status: Eagle3DraftStatus) -> Event:
    there = ", ".join(_there(status)) or "nothing yet"
    text = (
        f"{RETRY_ANNOTATION}={asked} was ignored: it matches no stage or revision. Use STAGE@WORD or rN@WORD, with a WORD that was "
        f"not used before. This object has: {there}"
    )
    return Event("Warning", EventReason.RETRY_UNKNOWN, text)


def _forget(revision: RevisionStatus, token: str, *, serves: bool) -> RevisionStatus:
    """The revision as if it had never been tried. What serves, and a plain one, keep what they were proven by meanwhile."""
    proof = revision.probe or revision.proof if serves or revision.draft is None else None
    return revision.model_copy(update=_FORGOTTEN | {"proof": proof, "retried": token})


def _retry_stage(status: Eagle3DraftStatus, seen: Observation, stage: StageStatus, token: str) -> Retried:
    """A finished stage runs again under a new key; one that is not finished begins anew under its own."""
    finished = stage.state is StageState.SUCCEEDED
    changes: dict[str, object] = (
        {"attempt": token} if finished else {"state": StageState.WAITING, "reason": None, "stalls": 0, "lost": 0}
    )
    stages = [s.model_copy(update=changes) if s.name == stage.name else s for s in status.stages]
    status = status.model_copy(update={"stages": stages})
    job = seen.jobs.get(stage.job or "")
    if finished or job is None:
        return Retried(status, seen)
    going = {**seen.jobs, job.name: replace(job, terminating=True)}
    return Retried(status, replace(seen, jobs=going), (Delete(job.kind, job.name),))
