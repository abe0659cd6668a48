"""Starts of servers: how often one has failed, when that is forgotten, and what keeps one from starting."""

from dataclasses import dataclass, replace
from datetime import datetime

from eagle3_api import times
from eagle3_api.conditions import Reason
from eagle3_operator.decide.pods.diagnosis import diagnose, hung_since, not_begun, refused
from eagle3_operator.decide.pods.waiting import advised, held_up
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.decision import Because
from eagle3_operator.manifests.servers import BEFORE_THE_CONTAINER
from eagle3_operator.observation import Deployment

#: A revision that could not be started is given another chance after so long; the cause may have gone by then.
COOLDOWN_SECONDS = 3600.0

#: A server that is ready for so long has come back. One that crashes under traffic is ready for a moment after each start.
STEADY_SECONDS = 300.0

_ANOTHER_CHANCE: dict[str, object] = {
    "start_failures": 0,
    "start_problem": "",
    "failed_at": None,
    "crashed": False,
    "reason": None,
}


@dataclass(frozen=True)
class Failure:
    """A start that has failed: how often by now, why, and what it said."""

    times: int
    reason: Reason
    problem: str

    @property
    def changes(self) -> dict[str, object]:
        """Of the revision's status."""
        return {"start_failures": self.times, "start_problem": self.problem, "reason": self.reason}


def counted(
    revision: Revision, *, serving: int | None, rescue_begun: bool, budget: float, now: datetime
) -> dict[str, object]:
    """What is newly known of a revision's start, as changes of its status: a failure, its end, or another chance.

    Args:
        revision: any.
        serving: number of the revision that serves, and that can have pods.
        rescue_begun: another revision starts already, to take over from that one.
        budget: seconds that a server may take to become ready.
        now: the time.
    """
    if revision.replicas == 0:
        return _rested(revision, serving=serving, now=now)
    if revision.number == serving:
        return _serves(revision, rescue_begun=rescue_begun, budget=budget, now=now)
    if revision.ready > 0 or not revision.startable:
        return {}
    failure = _failure(revision, serving=serving, budget=budget, now=now)
    return {} if failure is None else failure.changes


def incomplete(revision: Revision, *, wanted: int, budget: float, now: datetime) -> Failure | None:
    """A revision that is to take over with so many pods, of which some are not ready when they have had their time.

    A pod that was not even started is given the time for that too: for its volume, its image, its node.
    """
    if revision.deployment is None:
        return None
    late = tuple(pod for pod in revision.deployment.without_former_pods.pods if not pod.ready)
    waited = _waited(revision.status.started_at, revision.deployment, now)
    allowed = budget if late and all(pod.started for pod in late) else budget + BEFORE_THE_CONTAINER
    if waited <= allowed:
        return None
    ready = f"{revision.ready} of {wanted} pods are ready after {waited / 60:.0f} min"
    why = held_up(late, now) or refused(revision.deployment) or diagnose(replace(revision.deployment, pods=late))
    return Failure(revision.serve.start_retries + 1, why.reason, f"{ready}: {why.message}")


def _serves(revision: Revision, *, rescue_begun: bool, budget: float, now: datetime) -> dict[str, object]:
    """Whether what serves is not steadily ready for longer than a start may take: then it is to be left, once no pod is ready.

    One that is steadily ready again has nothing more against it; but a rescue that has begun is not thrown away for that. A pod
    that was not started yet is given the time for that too.
    """
    status = revision.status
    if revision.ready > 0:
        if rescue_begun or not _steady(revision, now):
            return {}
        return {"unready_since": None, **({} if revision.startable else _ANOTHER_CHANCE)}
    if status.unready_since is None:
        return {"unready_since": times.text(now)}
    if not revision.startable or revision.deployment is None:
        return {}
    deployment = revision.deployment.without_former_pods
    begun = any(pod.started for pod in deployment.pods)
    silent = times.age(status.unready_since, now)
    if silent <= budget + (0 if begun else BEFORE_THE_CONTAINER):
        return {}
    why = not_begun(deployment, now) or diagnose(deployment)
    text = f"{revision.name} was serving, but none of its pods has stayed ready for the last {silent / 60:.0f} min: {why.message}"
    failure = Failure(revision.serve.start_retries + 1, why.reason, text)
    return failure.changes | {"failed_at": times.text(now), "crashed": True}


def _steady(revision: Revision, now: datetime) -> bool:
    """Whether a pod has been ready for some minutes."""
    pods = revision.deployment.without_former_pods.pods if revision.deployment is not None else ()
    since = (pod.ready_since for pod in pods if pod.ready)
    return any((now - ready).total_seconds() >= STEADY_SECONDS for ready in since if ready is not None)


def rest_left(revision: Revision, *, serving: int | None, now: datetime) -> float | None:
    """Seconds until a revision that has failed to start is tried again; None where that is not to be by itself.

    What starts in the place of the serving revision leaves the Service without a pod meanwhile, once. So does what crashed when
    it served, each time until that is noticed.
    """
    if revision.startable or revision.replicas or revision.replaces(serving) or revision.status.crashed:
        return None
    return COOLDOWN_SECONDS - times.age(revision.status.failed_at, now)


def _rested(revision: Revision, *, serving: int | None, now: datetime) -> dict[str, object]:
    none_ready: dict[str, object] = {"unready_since": None}
    if not revision.startable and revision.status.failed_at is None:
        return none_ready | {"failed_at": times.text(now)}
    left = rest_left(revision, serving=serving, now=now)
    return none_ready if left is None or left > 0 else none_ready | _ANOTHER_CHANCE


def _failure(revision: Revision, *, serving: int | None, budget: float, now: datetime) -> Failure | None:
    """What is newly wrong with a start. Pods that are about to end are of a former one, and say nothing of this."""
    if revision.deployment is None:
        return None
    deployment = revision.deployment.without_former_pods
    for_good = revision.serve.start_retries + 1
    if (hung := hung_since(deployment, budget, now)) is not None:
        problem = f"no readiness after {hung / 60:.0f} min{_last_line(deployment)}"
        return Failure(for_good, Reason.STARTUP_HUNG, problem)
    waited = _waited(revision.status.started_at, deployment, now)
    slow, alone = waited > budget + BEFORE_THE_CONTAINER, revision.replaces(serving)
    trouble = _never_begun(deployment, slow=slow, now=now)
    # Beside what serves it waits, but on a node where nothing comes of it: the next pod may be given another
    if trouble is not None and (waited > budget if alone else slow and trouble.reason is Reason.POD_NOT_STARTED):
        where = f" in place of r{serving}" if alone else ""
        told = advised(trouble._replace(message=f"{trouble.message} (for {waited / 60:.0f} min{where})"))
        return Failure(for_good, told.reason, told.message)
    restarts = max((pod.restarts for pod in deployment.pods), default=0)
    if restarts > revision.status.start_failures:
        why = diagnose(deployment)
        return Failure(restarts, why.reason, why.message)
    return None


def _waited(asked: str | None, deployment: Deployment, now: datetime) -> float:
    """Seconds that a start has had: since it was asked for, but no longer than the pods that it waits for are there.

    What was noted of it may be lost, and an earlier start's time stand there. The oldest pod counts: one that is evicted stays,
    and others are made in its place for ever.
    """
    waiting = (pod.created_at for pod in deployment.without_former_pods.pods if not pod.ready)
    made = min(waiting, default=deployment.created_at)
    begun = made if asked is None else max(made, times.parse(asked))
    return (now - begun).total_seconds()


def _never_begun(deployment: Deployment, *, slow: bool, now: datetime) -> Because | None:
    """What keeps a server's pods from being started: what is told of it, or that they were not for so long."""
    if trouble := not_begun(deployment, now):
        return trouble
    if not deployment.pods:
        return Because(Reason.START_FAILED, f"Deployment {deployment.name} has created no pod (is a quota used up?)")
    begun = any(pod.started for pod in deployment.pods)
    return Because(Reason.START_FAILED, f"no pod of {deployment.name} has started") if slow and not begun else None


def _last_line(deployment: Deployment) -> str:
    line = next((line.strip() for line in reversed(deployment.log) if line.strip()), "")
    return f'; last line: "{line[:300]}"' if line else ""
