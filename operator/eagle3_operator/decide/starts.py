"""Starts of servers: how often one has failed, when that is forgotten, and what keeps one from starting."""

from datetime import datetime

from eagle3_api.conditions import Reason
from eagle3_operator.decide import times
from eagle3_operator.decide.diagnosis import diagnose, held_up, hung_since
from eagle3_operator.decide.revisions import Revision, Standing
from eagle3_operator.manifests.servers import BEFORE_THE_CONTAINER
from eagle3_operator.observation import Deployment

#: A revision that could not be started is given another chance after so long; the cause may have gone by then.
COOLDOWN_SECONDS = 3600.0


def counted(revision: Revision, *, serving: int | None, budget: float, now: datetime) -> dict[str, object]:
    """What is newly known of a revision's start, as changes of its status: a restart, a hang, or another chance.

    What starts in the place of the serving revision leaves the Service without a pod meanwhile. It is therefore given up when
    its pods have not even been started within the budget, and gets no other chance by itself.

    Args:
        revision: any. If it serves, its restarts are no failed starts.
        serving: number of the revision that serves.
        budget: seconds that a server may take to become ready.
        now: the time.
    """
    deployment = revision.deployment
    if deployment is None or deployment.replicas == 0:
        rests = not revision.startable and not revision.displaces(serving)
        rested = rests and times.age(revision.status.started_at, now) > COOLDOWN_SECONDS
        return {"start_failures": 0, "start_problem": "", "reason": None} if rested else {}
    if revision.number == serving or deployment.ready_replicas > 0:
        return {}
    hung = hung_since(deployment, budget, now)
    if hung is not None:
        return {
            "start_failures": revision.serve.start_retries + 1,
            "start_problem": f"no readiness after {hung / 60:.0f} min{_last_line(deployment)}",
            "reason": Reason.STARTUP_HUNG,
        }
    waited = times.age(revision.status.started_at, now)
    displacing = revision.standing is Standing.UNTRIED and revision.displaces(serving)
    trouble = _never_begun(deployment, slow=waited > budget + BEFORE_THE_CONTAINER) if displacing else None
    if trouble is not None and waited > budget:
        reason, text = trouble
        return {
            "start_failures": revision.serve.start_retries + 1,
            "start_problem": f"{text}, for {waited / 60:.0f} min in the place of r{serving}",
            "reason": reason,
        }
    restarts = max((pod.restarts for pod in deployment.pods if not pod.terminating), default=0)
    if restarts > revision.status.start_failures:
        reason, problem = diagnose(deployment)
        return {"start_failures": restarts, "start_problem": problem, "reason": reason}
    return {}


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
