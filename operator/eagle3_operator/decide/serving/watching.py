"""What the watch heard: the newest window or reading of a revision, kept with it."""

from eagle3_api.spec import Watch
from eagle3_operator.decide.serving.fleet import Fleet
from eagle3_operator.judge.watch import early_accept_length, kept
from eagle3_operator.observation import ServerMetrics


def heard(fleet: Fleet, metrics: ServerMetrics | None, watch: Watch) -> Fleet:
    """The fleet with what was heard of one of its revisions."""
    if metrics is None or metrics.revision not in fleet.revisions:
        return fleet
    number = metrics.revision
    fleet = fleet.changed(number, watch_problem=metrics.problem)
    if metrics.reading is not None:
        fleet = fleet.changed(number, reading=metrics.reading)
    if metrics.window is None:
        return fleet
    windows = [*fleet[number].status.windows, metrics.window]
    fleet = fleet.changed(number, windows=windows)
    fleet = fleet.changed(number, windows=kept(windows, fleet[number].comparable, watch))
    if fleet[number].status.early_accept_length is None:
        fleet = fleet.changed(number, early_accept_length=early_accept_length(fleet[number].as_probed, watch))
    return fleet
