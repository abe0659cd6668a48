"""What people look at: the phase and the printer columns. Derived, never read back."""

from collections.abc import Iterable

from eagle3_api import times
from eagle3_api.conditions import Reason, Type
from eagle3_api.jobs import (
    StageName,
)
from eagle3_api.status import (
    Condition,
    Phase,
    StageState,
    StageStatus,
)
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.decide.telling.conditions import Situation
from eagle3_operator.traits import TRAITS

_MEASURING = (Reason.PROBING, Reason.MEASURING_BASELINE)


def phase(at: Situation, conditions: Iterable[Condition]) -> Phase:
    """One word for the whole."""
    by_type = {condition.type: condition for condition in conditions}
    whole = by_type[Type.READY]
    if whole.status == "True":
        return Phase.SERVING if at.spec.serve else Phase.PUBLISHED
    if whole.reason is Reason.SUSPENDED:
        return Phase.SUSPENDED
    if by_type[Type.STALLED].status == "True":
        return Phase.DEGRADED if at.serving else Phase.STALLED
    if at.obstacle is not None:
        return Phase.PENDING
    for name in StageName:
        stage, word = at.stages.get(name), TRAITS[name].phase
        if stage is not None and stage.state is not StageState.SUCCEEDED and word is not None:
            return word
    if at.rollout is not None and at.rollout.candidate is not None:
        said = at.rollout.said
        return Phase.PROBING if said is not None and said.reason in _MEASURING else Phase.ROLLING_OUT
    moving = at.serving is None or whole.reason is Reason.ROLLING_OUT
    return Phase.ROLLING_OUT if moving else Phase.DEGRADED


def columns(at: Situation) -> dict[str, str]:
    """The texts of the printer columns."""
    shown = (at.rollout.candidate if at.rollout else None) or at.serving
    running = next((s for s in at.stages.values() if s.state is StageState.RUNNING and s.progress), None)
    baseline = _baseline(at, shown)
    return {
        "revision": shown.name if shown else "",
        "accept": _accept(shown) if shown else "",
        "speedup": _speedup(shown) if shown else "",
        "baseline": f"{baseline:.1f} tok/s" if baseline else "",
        "progress": _progress(running) if running else "",
        "draft": f"sha256:{shown.status.draft[:8]}…" if shown and shown.status.draft else "",
    }


def _accept(revision: Revision) -> str:
    lengths = [w.accept_length for w in revision.status.windows if w.accept_length is not None]
    probed = revision.measurement.accept_length if revision.measurement else None
    latest = lengths[-1] if lengths else probed
    return f"{latest:.2f}" if latest is not None else ""


def _speedup(revision: Revision) -> str:
    measured = revision.measurement
    speedup = measured.speedup if measured is not None else None
    return f"{speedup:.2f}x" if speedup else ""


def _baseline(at: Situation, shown: Revision | None) -> float | None:
    if at.rollout is None or shown is None:
        return None
    plain = (r.measurement for r in reversed(at.rollout.revisions) if r.status.key == shown.status.plain_key)
    return next((measured.tokens_per_second for measured in plain if measured is not None), None)


def _progress(stage: StageStatus) -> str:
    progress = stage.progress
    if progress is None:
        return ""
    left = progress.seconds_left
    return f"{progress.done:.0%}" + (f" {times.duration(left)} left" if left is not None else "")
