"""The watch's judgement: does the serving revision still deserve its traffic?

Its last windows, read from Prometheus (``promql``) or from its pods (``counters``), against their ``bar`` become a verdict.
"""

from collections.abc import Sequence

from eagle3_api.conditions import Reason
from eagle3_api.spec import Watch
from eagle3_api.status import WINDOWS_KEPT, Window
from eagle3_operator.decision import Because
from eagle3_operator.judge.bar import Bar
from eagle3_operator.judge.verdict import Outcome, Verdict

#: Below so many verified tokens a window had no traffic; ``increase`` is not a whole number.
_NOTHING = 0.5


def judge_watch(
    windows: Sequence[Window],
    watch: Watch,
    bar: Bar,
    *,
    early: float | None = None,
    problem: str = "",
) -> Verdict:
    """The verdict on the serving revision: a pure function of its last ``watch.failures.in`` judged windows.

    A window is judged when it holds at least ``watch.minTokens`` verified tokens; others say nothing, and so take nothing back
    either: a roll-back that waits for its server goes on where traffic falls off meanwhile. A judged window fails when it has no verify calls,
    when its accept length is below the bar of its load, or when it is below ``probe.minAcceptLength``. ``watch.failures.of`` failed windows are a Fail, fewer only a reason to look again.

    So many windows that pass, but whose accept length is below ``early`` by more than ``watch.driftBand``, are a Drift:
    faster than no draft, and no longer what it was.

    Args:
        windows: this revision's, the newest last.
        watch: how many must fail, and what traffic a window needs.
        bar: the revision's own.
        early: the accept length of the revision's first windows, once there were enough (``early_accept_length``).
        problem: why the newest window could not be read, if so. It never makes a Fail.

    Returns:
        Any outcome; what is measured is that of the newest judged window.
    """
    if bar.probe is not None and not bar.probe.speculative:
        return Verdict(
            Outcome.INCONCLUSIVE,
            Reason.SERVED_WITHOUT_SPECULATION,
            "the revision serves without a draft: nothing to watch",
        )
    judged = [made for made in windows if _is_judged(made, watch)][-watch.failures.within :]
    faults = [fault for made in judged if (fault := _fault(made, bar)) is not None]

    if len(faults) >= watch.failures.of:
        last = faults[-1]
        message = f"{last.message}; {len(faults)} of the last {len(judged)} judged windows failed"
        return Verdict(Outcome.FAIL, last.reason, message)
    if problem:
        return Verdict(Outcome.ERROR, Reason.METRICS_UNAVAILABLE, _unavailable(problem, windows, watch))
    recent = windows[-watch.failures.within :]
    if not any(_is_judged(made, watch) for made in recent):
        return _no_traffic(recent, watch)
    if (fault := _fault(judged[-1], bar)) is not None:
        needed = (
            f"{len(faults)} failed; the watch acts when {watch.failures.of} of {watch.failures.within} windows fail"
        )
        return Verdict(Outcome.INCONCLUSIVE, fault.reason, f"{fault.message}; {needed}")
    newest = judged[-1]
    if early is not None and _drifts(judged, watch, early, bar):
        return Verdict(Outcome.DRIFT, Reason.DRIFTING, _drift(newest, watch, early))
    return Verdict(
        Outcome.PASS,
        Reason.DRAFT_HEALTHY,
        f"accept length {newest.accept_length or 0:.2f} over {newest.tokens:,.0f} tokens in {_span(newest)}{bar.too_mild(newest)}",
    )


def early_accept_length(windows: Sequence[Window], watch: Watch) -> float | None:
    """The accept length over the first ``watch.failures.in`` windows with enough traffic; None until there are so many."""
    first = [made for made in windows if _is_judged(made, watch) and made.verify_calls > 0]
    first = first[: watch.failures.within]
    if len(first) < watch.failures.within:
        return None
    return sum(_verified_tokens(made) for made in first) / sum(made.verify_calls for made in first)


def kept(windows: Sequence[Window], comparable: Sequence[Window], watch: Watch) -> list[Window]:
    """The windows to remember: the newest ``WINDOWS_KEPT``, but before any other those that a verdict looks at.

    Idle windows, however many, must not push out what failed before them: the revision would be proven again.

    Args:
        windows: this revision's, the newest last.
        comparable: those of them that can be judged by the probe.
        watch: how many a verdict looks at, and what makes a window one to judge.
    """
    judged = [made for made in comparable if _is_judged(made, watch)]
    looked_at = [*judged[-watch.failures.within :], *comparable[-watch.failures.within :], *windows[-1:]]
    others = [made for made in windows if made not in looked_at]
    forgotten = others[: max(0, len(windows) - WINDOWS_KEPT)]
    return [made for made in windows if made not in forgotten]


def blind(verdict: Verdict, windows: Sequence[Window], watch: Watch) -> bool:
    """Whether there is nothing to judge by: no answer, or too little traffic in every window that a verdict looks at."""
    idle = verdict.reason in (Reason.NO_TRAFFIC, Reason.LOW_TRAFFIC) and len(windows) >= watch.failures.within
    return verdict.outcome is Outcome.ERROR or idle


def _drifts(judged: Sequence[Window], watch: Watch, early: float, bar: Bar) -> bool:
    alike = [made for made in judged if bar.as_probed(made)]
    low = [made for made in alike if (made.accept_length or 0) < early * (1 - watch.drift_band)]
    return len(low) >= watch.failures.of and low[-1] is judged[-1]


def _drift(newest: Window, watch: Watch, early: float) -> str:
    text = (
        f"accept length {newest.accept_length or 0:.2f} in {_span(newest)}, more than {watch.drift_band:.0%} below the "
        f"{early:.2f} of this revision's first windows: traffic has moved away from what the draft learned. It is still "
        "faster than none, and keeps serving"
    )
    if watch.on_drift == "Retrain":
        return f"{text}. The operator inspects the data again, and trains on it if it has changed, once per cooldown ({watch.cooldown})"
    return (
        f"{text}. Train on newer data: replace the data at its path, then retry inspect or set watch.onDrift to Retrain"
    )


def _is_judged(made: Window, watch: Watch) -> bool:
    return _verified_tokens(made) >= watch.min_tokens


def _verified_tokens(made: Window) -> float:
    """Tokens that verify calls produced: all but each answer's first."""
    return made.tokens - made.requests


def _fault(made: Window, bar: Bar) -> Because | None:
    """What is wrong with a judged window, in the order of the probe's checks."""
    where = f"in {_span(made)}"
    if made.accept_length is None:
        return Because(Reason.SPECULATION_INACTIVE, f"{made.tokens:,.0f} tokens without one verify call {where}")
    if made.accept_length < (wanted := bar.of(made)):
        text = f"accept length {made.accept_length:.2f} {where}, below {wanted:.2f}: {bar.words(made)}"
        return Because(Reason.SLOWER_THAN_BASELINE, f"{text}{bar.too_strict(made)}")
    if made.accept_length < (least := bar.least_accept_length(made)):
        text = f"accept length {made.accept_length:.2f} {where}, below minAcceptLength {least:g}"
        return Because(Reason.LOW_ACCEPT_LENGTH, text)
    return None


def _no_traffic(recent: Sequence[Window], watch: Watch) -> Verdict:
    if not recent:
        return Verdict(Outcome.INCONCLUSIVE, Reason.WARMING_UP, f"the first window of {watch.window} has not ended")
    newest = recent[-1]
    verified = _verified_tokens(newest)
    if verified < _NOTHING:
        return Verdict(Outcome.INCONCLUSIVE, Reason.NO_TRAFFIC, f"no request finished in {_span(newest)}")
    return Verdict(
        Outcome.INCONCLUSIVE,
        Reason.LOW_TRAFFIC,
        f"{verified:,.0f} verified tokens in {_span(newest)}; a verdict takes minTokens {watch.min_tokens:,}",
    )


def _unavailable(problem: str, windows: Sequence[Window], watch: Watch) -> str:
    text = f"{problem.rstrip('.')}. Nothing is rolled back on missing metrics"
    for made in reversed(windows):
        if made.accept_length is not None and _is_judged(made, watch):
            return f"{text}. Last window with traffic: accept length {made.accept_length:.2f} in {_span(made)}"
    return text


def _span(made: Window) -> str:
    return f"{made.start}/{made.end}"
