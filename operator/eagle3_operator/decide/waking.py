"""When to look again without being called."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from eagle3_api import times
from eagle3_api.conditions import Reason
from eagle3_api.jobs import StageName
from eagle3_api.spec import seconds
from eagle3_api.status import StageStatus
from eagle3_operator.decide.pods.waiting import time_left
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.decide.serving.rollout import RolloutResult
from eagle3_operator.decide.telling.conditions import Said
from eagle3_operator.decide.view import View
from eagle3_operator.decision import FEATURES_CLAIM, Because
from eagle3_operator.judge import counters
from eagle3_operator.judge.windows import begins
from eagle3_operator.manifests import names

#: How soon metrics that could not be read are asked for again, and a claim that is missing is looked for.
RETRY_SECONDS = 30.0


def wake_after(
    view: View,
    chain: Mapping[StageName, StageStatus],
    waits: Iterable[Because],
    obstacle: Said | None,
    outcome: RolloutResult | None,
) -> float | None:
    """When to look again without being called: a poll, the end of a window or of a bake, a retry.

    Args:
        view: the object, its children and the time.
        chain: the stages.
        waits: what stages wait for.
        obstacle: what keeps the object from going on before any.
        outcome: of the roll-out.
    """
    moments = []
    if obstacle is not None and obstacle.reason is not Reason.INVALID_CONFIGURATION:
        moments.append(1.0 if obstacle.reason is Reason.PENDING else RETRY_SECONDS)
    if any(pod.started and not job.finished for job in view.seen.jobs.values() for pod in job.pods):
        moments.append(view.settings.poll_seconds)
    if any(not (job.finished or job.suspended or job.pods) for job in view.seen.jobs.values()):
        moments.append(view.settings.surge_patience_seconds)  # nobody tells of pods that cannot be made
    pods = [pod for job in view.seen.jobs.values() if not job.finished for pod in job.pods]
    pods += [pod for deployment in view.seen.deployments.values() for pod in deployment.pods]
    lefts = (time_left(pod, view.now) for pod in pods)
    moments += [
        left + 1.0 for left in lefts if left is not None and left >= 0
    ]  # of a pod that is not started nobody tells either
    # A JobSet goes after all that it made, and nobody tells of it; nor of claims.
    moments += [_going(job.deleted_at, view) for job in view.seen.jobs.values() if job.terminating and not job.pods]
    if any(because.about == FEATURES_CLAIM for because in waits):
        claim = view.seen.claims.get(names.claim_name(view.obj, "features"))
        moments.append(_going(claim.deleted_at if claim is not None else None, view))
    if any(stage.reason is Reason.MAKING_ROOM for stage in chain.values()):
        moments.append(view.settings.poll_seconds)
    if outcome is not None and outcome.requeue_after is not None:
        moments.append(outcome.requeue_after)
    watched = outcome.serving if outcome is not None and outcome.room_for is None else None
    if watched is not None and (window := _next_window(view, watched)):
        moments.append(window)
    return max(0.2, min(moments)) if moments else None


def _going(since: datetime | None, view: View) -> float:
    """How soon to look for what is being deleted: in a second at first, and less often the longer it hangs."""
    lasted = (view.now - since).total_seconds() if since is not None else 0.0
    return min(RETRY_SECONDS, max(1.0, lasted / 4))


def _next_window(view: View, serving: Revision) -> float | None:
    watch, status = view.obj.spec.watched, serving.status
    if watch is None or serving.plain or serving.ready == 0:
        return None
    length = seconds(watch.window)
    if status.watch_problem:
        # Of pods the next window tells all that this one would have; of a Prometheus, each window only its own.
        return max(RETRY_SECONDS, length) if watch.prometheus is None else RETRY_SECONDS
    former = counters.last(status) if watch.prometheus is None else None
    since = times.parse(former.time) if former is not None else begins(status)
    age = (view.now - since).total_seconds() if since is not None else 0.0
    return max(1.0, length - age + 1.0)
