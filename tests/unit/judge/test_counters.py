"""What the operator makes of two looks at the servers' own counters."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.spec import Watch
from eagle3_api.status import PodReading, Reading, RevisionStatus, Window
from eagle3_operator.judge.counters import counted, due, last, window

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
WATCH = Watch(window="5m")

#: As a real server of SGLang 0.5.21 says it, shortened.
TEXT = """\
# HELP sglang:generation_tokens_histogram Histogram of generation token length.
# TYPE sglang:generation_tokens_histogram histogram
sglang:generation_tokens_histogram_sum{engine_type="unified",model_name="kimi"} 4000.0
sglang:generation_tokens_histogram_bucket{engine_type="unified",le="100.0",model_name="kimi"} 90.0
sglang:generation_tokens_histogram_count{engine_type="unified",model_name="kimi"} 100.0
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{engine_type="unified",model_name="kimi"} 1500.0
# TYPE sglang:e2e_request_latency_seconds histogram
sglang:e2e_request_latency_seconds_sum{engine_type="unified",is_streaming="False",model_name="kimi"} 400.0
sglang:e2e_request_latency_seconds_sum{engine_type="unified",is_streaming="True",model_name="kimi"} 200.0
# TYPE sglang:scheduler_idle_seconds_total counter
sglang:scheduler_idle_seconds_total{engine_type="unified",model_name="kimi",tp_rank="0"} 50.0
sglang:scheduler_idle_seconds_total{engine_type="unified",model_name="kimi",tp_rank="1"} 49.5
"""


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def stamp(minutes: float) -> str:
    return f"{at(minutes):%Y-%m-%dT%H:%M:%SZ}"


def pod(
    tokens: float,
    requests: float,
    calls: float,
    *,
    name: str = "a",
    restarts: int = 0,
    busy: float = 0,
    idle: float | None = None,
) -> PodReading:
    return PodReading(
        pod=name,
        restarts=restarts,
        tokens=tokens,
        requests=requests,
        verify_calls=calls,
        request_seconds=busy,
        idle_seconds=idle,
    )


def reading(minutes: float, *pods: PodReading) -> Reading:
    return Reading(time=stamp(minutes), pods=list(pods))


def between(before: Reading | None, after: Reading, *, born: float = -60) -> Window | None:
    """The window between two readings of pods that were all created at a minute after noon."""
    return window(before, after, {one.pod: at(born) for one in after.pods})


# ------------------------------------------------------------------------------------------------------- one server


def test_a_servers_metrics_are_its_tokens_requests_and_verify_calls() -> None:
    assert counted(TEXT, pod="a", restarts=1) == pod(4000, 100, 1500, restarts=1, busy=600, idle=50)


def test_the_series_of_several_ranks_are_added() -> None:
    second = TEXT.replace('engine_type="unified"', 'engine_type="unified",dp_rank="1"')
    assert counted(TEXT + second, pod="a", restarts=0) == pod(8000, 200, 3000, busy=1200, idle=50)


def test_a_server_that_never_verified_a_draft_has_no_verify_calls() -> None:
    text = "\n".join(line for line in TEXT.splitlines() if "verify" not in line)
    assert counted(text, pod="a", restarts=0) == pod(4000, 100, 0, busy=600, idle=50)


def test_tokens_and_requests_are_enough_and_what_is_only_called_alike_is_nothing() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("sglang:generation")]
    text = "\n".join([*lines, "sglang:generation_tokens_histogram_sum_of_squares 7"])
    assert counted(text, pod="a", restarts=0) == pod(4000, 100, 0)


@pytest.mark.parametrize("text", ["", "process_cpu_seconds_total 1.5\n", "<html>Not here</html>"])
def test_what_is_not_sglangs_is_no_reading(text: str) -> None:
    assert counted(text, pod="a", restarts=0) is None


def test_a_line_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ValueError):
        counted('sglang:generation_tokens_histogram_sum{engine_type="unif', pod="a", restarts=0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_a_counter_that_is_no_count_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="not counts"):
        counted(TEXT.replace("4000.0", value), pod="a", restarts=0)


# ------------------------------------------------------------------------------------------------------ two readings


def test_a_window_is_what_was_counted_between_two_readings() -> None:
    made = between(reading(0, pod(1000, 10, 500, busy=100)), reading(5, pod(5000, 110, 2000, busy=700)))
    assert made is not None
    assert (made.start, made.end) == (stamp(0), stamp(5))
    assert (made.tokens, made.requests, made.verify_calls) == (4000, 100, 1500)
    assert made.accept_length == pytest.approx(3900 / 1500)


def test_the_pods_of_a_revision_are_added() -> None:
    before = reading(0, pod(100, 1, 50), pod(200, 2, 90, name="b"))
    made = between(before, reading(5, pod(300, 3, 150), pod(500, 6, 240, name="b")))
    assert made is not None
    assert (made.tokens, made.requests, made.verify_calls) == (500, 6, 250)


def test_requests_that_run_together_are_the_mean_over_the_window_of_a_server() -> None:
    """Ten minutes of requests within five are two at a time."""
    before = reading(0, pod(0, 0, 0, busy=100), pod(0, 0, 0, name="b"))
    made = between(before, reading(5, pod(90, 1, 30, busy=700), pod(90, 1, 30, name="b", busy=1200)))
    assert made is not None
    assert made.running == pytest.approx((600 * 2 + 1200 * 4) / 1800), "as a request met it"


@pytest.mark.parametrize(
    ("before", "after", "load"),
    [
        (0.0, 240.0, 32),  # 32 requests together for the only minute that was not idle
        (None, 240.0, 6.4),  # the former reading is of an operator that did not read it
        (0.0, None, 6.4),  # and here of a release that does not tell it
        (5000.0, 240.0, 32),  # it was started again
        (0.0, 299.9, 100),  # long requests that ended as the window began
    ],
)
def test_a_burst_is_judged_at_the_load_that_it_had(before: float | None, after: float | None, load: float) -> None:
    """By the clock's mean that was a load at which the draft may gain."""
    made = between(reading(0, pod(0, 0, 0, idle=before)), reading(5, pod(9000, 100, 3000, busy=32 * 60, idle=after)))
    assert made is not None
    assert made.running == pytest.approx(load)


def test_before_the_first_reading_there_is_no_window() -> None:
    assert between(None, reading(5, pod(1000, 10, 500))) is None


@pytest.mark.parametrize(
    "after",
    [pod(400, 4, 200, restarts=1), pod(2000, 20, 900, restarts=1), pod(400, 4, 200)],
    ids=["known", "and it counted more than before", "not yet known"],
)
def test_a_server_that_was_started_again_counts_from_zero(after: PodReading) -> None:
    made = between(reading(0, pod(1000, 10, 500)), reading(5, after))
    assert made is not None
    assert (made.tokens, made.requests, made.verify_calls) == (after.tokens, after.requests, after.verify_calls)


@pytest.mark.parametrize("born", [0, 2])
def test_a_pod_that_replaced_another_counts_from_its_beginning(born: float) -> None:
    made = between(reading(0, pod(1000, 10, 500)), reading(5, pod(300, 3, 100, name="b")), born=born)
    assert made is not None
    assert (made.tokens, made.requests, made.verify_calls) == (300, 3, 100)


def test_a_pod_that_did_not_answer_before_only_begins_to_be_counted() -> None:
    """What it counted in this window is not known: it may be as old as the revision, and hold the probe's requests."""
    before = reading(0, pod(1000, 10, 500))
    made = between(before, reading(5, pod(1100, 11, 550), pod(9000, 90, 9000, name="b")))
    assert made is not None
    assert (made.tokens, made.requests, made.verify_calls) == (100, 1, 50)
    assert between(before, reading(5, pod(9000, 90, 9000, name="b"))) is None


counts = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 10**6)), min_size=2, max_size=6
)


@given(counts)
def test_what_follows_window_by_window_adds_up_to_what_was_counted(steps: list[tuple[int, int, int]]) -> None:
    sums = [tuple(sum(column) for column in zip(*steps[: index + 1], strict=True)) for index in range(len(steps))]
    readings = [reading(5 * index, pod(*values)) for index, values in enumerate(sums)]
    windows = [between(before, after) for before, after in itertools.pairwise(readings)]
    told = [(made.tokens, made.requests, made.verify_calls) for made in windows if made is not None]
    assert [tuple(map(int, one)) for one in told] == steps[1:]


# --------------------------------------------------------------------------------------------------------------- due


def serving(former: Reading | None, *, promoted: float | None = 0, ended: float | None = None) -> RevisionStatus:
    windows = [] if ended is None else [Window(start=stamp(0), end=stamp(ended), tokens=0, requests=0, verify_calls=0)]
    at_ = None if promoted is None else stamp(promoted)
    return RevisionStatus(number=1, key="k", plain_key="p", draft="d", promoted_at=at_, windows=windows, reading=former)


def test_servers_are_read_at_the_promotion_and_where_each_window_ends() -> None:
    assert not due(serving(None, promoted=None), WATCH, at(60))
    assert due(serving(None), WATCH, at(0))
    assert not due(serving(reading(0.1, pod(0, 0, 0))), WATCH, at(5))
    assert due(serving(reading(0.1, pod(0, 0, 0))), WATCH, at(5.1))


def test_a_server_without_a_draft_is_not_read() -> None:
    assert not due(serving(None).model_copy(update={"draft": None}), WATCH, at(60))


def test_a_reading_from_before_the_promotion_begins_no_window() -> None:
    again = serving(reading(5, pod(0, 0, 0)), promoted=42)
    assert last(again) is None
    assert last(again.model_copy(update={"promoted_at": None})) is None
    assert due(again, WATCH, at(42))


def test_a_reading_from_before_a_window_that_prometheus_told_begins_no_window() -> None:
    assert last(serving(reading(5, pod(0, 0, 0)), ended=10)) is None
    assert last(serving(reading(10, pod(0, 0, 0)), ended=10)) is not None
