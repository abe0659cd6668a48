"""Place: what a revision's pods take it from, where the scheduler finds none for them, or a quota lets none be made.

First from what is only kept warm; then, for a roll-out after some patience and for a rescue at once, from what serves. Of
that there are three words:

- a revision is found to *displace* what serves: there was no place beside it. Kept in its status while it is tried;
- it *replaces* what serves if it was found so, or ``serve.surge`` says it from the beginning, and something else serves;
- it *takes the place* of what serves while it replaces it and has not all its pods yet: for each one goes.
"""

from eagle3_api import times
from eagle3_api.spec import seconds
from eagle3_operator.decide.pods.diagnosis import without_place
from eagle3_operator.decide.revisions import Revision, Standing
from eagle3_operator.decide.serving.capacity import enough
from eagle3_operator.decide.serving.fleet import Fleet
from eagle3_operator.decide.view import View
from eagle3_operator.manifests.flags import serving


def sought(fleet: Fleet, view: View, mover: Revision) -> Fleet:
    """The fleet when a mover has looked for a place: what is kept warm gives way, or the mover is to displace what serves."""
    since = without_place(mover.deployment)
    if since is None:
        return fleet
    others = [r for n, r in fleet.revisions.items() if n not in (fleet.serving, mover.number)]
    for revision in others:
        fleet = fleet.changed(revision.number, bakes_until=None)
    patient = (view.now - since).total_seconds() < view.settings.surge_patience_seconds
    if patient or _hold(others, view) or fleet.occupant is None:
        return fleet
    return fleet.changed(mover.number, displaces=True)


def rescued(fleet: Fleet, view: View, goal: Revision) -> Fleet:
    """The fleet when the goal of a rescue has looked for a place: it takes that of what serves at once.

    But for GPUs that are about to be free: taking away what serves would only leave the Service without a pod.
    """
    if without_place(goal.deployment) is None or _going(fleet, view):
        return fleet
    return fleet.changed(goal.number, displaces=True)


def is_given_way(fleet: Fleet, view: View, goal: Revision) -> bool:
    """Whether the goal of a rescue has no place yet, but pods of other revisions, which end or are about to, still hold one."""
    others = [revision for number, revision in fleet.revisions.items() if number != goal.number]
    return without_place(goal.deployment) is not None and _hold(others, view)


def takes_place(fleet: Fleet, goal: Revision, count: int) -> bool:
    """Whether a goal of so many pods takes the place of what serves: it needs the GPUs, and has not all of them yet."""
    return _to_come(fleet, goal, count) and fleet.replaces(goal)


def rescue_under_way(fleet: Fleet, goal: Revision | None, count: int) -> bool:
    """Whether a goal of so many pods is still to come, in place of something that is to be left: nothing else is tried then.

    What is to be left serves on meanwhile, badly; a candidate would take the GPUs or the pods that end that sooner.
    """
    return goal is not None and fleet.current is not None and fleet.to_be_left and _to_come(fleet, goal, count)


def _to_come(fleet: Fleet, goal: Revision, count: int) -> bool:
    return goal.number != fleet.serving and goal.ready < enough(fleet.current, count)


def warm(fleet: Fleet, view: View) -> dict[int, float]:
    """The former revisions that are still kept warm, and seconds that are left to each, never more than today's ``serve.bakeTime``: none
    while what serves finds no place."""
    if fleet.current is not None and without_place(fleet.current.deployment) is not None:
        return {}
    longest = seconds(serving(view.obj.spec).bake_time)
    left = {
        number: min(longest, (times.parse(revision.status.bakes_until) - view.now).total_seconds())
        for number, revision in fleet.revisions.items()
        if revision.status.bakes_until is not None and revision.standing is not Standing.REJECTED
    }
    return {number: still for number, still in left.items() if still > 0}


def _hold(revisions: list[Revision], view: View) -> bool:
    """Whether any of them still holds GPUs, or is about to have pods."""
    pods = (pod for revision in revisions if revision.deployment is not None for pod in revision.deployment.pods)
    return any(revision.replicas for revision in revisions) or any(map(view.holds_place, pods))


def _going(fleet: Fleet, view: View) -> bool:
    """Whether pods that do not serve end, or are about to, and are to be waited for."""
    others = (r.deployment for n, r in fleet.revisions.items() if n != fleet.serving and r.deployment is not None)
    pods = ((deployment.replicas == 0 or pod.terminating, pod) for deployment in others for pod in deployment.pods)
    return any(ends and view.holds_place(pod) for ends, pod in pods)
