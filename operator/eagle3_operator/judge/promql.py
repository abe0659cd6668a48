"""The watch with a Prometheus: its answers over windows that do not overlap.

    due(...)      the next window that has ended and was not read yet
    queries(...)  PromQL for it, by name; evaluated at the window's end
    window(...)   the answers as a ``Window``, or the problem with them

What is exact. A scrape reads all three counters of a pod together, so whatever Prometheus does not see it does not see of
all three: what happened before a pod's first scrape, between a container's last scrape and its restart, or in a gap. The
quotient stays that of the requests that were seen. ``increase`` extrapolates to the window's ends by a factor that is the
same for the three (but for pods younger than a scrape interval, whose values near zero it limits), so it cancels; tokens
and requests themselves are estimates, good to about one scrape interval. A window needs two scrapes of a pod to see it
at all: let it be at least four scrape intervals long.
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta

from eagle3_api.spec import Watch, seconds
from eagle3_api.status import RevisionStatus, Window
from eagle3_operator.judge.windows import REQUESTS, TOKENS, VERIFY_CALLS, begins, made_of

_RUNNING = "sglang:num_running_reqs"
_STEPS = "sglang:spec_num_steps"


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


def queries(namespace: str, name: str, revision: int, seconds: float) -> dict[str, str]:
    """PromQL for one window of one revision, by the names that ``window`` reads; to be evaluated at the window's end.

    Each yields one value or none. ``tokens``, ``requests`` and ``verify_calls`` are increases over the window and all
    pods, ``running`` the requests that one of them has found running on its server, itself among them: the mean over the time
    of all requests, not that of the clock, by which a server with a burst a minute is judged at a load that it never has. With n
    requests in a moment that is the mean of n n over the mean of n; a mean of squares is the square of the mean and the variance.

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

    def over(metric: str, more: str = "") -> str:
        """The metric under either of its names, with further labels.

        SGLang calls it ``sglang:...``. Asked for OpenMetrics, as Prometheus does, newer versions of the client library
        that exposes it write ``sglang_...`` instead.
        """
        either = metric.replace(":", "[:_]")
        return f'{{__name__=~"{either}",{labels}{more}}}[{seconds:.0f}s]'

    # With priorities SGLang also tells those of each one, besides all of them
    running = over(_RUNNING, ',priority=""')
    mean, square = f"avg_over_time({running})", f"(stdvar_over_time({running}) + avg_over_time({running}) ^ 2)"
    return {
        "tokens": f"sum(increase({over(TOKENS)}))",
        "requests": f"sum(increase({over(REQUESTS)}))",
        "verify_calls": (f"sum(increase({over(VERIFY_CALLS)})) or 0 * (max(max_over_time({over(_STEPS)})) == 0)"),
        "running": f"sum({square}) / (sum({mean}) > 0)",
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


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
