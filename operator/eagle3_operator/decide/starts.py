"""Starts of servers: how often one has failed, when that is forgotten, and what keeps one from starting."""

from dataclasses import dataclass
from datetime import datetime

from eagle3_api.conditions import Reason
from eagle3_operator.decide import times
from eagle3_operator.decide.diagnosis import diagnose, held_up, hung_since
from eagle3_operator.decide.revisions import Revision, Standing
from eagle3_operator.manifests.servers import BEFORE_THE_CONTAINER
from eagle3_operator.observation import Deployment

#: A revision that could not be started is given another chance after so long; the cause may have gone by then.
COOLDOWN_SECONDS = 3600.0


@dataclass(frozen=True)
class Failure:
    """A start that has failed: how often by now, why, and what it said."""

    times: int
    reason: Reason
    problem: str


def counted(revision: Revision, *, serving: int | None, budget: float, now: datetime) -> dict[str, object]:
    """What is newly known of a revision's start, as changes of its status: a failure, its end, or another chance.

    Args:
        revision: any. If it serves, its restarts are no failed starts.
        serving: number of the revision that serves.
        budget: seconds that a server may take to become ready.
        now: the time.
    """
    if revision.replicas == 0:
        return _rested(revision, serving=serving, now=now)
    if revision.number == serving or revision.ready > 0:
        return {}
    failure = _failure(revision, serving=serving, budget=budget, now=now)
    if failure is None:
        return {}
    return {"start_failures": failure.times, "start_problem": failure.problem, "reason": failure.reason}


def rest_left(revision: Revision, *, serving: int | None, now: datetime) -> float | None:
    """Seconds until a revision that has failed to start is tried again; None where that is not to be by itself.

    What starts in the place of the serving revision leaves the Service without a pod meanwhile, once.
    """
    if revision.startable or revision.replicas or revision.displaces(serving):
        return None
    return COOLDOWN_SECONDS - times.age(revision.status.failed_at, now)


def _rested(revision: Revision, *, serving: int | None, now: datetime) -> dict[str, object]:
    if not revision.startable and revision.status.failed_at is None:
        return {"failed_at": times.text(now)}
    left = rest_left(revision, serving=serving, now=now)
    if left is None or left > 0:
        return {}
    return {"start_failures": 0, "start_problem": "", "failed_at": None, "reason": None}


def _failure(revision: Revision, *, serving: int | None, budget: float, now: datetime) -> Failure | None:
    """What is newly wrong with a start. Pods that are about to end are of a former one, and say nothing of this."""
    if revision.deployment is None:
        return None
    deployment = revision.deployment.without_former_pods
    for_good = revision.serve.start_retries + 1
    if (hung := hung_since(deployment, budget, now)) is not None:
        problem = f"no readiness after {hung / 60:.0f} min{_last_line(deployment)}"
        return Failure(for_good, Reason.STARTUP_HUNG, problem)
    waited = times.age(revision.status.started_at, now)
    displacing = revision.standing is Standing.UNTRIED and revision.displaces(serving)
    trouble = _never_begun(deployment, slow=waited > budget + BEFORE_THE_CONTAINER) if displacing else None
    if trouble is not None and waited > budget:
        reason, text = trouble
        return Failure(for_good, reason, f"{text}, for {waited / 60:.0f} min in the place of r{serving}")
    restarts = max((pod.restarts for pod in deployment.pods), default=0)
    if restarts > revision.status.start_failures:
        reason, problem = diagnose(deployment)
        return Failure(restarts, reason, problem)
    return None


def _never_begun(deployment: Deployment, *, slow: bool) -> tuple[Reason, str] | None:
    """What keeps a server's pods from being started: what is told of it, or that they were not for so long."""
    if trouble := held_up(deployment.pods):
        return trouble
    if not deployment.pods:
        return Reason.START_FAILED, f"Deployment {deployment.name} has made no pod (a quota?)"
    begun = any(pod.started for pod in deployment.pods)
    return (Reason.START_FAILED, f"no pod of {deployment.name} was started") if slow and not begun else None


def _last_line(deployment: Deployment) -> str:
    line = next((line.strip() for line in reversed(deployment.log) if line.strip()), "")
    return f'; last line: "{line[:300]}"' if line else ""
