"""Asking: what a revision that is to come has to wait for, before it gets pods or traffic."""

from eagle3_api.conditions import Reason
from eagle3_api.jobs import Facts
from eagle3_operator.decide.approval import Approvals
from eagle3_operator.decide.capacity import enough
from eagle3_operator.decide.fleet import Fleet
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.decide.view import View
from eagle3_operator.decide.waiting import Waiting
from eagle3_operator.manifests.flags import serving, start_budget


def waits(
    mover: Revision, fleet: Fleet, view: View, approvals: Approvals, facts: Facts, *, proven: bool
) -> Waiting | None:
    """What keeps the candidate, or the goal of a roll-out, from starting or going on: the object is suspended, or a person is to say so.

    Args:
        mover: which one.
        fleet: all revisions.
        view: the object.
        approvals: of that person.
        facts: of the target.
        proven: it is the goal, and has nothing more to prove.
    """
    count = serving(view.obj.spec).replicas
    outage = fleet.replaces(mover) and not (proven and mover.ready >= enough(fleet.current, count))
    if view.obj.spec.suspend and (mover.replicas == 0 or outage):
        return Reason.SUSPENDED, "spec.suspend is true: nothing new is started"
    # It was the candidate just now: whoever had to be asked was
    follows = proven and mover.replicas > 0 and mover.status.bakes_until is None
    if mover.status.covered or (follows and not outage) or not approvals.needed(outage=outage):
        return None
    cost = f"autoApply is Never: {mover.name} is not started by itself"
    if outage:
        cost = (
            f"{mover.name} finds no GPU beside r{fleet.serving}, so {_lost(count, start_budget(view.obj.spec, facts))}"
        )
    return Reason.AWAITING_APPROVAL, f"{cost}. {approvals.command(mover.name, mover.status.key)}"


def _lost(count: int, budget: float) -> str:
    start = f"(a start may take up to {budget / 60:.0f} min)"
    if count < 2:
        return f"it would replace it: the Service has no pod while it starts and is probed {start}"
    return f"its pods would take the place of that one's, one by one: the Service has {count - 1} of {count} meanwhile {start}"
