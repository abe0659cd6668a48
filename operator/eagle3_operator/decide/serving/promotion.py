"""Promotion: what becomes of two revisions when the public Service moves from one to the other."""

from datetime import timedelta
from typing import Any

from eagle3_api import times
from eagle3_api.conditions import EventReason
from eagle3_api.spec import seconds
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.decide.serving.fleet import Fleet
from eagle3_operator.decide.view import View
from eagle3_operator.decision import Event
from eagle3_operator.manifests.flags import serving


def moved(fleet: Fleet, goal: Revision, view: View) -> tuple[Fleet, Event]:
    """The fleet when its Service has moved to the goal, and what to tell of it."""
    former, name = fleet.current, view.obj.metadata.name
    event = Event("Normal", EventReason.PROMOTED, f"Service {name} serves {goal.name}")
    if former is not None:
        event = _told(fleet, former, goal, name)
        until = _warm_until(fleet, former, goal, view)
        fleet = fleet.changed(former.number, bakes_until=until, unready_since=None)
    promoted: dict[str, Any] = {
        "promoted_at": times.text(view.now),
        "bakes_until": None,
        "displaces": False,
        "reading": None,
    }
    if not goal.dropped:
        # What it was like when it served before says nothing of now. Windows that it was dropped for stay: they are why
        promoted |= {"windows": [], "early_accept_length": None, "watch_problem": ""}
    return fleet.changed(goal.number, **promoted).served_by(goal.number), event


def _warm_until(fleet: Fleet, former: Revision, goal: Revision, view: View) -> str | None:
    """How long the former revision keeps its pods: not where it is bad, nor where the goal takes its place."""
    bake = seconds(serving(view.obj.spec).bake_time)
    if not fleet.may_serve(former) or fleet.replaces(goal) or former.replicas == 0 or bake == 0:
        return None
    return times.text(view.now + timedelta(seconds=bake))


def _told(fleet: Fleet, former: Revision, goal: Revision, name: str) -> Event:
    if fleet.may_serve(former):
        return Event("Normal", EventReason.PROMOTED, f"Service {name} moved from {former.name} to {goal.name}")
    why = fleet.why_left(former)
    text = f"Service {name} moved back from {former.name} to {goal.name}: {why.reason}: {why.message}"
    return Event("Warning", EventReason.ROLLED_BACK, text)
