"""The watch without a Prometheus: what servers say of themselves, at two times, becomes a window.

    due(...)     whether the servers are to be read now
    counted(...) one server's /metrics as a ``PodReading``
    window(...)  two readings as a ``Window``, for the same judgement as any other (``watch``)

The former reading lies in the revision's status, so nothing is lost with the operator. Windows follow each other from
reading to reading; one that had to wait, because the operator was away or no server answered, is longer. Prometheus's
way of doing the same is ``promql``; the counters and what they mean are described in ``windows``.

How many requests ran together comes from counters too: the time that requests took, added up, over that in which the server had
any. SGLang counts the seconds in which it had none, but not in each release: without that it is the mean over the window. A gauge
would say it of two moments.

What a server counted is known only while it runs. What comes between the last reading and the end of a pod is lost, of
all three counters alike, so that the quotient stays that of the requests that were seen.
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta

from prometheus_client.parser import text_string_to_metric_families

from eagle3_api import times
from eagle3_api.spec import Watch, seconds
from eagle3_api.status import PodReading, Reading, RevisionStatus, Window
from eagle3_operator.judge.windows import REQUESTS, TOKENS, VERIFY_CALLS, begins, made_of

_SECONDS = "sglang:e2e_request_latency_seconds_sum"
_READ = (TOKENS, REQUESTS, VERIFY_CALLS, _SECONDS)
#: Of each rank's scheduler: they are idle together.
_IDLE = "sglang:scheduler_idle_seconds_total"


def due(revision: RevisionStatus, watch: Watch, now: datetime) -> bool:
    """Whether the servers of this revision are to be read: where its first window begins, and where each one ends."""
    if revision.draft is None or revision.promoted_at is None:
        return False
    former = last(revision)
    return former is None or now - times.parse(former.time) >= timedelta(seconds=seconds(watch.window))


def last(revision: RevisionStatus) -> Reading | None:
    """The reading where the next window begins; None where there is none since the promotion or the last window."""
    reading, begin = revision.reading, begins(revision)
    return reading if reading is not None and begin is not None and times.parse(reading.time) >= begin else None


def counted(text: str, *, pod: str, restarts: int) -> PodReading | None:
    """What one server has counted; None where the text has no counters of SGLang's, ValueError where they are no counts.

    A server that has not verified a draft yet, or never does, has no counter of verify calls: that is none of them.

    Args:
        text: its /metrics, in Prometheus's text format.
        pod: its name.
        restarts: of its container.
    """
    lines = "\n".join(line for line in text.splitlines() if line.startswith((*_READ, _IDLE)))
    sums = dict.fromkeys(_READ, 0.0)
    seen = set()
    idle = []
    for family in text_string_to_metric_families(f"{lines}\n"):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
                seen.add(sample.name)
            elif sample.name == _IDLE and math.isfinite(sample.value):
                idle.append(sample.value)
    if not {TOKENS, REQUESTS} <= seen:
        return None
    if odd := {name: value for name, value in sums.items() if not math.isfinite(value) or value < 0}:
        raise ValueError(f"counters that are not counts: {odd}")
    return PodReading(
        pod=pod,
        restarts=restarts,
        tokens=sums[TOKENS],
        requests=sums[REQUESTS],
        verify_calls=sums[VERIFY_CALLS],
        request_seconds=sums[_SECONDS],
        idle_seconds=max(idle, default=None),
    )


def window(before: Reading | None, after: Reading, born: Mapping[str, datetime]) -> Window | None:
    """What was counted between two readings; None where that cannot be known.

    Args:
        before: where the window begins.
        after: where it ends.
        born: when each pod was created, by its name.
    """
    if before is None:
        return None
    former = {reading.pod: reading for reading in before.pods}
    begin, end = times.parse(before.time), times.parse(after.time)
    length = (end - begin).total_seconds()
    grown, loads = [], []
    for reading in after.pods:
        was = former.get(reading.pod)
        increase = _increase(was, reading, young=born[reading.pod] >= begin)
        if increase is not None:
            grown.append(increase)
            loads.append(_load(increase, length, _idle(was, reading)))
    if not grown:
        return None
    tokens, requests, verify_calls, request_seconds = (sum(values) for values in zip(*grown, strict=True))
    # Of a server with more requests there are more to have met its load
    met = sum(load * took for load, (*_, took) in zip(loads, grown, strict=True))
    return made_of(
        start=begin,
        end=end,
        tokens=tokens,
        requests=requests,
        verify_calls=verify_calls,
        running=met / request_seconds if request_seconds else 0.0,
    )


def _load(increase: tuple[float, ...], length: float, idle: float) -> float:
    """Requests that ran together on a server while it had any: no more than ended, for one may have begun long before the window."""
    _, requests, _, request_seconds = increase
    busy = max(length - idle, 1.0)
    return max(request_seconds / length, min(request_seconds / busy, requests))


def _idle(before: PodReading | None, after: PodReading) -> float:
    """Seconds in which a server had no request since the former reading; 0 where it does not tell them."""
    if after.idle_seconds is None or (before is not None and before.idle_seconds is None):
        return 0.0
    former = before.idle_seconds if before is not None and before.restarts == after.restarts else None
    grown = after.idle_seconds - (former or 0.0)
    return grown if grown >= 0 else after.idle_seconds


def _increase(before: PodReading | None, after: PodReading, *, young: bool) -> tuple[float, ...] | None:
    """What a server counted since the former reading: all of it if it was started since."""
    if before is None:
        return _values(after) if young else None
    grown = tuple(new - old for new, old in zip(_values(after), _values(before), strict=True))
    # The container's restart may be known a moment later than what its successor counts.
    return _values(after) if before.restarts != after.restarts or min(grown) < 0 else grown


def _values(reading: PodReading) -> tuple[float, ...]:
    return reading.tokens, reading.requests, reading.verify_calls, reading.request_seconds
