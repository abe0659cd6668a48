"""Asking: what a revision that is to come has to wait for, before it gets pods or traffic."""

from eagle3_api.conditions import Reason
from eagle3_api.jobs import Facts
from eagle3_operator.decide.approval import Approvals
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.decide.serving.capacity import enough
from eagle3_operator.decide.serving.fleet import Fleet
from eagle3_operator.decide.view import View
from eagle3_operator.decision import Because
from eagle3_operator.manifests.flags import serving, start_budget


def waits(
    mover: Revision, fleet: Fleet, view: View, approvals: Approvals, facts: Facts, *, proven: bool
) -> Because | None:
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
        return Because(Reason.SUSPENDED, "spec.suspend is true: nothing new is started")
    # It was the candidate just now: whoever had to be asked was
    follows = proven and mover.replicas > 0 and mover.status.bakes_until is None
    if mover.status.covered or (follows and not outage) or not approvals.needed(outage=outage):
        return None
    cost = f"autoApply is Never: {mover.name} starts only once it is approved"
    if outage:
        start = f"(a start may take up to {start_budget(view.obj.spec, facts) / 60:.0f} min)"
        cost = (
            f"{mover.name} finds no free GPU beside r{fleet.serving}. {_lost(mover.name, fleet.serving, count)} {start}"
        )
    return Because(Reason.AWAITING_APPROVAL, f"{cost}. {approvals.command(mover.name, mover.status.key)}")


def _lost(name: str, serving: int | None, count: int) -> str:
    if count < 2:
        return f"Starting {name} stops r{serving}, and the Service has no pod until {name} has started and passed its probe"
    return f"The pods of {name} would replace those of r{serving} one by one, and the Service has {count - 1} of {count} pods meanwhile"
