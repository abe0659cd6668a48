"""Drift: where traffic has moved away from what the serving draft learned, the data is looked at again.

That is all that ``watch.onDrift: Retrain`` does, once per cooldown. A data set of a hub is fetched anew, and Inspect runs
anew; data that has changed has another digest, and is extracted and trained on as after any edit, probed and promoted as
any draft. Data that has not changed would only make the same draft again, so nothing follows from it.
"""

from datetime import datetime

from eagle3_api import times
from eagle3_api.conditions import Reason
from eagle3_api.spec import Eagle3DraftSpec, Watch, seconds
from eagle3_api.status import Eagle3DraftStatus, RevisionStatus, StageState
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.traits import Part, stages_of


def act_on(spec: Eagle3DraftSpec, status: Eagle3DraftStatus, now: datetime) -> Eagle3DraftStatus:
    """The status as the rest of the decision is to see it: with another inspection asked for, where that is due."""
    watch = spec.watched
    serving = next((r for r in status.revisions if r.number == status.serving_revision), None)
    if watch is None or watch.on_drift != "Retrain" or serving is None or spec.suspend:
        return status
    chain = (stage for stage in status.stages if stage.name not in stages_of(Part.BESIDE))
    at_work = any(stage.state is not StageState.SUCCEEDED for stage in chain)
    verdict = Revision(serving, None, spec).watch_verdict
    if at_work or verdict is None or verdict.reason is not Reason.DRIFTING:
        return status
    if not _rested(status.handled.drift, watch, serving, now):
        return status
    return status.model_copy(update={"handled": status.handled.model_copy(update={"drift": times.text(now)})})


def _rested(before: str | None, watch: Watch, serving: RevisionStatus, now: datetime) -> bool:
    """Whether the cooldown is over, and a window has ended since: what an inspection changed must be seen first."""
    if before is None:
        return True
    over = times.age(before, now) >= seconds(watch.cooldown)
    return over and times.parse(serving.windows[-1].end) > times.parse(before)
