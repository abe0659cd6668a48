"""The watch's judgement: does the serving revision still deserve its traffic?

Counters of the serving revision, read from Prometheus over windows that do not overlap, become a verdict (``counters``
makes the windows where there is no Prometheus):

    due(...)          the next window that has ended and was not read yet
    queries(...)      PromQL for it, by name; evaluated at the window's end
    window(...)       the answers as a ``Window``, or the problem with them
    judge_watch(...)  the last windows against the policy

Accept length. SGLang adds to its counters when a request finishes: once to the number of requests, all its tokens, all
its verify calls. The first token of an answer comes from prefill and needs no verify call, hence

    accept length = (increase of tokens - increase of requests) / increase of verify calls

Tokens over verify calls alone reads 2.0 for a useless draft with answers of two tokens. Both numerator and denominator
are sums over all pods, so the quotient is weighted by traffic.

Which counters. ``generation_tokens_histogram`` (its ``_sum`` is tokens, its ``_count`` finished requests) and
``spec_verify_calls_total`` carry the same labels and are increased by the same function call; a server's warm-up, which
runs before it is ready, creates all three. ``generation_tokens_total`` and ``num_requests_total`` count the same but are
split by ``is_streaming``: the first streaming request would create a series whose first value Prometheus cannot see the
increase of, and the window would miss tokens whose verify calls it has. All are there from SGLang 0.5.17 to 0.5.23.
Health checks are not counted. A request that is refused for its grammar counts as one request with one token and no
verify call, which the formula above cancels.

What is exact. A scrape reads all three counters of a pod together, so whatever Prometheus does not see it does not see of
all three: what happened before a pod's first scrape, between a container's last scrape and its restart, or in a gap. The
quotient stays that of the requests that were seen. ``increase`` extrapolates to the window's ends by a factor that is the
same for the three (but for pods younger than a scrape interval, whose values near zero it limits), so it cancels; tokens
and requests themselves are estimates, good to about one scrape interval. A window needs two scrapes of a pod to see it
at all: let it be at least four scrape intervals long.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ProbeResult
from eagle3_api.spec import Probe, Watch, seconds
from eagle3_api.status import RevisionStatus, Window
from eagle3_operator.decision import Verdict

TOKENS = "sglang:generation_tokens_histogram_sum"
REQUESTS = "sglang:generation_tokens_histogram_count"
VERIFY_CALLS = "sglang:spec_verify_calls_total"
_RUNNING = "sglang:num_running_reqs"
_STEPS = "sglang:spec_num_steps"

#: Below so many verified tokens a window had no traffic; ``increase`` is not a whole number.
_NOTHING = 0.5


# ------------------------------------------------------------------------------------------------------------ reading


def due(revision: RevisionStatus, watch: Watch, now: datetime) -> tuple[datetime, datetime] | None:
    """Start and end of the next window to read; None while it has not ended, or the revision has no draft or no traffic.

    Windows follow each other without a gap from the promotion on. After a longer absence (of the operator, of Prometheus)
    only as many are caught up on as a verdict looks at.
    """
    start = begins(revision)
    if revision.draft is None or start is None:
        return None
    length = timedelta(seconds=seconds(watch.window))
    ended = (now - start) // length
    if ended < 1:
        return None
    start += max(0, ended - watch.failures.within) * length
    return start, start + length


def begins(revision: RevisionStatus) -> datetime | None:
    """Where the next window begins: at the end of the last one since the promotion; None before a promotion."""
    if revision.promoted_at is None:
        return None
    return max(_time(stamp) for stamp in (revision.promoted_at, *(made.end for made in revision.windows[-1:])))


def queries(namespace: str, name: str, revision: int, seconds: float) -> dict[str, str]:
    """PromQL for one window of one revision, by the names that ``window`` reads; to be evaluated at the window's end.

    Each yields one value or none. ``tokens``, ``requests`` and ``verify_calls`` are increases over the window and all
    pods, ``running`` the mean of running requests of a server.

    A server that does not speculate has no counter of verify calls, rather than one that stands still; but so has a
    Prometheus that drops it. ``verify_calls`` is 0 instead of nothing only where the servers' own gauge says that they
    draft no steps.

    Args:
        namespace: of the object.
        name: of the object.
        revision: its number.
        seconds: length of the window.
    """
    labels = f'eagle3_namespace="{_escaped(namespace)}",eagle3_name="{_escaped(name)}",eagle3_revision="r{revision}"'

    def over(metric: str) -> str:
        """The metric under either of its names.

        SGLang calls it ``sglang:...``. Asked for OpenMetrics, as Prometheus does, newer versions of the client library
        that exposes it write ``sglang_...`` instead.
        """
        either = metric.replace(":", "[:_]")
        return f'{{__name__=~"{either}",{labels}}}[{seconds:.0f}s]'

    return {
        "tokens": f"sum(increase({over(TOKENS)}))",
        "requests": f"sum(increase({over(REQUESTS)}))",
        "verify_calls": (f"sum(increase({over(VERIFY_CALLS)})) or 0 * (max(max_over_time({over(_STEPS)})) == 0)"),
        "running": f"avg(avg_over_time({over(_RUNNING)}))",
    }


def window(values: Mapping[str, float | None], start: datetime, end: datetime) -> Window | str:
    """The window that these answers describe, or why they describe none.

    Args:
        values: the value of each of ``queries``; None where the answer was empty.
        start: of the window.
        end: of the window.
    """
    for name, value in values.items():
        if value is not None and (not math.isfinite(value) or value < 0):
            return f"Prometheus answered {value} for {name}"
    tokens, requests, verify_calls = (values.get(name) for name in ("tokens", "requests", "verify_calls"))
    if tokens is None or requests is None:
        missing = TOKENS if tokens is None else REQUESTS
        return f"Prometheus has no {missing} of this revision in the window: does it scrape the revision's pods?"
    if verify_calls is None:
        return f"Prometheus has {TOKENS} of this revision in the window but no {VERIFY_CALLS}: does it drop metrics?"
    running = values.get("running") or 0
    return made_of(start=start, end=end, tokens=tokens, requests=requests, verify_calls=verify_calls, running=running)


def made_of(
    *, start: datetime, end: datetime, tokens: float, requests: float, verify_calls: float, running: float
) -> Window:
    """The window of these increases, with its accept length."""
    return Window(
        start=_text(start),
        end=_text(end),
        tokens=tokens,
        requests=requests,
        verify_calls=verify_calls,
        running=running,
        accept_length=max(0, tokens - requests) / verify_calls if verify_calls > 0 else None,
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


# ------------------------------------------------------------------------------------------------------------ judging


def judge_watch(
    windows: Sequence[Window],
    watch: Watch,
    policy: Probe,
    probe: ProbeResult | None,
    *,
    early: float | None = None,
    problem: str = "",
) -> Verdict:
    """The verdict on the serving revision: a pure function of its last ``watch.failures.in`` judged windows.

    A window is judged when it holds at least ``watch.minTokens`` verified tokens; others say nothing, and so take nothing back
    either: a roll-back that waits for its server goes on where traffic falls off meanwhile. A judged window fails when it has no verify calls,
    when its accept length is below the break-even of the probe times ``probe.minSpeedup``, or when it is below
    ``probe.minAcceptLength``. ``watch.failures.of`` failed windows are a Fail, fewer only a reason to look again.

    So many windows that pass, but whose accept length is below ``early`` by more than ``watch.driftBand``, are a Drift:
    faster than no draft, and no longer what it was.

    Args:
        windows: this revision's, the newest last.
        watch: how many must fail, and what traffic a window needs.
        policy: the bar.
        probe: the revision's own probe, for its break-even accept length; None judges by ``minAcceptLength`` alone.
        early: the accept length of the revision's first windows, once there were enough (``early_accept_length``).
        problem: why the newest window could not be read, if so. It never makes a Fail.

    Returns:
        A verdict with the numbers of the newest judged window.
    """
    if probe is not None and not probe.speculative:
        return Verdict(
            "Inconclusive", Reason.SERVED_WITHOUT_SPECULATION, "the revision serves without a draft: nothing to watch"
        )
    bar = probe.break_even * policy.min_speedup if probe is not None and probe.break_even is not None else 0.0
    judged = [made for made in windows if _is_judged(made, watch)][-watch.failures.within :]
    faults = [fault for made in judged if (fault := _fault(made, policy, bar)) is not None]
    numbers = _numbers(judged[-1], bar) if judged else {}

    if len(faults) >= watch.failures.of:
        reason, text = faults[-1]
        message = f"{text}; {len(faults)} of the last {len(judged)} judged windows failed"
        return Verdict("Fail", reason, message, numbers)
    if problem:
        return Verdict("Error", Reason.METRICS_UNAVAILABLE, _unavailable(problem, windows, watch), numbers)
    recent = windows[-watch.failures.within :]
    if not any(_is_judged(made, watch) for made in recent):
        return _no_traffic(recent, watch)
    if (fault := _fault(judged[-1], policy, bar)) is not None:
        reason, text = fault
        needed = f"{len(faults)} of {watch.failures.of} failed windows of {watch.failures.within} that it takes"
        return Verdict("Inconclusive", reason, f"{text}; {needed}", numbers)
    newest = judged[-1]
    if early is not None and _drifts(judged, watch, early):
        return Verdict("Drift", Reason.DRIFTING, _drift(newest, watch, early), numbers)
    return Verdict(
        "Pass",
        Reason.DRAFT_HEALTHY,
        f"accept length {newest.accept_length or 0:.2f} over {newest.tokens:,.0f} tokens in {_span(newest)}",
        numbers,
    )


def early_accept_length(windows: Sequence[Window], watch: Watch) -> float | None:
    """The accept length over the first ``watch.failures.in`` windows with enough traffic; None until there are so many."""
    first = [made for made in windows if _is_judged(made, watch) and made.verify_calls > 0]
    first = first[: watch.failures.within]
    if len(first) < watch.failures.within:
        return None
    return sum(_verified_tokens(made) for made in first) / sum(made.verify_calls for made in first)


def blind(verdict: Verdict, windows: Sequence[Window], watch: Watch) -> bool:
    """Whether there is nothing to judge by: no answer, or too little traffic in every window that a verdict looks at."""
    idle = verdict.reason in (Reason.NO_TRAFFIC, Reason.LOW_TRAFFIC) and len(windows) >= watch.failures.within
    return verdict.outcome == "Error" or idle


def _drifts(judged: Sequence[Window], watch: Watch, early: float) -> bool:
    low = [made for made in judged if (made.accept_length or 0) < early * (1 - watch.drift_band)]
    return len(low) >= watch.failures.of and low[-1] is judged[-1]


def _drift(newest: Window, watch: Watch, early: float) -> str:
    text = (
        f"accept length {newest.accept_length or 0:.2f} in {_span(newest)}, more than {watch.drift_band:.0%} below the "
        f"{early:.2f} of this revision's first windows: traffic has moved away from what the draft learned. It is still "
        "faster than none, and serves on"
    )
    if watch.on_drift == "Retrain":
        return f"{text}. The data is looked at again, and trained on if it has changed, once per cooldown ({watch.cooldown})"
    return f"{text}. Train on newer data: replace it under its path, and retry inspect or set watch.onDrift to Retrain"


def _is_judged(made: Window, watch: Watch) -> bool:
    return _verified_tokens(made) >= watch.min_tokens


def _verified_tokens(made: Window) -> float:
    """Tokens that verify calls produced: all but each answer's first."""
    return made.tokens - made.requests


def _fault(made: Window, policy: Probe, bar: float) -> tuple[Reason, str] | None:
    """What is wrong with a judged window, in the order of the probe's checks."""
    where = f"in {_span(made)}"
    if made.verify_calls <= 0 or made.accept_length is None:
        return Reason.SPECULATION_INACTIVE, f"{made.tokens:,.0f} tokens without one verify call {where}"
    if made.accept_length < bar:
        return Reason.SLOWER_THAN_BASELINE, (
            f"accept length {made.accept_length:.2f} {where}, below {bar:.2f}: break-even times minSpeedup "
            f"{policy.min_speedup:g}"
        )
    if made.accept_length < policy.min_accept_length:
        return Reason.LOW_ACCEPT_LENGTH, (
            f"accept length {made.accept_length:.2f} {where}, below minAcceptLength {policy.min_accept_length:g}"
        )
    return None


def _no_traffic(recent: Sequence[Window], watch: Watch) -> Verdict:
    if not recent:
        return Verdict("Inconclusive", Reason.WARMING_UP, f"the first window of {watch.window} has not ended")
    newest = recent[-1]
    verified = _verified_tokens(newest)
    if verified < _NOTHING:
        return Verdict("Inconclusive", Reason.NO_TRAFFIC, f"no request finished in {_span(newest)}")
    return Verdict(
        "Inconclusive",
        Reason.LOW_TRAFFIC,
        f"{verified:,.0f} verified tokens in {_span(newest)}; a verdict takes minTokens {watch.min_tokens:,}",
    )


def _unavailable(problem: str, windows: Sequence[Window], watch: Watch) -> str:
    text = f"{problem.rstrip('.')}. Nothing is rolled back on missing metrics"
    for made in reversed(windows):
        if made.accept_length is not None and _is_judged(made, watch):
            return f"{text}. Last window with traffic: accept length {made.accept_length:.2f} in {_span(made)}"
    return text


def _numbers(made: Window, bar: float) -> dict[str, float]:
    numbers = {"tokens": made.tokens, "requests": made.requests, "verify_calls": made.verify_calls}
    if made.accept_length is not None:
        numbers["accept_length"] = made.accept_length
    if bar:
        numbers["bar"] = bar
    return numbers


def _span(made: Window) -> str:
    return f"{made.start}/{made.end}"
