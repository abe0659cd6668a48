"""What the operator makes of the serving revision's metrics."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.conditions import Reason
from eagle3_api.jobs import LoadResult, ProbeResult
from eagle3_api.spec import Failures, Probe, PrometheusReference, Watch
from eagle3_api.status import WINDOWS_KEPT, RevisionStatus, Window
from eagle3_operator.judge.bar import Bar
from eagle3_operator.judge.promql import due, queries, window
from eagle3_operator.judge.verdict import Verdict
from eagle3_operator.judge.watch import blind, early_accept_length, judge_watch, kept
from eagle3_operator.judge.windows import REQUESTS, TOKENS

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
POLICY = Probe(min_accept_length=1.5, min_speedup=1.1)
WATCH = Watch(prometheus=PrometheusReference(name="default"), window="5m", min_tokens=1000)


def proven(**changes: Any) -> ProbeResult:
    """The probe of the serving revision: break-even at 1.9, so the watch's bar is 2.09."""
    made: dict[str, Any] = {
        "speculative": True,
        "prompts_digest": "d",
        "concurrency": 1,
        "requests": 64,
        "tokens": 8192,
        "seconds": 64.0,
        "tokens_per_second": 128.0,
        "verify_steps": 3000,
        "accept_length": 2.7,
        "break_even": 1.9,
        "baseline_tokens_per_second": 90.0,
        "first_token_seconds": 0.1,
        "inter_token_seconds": 0.008,
    }
    return ProbeResult(**made | changes)


def read(at: int, *, tokens: float = 40_000, requests: float = 200, verify_calls: float | None = 14_741) -> Window:
    """The window that ends at a minute after noon; by default with accept length 2.70."""
    end = NOON + timedelta(minutes=at)
    values = {"tokens": tokens, "requests": requests, "verify_calls": verify_calls, "running": 3.0}
    made = window(values, end - timedelta(minutes=5), end)
    assert isinstance(made, Window)
    return made


def good(at: int) -> Window:
    return read(at)


def bad(at: int) -> Window:
    """Accept length 1.0."""
    return read(at, verify_calls=39_800)


def quiet(at: int) -> Window:
    return read(at, tokens=220, requests=20, verify_calls=100)


def idle(at: int) -> Window:
    return read(at, tokens=0, requests=0, verify_calls=0)


def judge(*windows: Window, watch: Watch = WATCH, **changes: Any) -> Verdict:
    bar = Bar(changes.pop("policy", POLICY), changes.pop("probe", proven()), changes.pop("adaptive", False))
    return judge_watch(windows, watch, bar, **changes)


# ------------------------------------------------------------------------------------------------------------ verdict


def test_good_windows_are_a_healthy_draft() -> None:
    verdict = judge(good(5), good(10), probe=proven(concurrency=3))
    assert (verdict.outcome, verdict.reason) == ("Pass", Reason.DRAFT_HEALTHY)
    assert verdict.message == ("accept length 2.70 over 40,000 tokens in 2026-11-29T12:05:00Z/2026-11-29T12:10:00Z")


@pytest.mark.parametrize(("concurrency", "break_even", "told"), [(1, 1.9, True), (2, 1.9, False), (1, None, False)])
def test_a_pass_under_much_more_load_than_the_probes_says_so(
    concurrency: int, break_even: float | None, told: bool
) -> None:
    """Of three requests together: break-even grows with the load, so that a pass by the one of a single request is no proof."""
    verdict = judge(good(5), good(10), probe=proven(concurrency=concurrency, break_even=break_even))
    assert verdict.passed
    said = "3 requests together on a server, and break-even is known only up to 1: add the load that is served to probe.loads"
    assert (said in verdict.message) is told


def test_two_bad_windows_of_two_fail_and_one_does_not() -> None:
    one = judge(good(5), bad(10))
    assert (one.outcome, one.reason) == ("Inconclusive", Reason.SLOWER_THAN_BASELINE)
    assert "1 failed; the watch acts when 2 of 2 windows fail" in one.message
    two = judge(bad(5), bad(10))
    assert (two.outcome, two.reason) == ("Fail", Reason.SLOWER_THAN_BASELINE)
    assert "accept length 1.00" in two.message
    assert "below 2.09: break-even times minSpeedup 1.1; 2 of the last 2 judged windows failed" in two.message


def test_a_window_fails_by_the_break_even_of_its_load_and_says_by_which() -> None:
    """Accept length 2.70 gains for the 3 requests of a window by the bar of one, and costs time by that of three."""
    costly = LoadResult(concurrency=5, tokens_per_second=100, break_even=4.09)
    assert judge(good(5), good(10)).passed
    verdict = judge(good(5), good(10), probe=proven(loads=[costly]))
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.SLOWER_THAN_BASELINE)
    assert "below 3.09: the bar for 3 requests together on a server (2.09 at 1, 4.09 at 5); 2 of" in verdict.message


def test_a_window_that_fails_by_a_bar_of_much_greater_loads_only_says_so() -> None:
    verdict = judge(bad(5), bad(10), probe=proven(concurrency=32))
    assert verdict.failed
    assert "; 3 requests together on a server, and break-even is known only from 32 on: add" in verdict.message


def test_a_server_that_drafts_fewer_steps_now_is_not_taken_for_one_that_drifts() -> None:
    """Its first windows were of other steps."""
    at_many = LoadResult(concurrency=3, tokens_per_second=100, break_even=1.2)
    probe = proven(concurrency=64, break_even=1.2, loads=[at_many])
    changes: dict[str, Any] = {"policy": Probe(min_accept_length=1.5, min_speedup=1.0), "probe": probe, "early": 3.9}
    assert judge(good(5), good(10), adaptive=True, **changes).passed
    assert judge(good(5), good(10), **changes).reason is Reason.DRIFTING


def test_the_first_bad_window_of_a_new_revision_moves_nothing() -> None:
    assert judge(bad(5)).outcome == "Inconclusive"


def test_a_recovered_draft_is_healthy_again() -> None:
    assert judge(bad(5), good(10)).passed


def test_bad_windows_that_the_verdict_no_longer_looks_at_do_not_count() -> None:
    assert judge(bad(5), bad(10), good(15), good(20)).passed


@pytest.mark.parametrize(("of", "outcome"), [(1, "Fail"), (2, "Fail"), (3, "Pass")])
def test_m_of_n_windows_must_fail(of: int, outcome: str) -> None:
    watch = WATCH.model_copy(update={"failures": Failures(of=of, within=4)})
    assert judge(good(5), bad(10), good(15), bad(20), good(25), watch=watch).outcome == outcome


def test_a_draft_above_break_even_but_below_the_bar_has_a_low_accept_length() -> None:
    low = [read(at, verify_calls=39_800 / 1.4) for at in (5, 10)]
    verdict = judge(*low, probe=proven(break_even=1.1))
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.LOW_ACCEPT_LENGTH)


def test_without_a_stored_break_even_only_the_bar_judges() -> None:
    for probe in (None, proven(break_even=None)):
        assert judge(good(5), good(10), probe=probe).passed
        verdict = judge(bad(5), bad(10), probe=probe)
        assert verdict.reason is Reason.LOW_ACCEPT_LENGTH


def test_windows_that_just_reach_the_bar_pass() -> None:
    windows = [read(at, tokens=4200, requests=200, verify_calls=2000) for at in (5, 10)]  # 2.0
    assert judge(*windows, probe=proven(break_even=2.0), policy=POLICY.model_copy(update={"min_speedup": 1})).passed
    assert judge(*windows, probe=None, policy=POLICY.model_copy(update={"min_accept_length": 2.0})).passed


def test_a_useless_draft_with_answers_of_two_tokens_reads_one_and_fails() -> None:
    """Tokens over verify calls would read 2.0 and pass."""
    flattered = [read(at, tokens=4000, requests=2000, verify_calls=2000) for at in (5, 10)]
    verdict = judge(*flattered, probe=proven(break_even=1.5))
    assert verdict.failed
    assert verdict.message.startswith("accept length 1.00 in ")


def test_traffic_without_verify_calls_is_inactive_speculation() -> None:
    verdict = judge(*(read(at, verify_calls=0) for at in (5, 10)))
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.SPECULATION_INACTIVE)


def test_no_traffic_is_no_verdict() -> None:
    verdict = judge(idle(5), idle(10))
    assert (verdict.outcome, verdict.reason) == ("Inconclusive", Reason.NO_TRAFFIC)


def test_requests_of_one_token_are_no_traffic() -> None:
    assert judge(read(5, tokens=5000, requests=5000, verify_calls=0)).reason is Reason.NO_TRAFFIC


def test_little_traffic_is_no_verdict_however_bad_it_looks() -> None:
    verdict = judge(read(5, tokens=999, requests=1, verify_calls=998), read(10, tokens=999, requests=1, verify_calls=0))
    assert (verdict.outcome, verdict.reason) == ("Inconclusive", Reason.LOW_TRAFFIC)
    assert "998 verified tokens" in verdict.message


def test_a_quiet_window_does_not_undo_the_judgement_of_the_one_before() -> None:
    assert judge(good(5), quiet(10)).passed
    assert judge(bad(5), quiet(10)).outcome == "Inconclusive"


def test_traffic_that_falls_off_takes_no_failure_back() -> None:
    """A roll-back waits for its server longer than a window; it was given up, and the server stopped that had just started."""
    for rest in ([quiet(15)], [quiet(15), idle(20)], [quiet(15), idle(20), good(25), idle(30)]):
        assert judge(bad(5), bad(10), *rest).failed == (good(25) not in rest)


def test_before_the_first_window_there_is_no_verdict() -> None:
    assert (judge().outcome, judge().reason) == ("Inconclusive", Reason.WARMING_UP)


def test_unreadable_metrics_are_an_error_that_names_the_last_good_window() -> None:
    verdict = judge(good(5), quiet(10), problem="Prometheus at prometheus:9090: connection refused")
    assert (verdict.outcome, verdict.reason) == ("Error", Reason.METRICS_UNAVAILABLE)
    assert verdict.message == (
        "Prometheus at prometheus:9090: connection refused. Nothing is rolled back on missing metrics. Last window with "
        "traffic: accept length 2.70 in 2026-11-29T12:00:00Z/2026-11-29T12:05:00Z"
    )


def test_unreadable_metrics_from_the_beginning_name_no_window() -> None:
    for windows in ([], [quiet(5)], [read(5, verify_calls=0)]):
        verdict = judge(*windows, problem="timeout.")
        assert verdict.message == "timeout. Nothing is rolled back on missing metrics"


def test_unreadable_metrics_after_one_bad_window_roll_nothing_back() -> None:
    assert judge(good(5), bad(10), problem="timeout").outcome == "Error"


def test_a_revision_without_a_draft_is_not_watched() -> None:
    verdict = judge(bad(5), bad(10), probe=proven(speculative=False, break_even=None))
    assert (verdict.outcome, verdict.reason) == ("Inconclusive", Reason.SERVED_WITHOUT_SPECULATION)


# ------------------------------------------------------------------------------------------------------ drift, blindness


def slower(at: int) -> Window:
    """Accept length 2.21: above the bar of 2.09."""
    return read(at, verify_calls=18_000)


@pytest.mark.parametrize(
    ("windows", "early", "outcome"),
    [
        ([slower(5), slower(10)], 2.8, "Drift"),
        ([slower(5), slower(10)], 2.7, "Pass"),  # within the band of 20 %
        ([slower(5), slower(10)], None, "Pass"),  # nothing to compare with yet
        ([good(5), slower(10)], 2.8, "Pass"),
        ([slower(5), good(10)], 2.8, "Pass"),
        ([slower(5), bad(10)], 2.8, "Inconclusive"),
        ([bad(5), bad(10)], 2.8, "Fail"),
    ],
)
def test_windows_that_pass_far_below_the_first_ones_are_drift(
    windows: list[Window], early: float | None, outcome: str
) -> None:
    assert judge(*windows, early=early).outcome == outcome


def test_drift_is_never_a_failure_and_unreadable_metrics_are_no_drift() -> None:
    verdict = judge(slower(5), slower(10), early=2.8)
    assert (verdict.failed, verdict.passed, verdict.reason) == (False, False, Reason.DRIFTING)
    assert judge(slower(5), slower(10), early=2.8, problem="down").outcome == "Error"


def test_drift_that_is_over_is_none() -> None:
    watch = WATCH.model_copy(update={"failures": Failures(of=2, within=3)})
    assert judge(slower(5), slower(10), good(15), early=2.8, watch=watch).passed
    assert judge(slower(5), good(10), slower(15), early=2.8, watch=watch).reason is Reason.DRIFTING


@pytest.mark.parametrize(
    ("on_drift", "what"),
    [
        (
            "Report",
            "Train on newer data: replace the data at its path, then retry inspect or set watch.onDrift to Retrain",
        ),
        ("Retrain", "The operator inspects the data again, and trains on it if it has changed, once per cooldown (1h)"),
    ],
)
def test_drift_says_what_becomes_of_it(on_drift: str, what: str) -> None:
    watch = WATCH.model_copy(update={"on_drift": on_drift, "cooldown": "1h"})
    message = judge(slower(5), slower(10), early=2.8, watch=watch).message
    assert message.startswith(
        "accept length 2.21 in 2026-11-29T12:05:00Z/2026-11-29T12:10:00Z, more than 20% below the 2.80 of"
    )
    assert message.endswith(what)


def test_the_first_windows_are_those_with_enough_traffic_weighted_by_it() -> None:
    assert early_accept_length([good(5)], WATCH) is None
    assert early_accept_length([good(5), quiet(10), read(15, verify_calls=0)], WATCH) is None
    early = early_accept_length(
        [quiet(5), good(10), read(15, tokens=4000, requests=20, verify_calls=3980), bad(20)], WATCH
    )
    assert early == pytest.approx((39_800 + 3980) / (14_741 + 3980))


@pytest.mark.parametrize(
    ("windows", "problem", "expected"),
    [
        ([], "", False),
        ([idle(5)], "", False),
        ([idle(5), idle(10)], "", True),
        ([idle(5), quiet(10)], "", True),
        ([good(5), idle(10)], "", False),
        ([good(5)], "down", True),
        ([bad(5), bad(10)], "down", False),
    ],
)
def test_the_watch_is_blind_without_answers_or_traffic(windows: list[Window], problem: str, expected: bool) -> None:
    assert blind(judge(*windows, problem=problem), windows, WATCH) is expected


counts = st.integers(0, 100_000)


@st.composite
def some_windows(draw: st.DrawFn, *, verified: st.SearchStrategy[int] = counts) -> list[Window]:
    made = []
    for index in range(draw(st.integers(0, 6))):
        requests, extra, calls = draw(counts), draw(verified), draw(counts)
        made.append(read(5 * (index + 1), tokens=requests + extra, requests=requests, verify_calls=calls))
    return made


policies = st.integers(1, 4).flatmap(
    lambda within: st.integers(1, within).map(
        lambda of: WATCH.model_copy(update={"failures": Failures(of=of, within=within)})
    )
)


@given(some_windows(verified=st.integers(0, 999)), policies, st.sampled_from(["", "down"]))
def test_nothing_fails_without_traffic(windows: list[Window], watch: Watch, problem: str) -> None:
    assert not judge(*windows, watch=watch, problem=problem).failed


@given(some_windows(), policies, st.floats(1, 4))
def test_better_accepted_drafts_are_never_judged_worse(windows: list[Window], watch: Watch, factor: float) -> None:
    rank = {"Fail": 0, "Inconclusive": 1, "Pass": 2}
    better = [
        made.model_copy(
            update={"verify_calls": made.verify_calls / factor, "accept_length": made.accept_length * factor}
        )
        if made.accept_length is not None
        else made
        for made in windows
    ]
    assert rank[judge(*better, watch=watch).outcome] >= rank[judge(*windows, watch=watch).outcome]


@given(some_windows(), some_windows(verified=st.integers(1000, 100_000)), policies)
def test_the_verdict_depends_on_its_last_judged_windows_alone(
    earlier: list[Window], recent: list[Window], watch: Watch
) -> None:
    recent = recent[-watch.failures.within :]
    if len(recent) == watch.failures.within:
        assert judge(*earlier, *recent, watch=watch) == judge(*recent, watch=watch)


@given(st.lists(some_windows(), max_size=12), policies)
def test_what_is_kept_of_any_number_of_windows_leaves_the_verdict_as_it_is(
    drawn: list[list[Window]], watch: Watch
) -> None:
    read_so_far = (made for windows in drawn for made in windows)
    every: list[Window] = []
    remembered: list[Window] = []
    for number, made in enumerate(read_so_far):
        every.append(made.model_copy(update={"end": str(number)}))
        remembered.append(every[-1])
        remembered = kept(remembered, remembered, watch)
        assert len(remembered) <= WINDOWS_KEPT
        assert judge(*remembered, watch=watch) == judge(*every, watch=watch)


def test_windows_are_forgotten_only_once_there_are_too_many_the_oldest_first() -> None:
    windows = [good(5 * (number + 1)) for number in range(WINDOWS_KEPT + 1)]
    assert kept(windows[1:], windows[1:], WATCH) == windows[1:]
    assert kept(windows, windows, WATCH) == windows[1:]


# ------------------------------------------------------------------------------------------------------------ window


def answers(**changes: float | None) -> dict[str, float | None]:
    return {"tokens": 4000.0, "requests": 100.0, "verify_calls": 1500.0, "running": 2.0} | changes


def read_answers(**changes: float | None) -> Window | str:
    return window(answers(**changes), NOON, NOON + timedelta(minutes=5))


def test_a_window_corrects_for_the_token_that_prefill_makes() -> None:
    made = read_answers()
    assert isinstance(made, Window)
    assert made.accept_length == pytest.approx(3900 / 1500)
    assert (made.start, made.end) == ("2026-11-29T12:00:00Z", "2026-11-29T12:05:00Z")
    assert made.running == 2


@pytest.mark.parametrize("name", ["tokens", "requests", "verify_calls", "running"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_an_answer_that_is_no_count_is_a_problem_and_not_a_zero(name: str, value: float) -> None:
    assert read_answers(**{name: value}) == f"Prometheus answered {value} for {name}"


@pytest.mark.parametrize(("name", "counter"), [("tokens", TOKENS), ("requests", REQUESTS)])
def test_an_empty_answer_is_a_problem_that_asks_whether_the_pods_are_scraped(name: str, counter: str) -> None:
    problem = read_answers(**{name: None})
    assert isinstance(problem, str)
    assert f"has no {counter} of this revision in the window: does it scrape the revision's pods?" in problem


def test_tokens_without_the_counter_of_verify_calls_are_a_problem_and_not_inactive_speculation() -> None:
    problem = read_answers(verify_calls=None)
    assert isinstance(problem, str)
    assert "no sglang:spec_verify_calls_total" in problem


def test_no_verify_calls_make_no_accept_length() -> None:
    made = read_answers(verify_calls=0.0)
    assert isinstance(made, Window)
    assert made.accept_length is None


def test_the_mean_of_running_requests_may_be_missing() -> None:
    made = read_answers(running=None)
    assert isinstance(made, Window)
    assert made.running == 0


# ---------------------------------------------------------------------------------------------------------------- due


def serving(*windows: Window, promoted: datetime | None = NOON) -> RevisionStatus:
    at = None if promoted is None else f"{promoted:%Y-%m-%dT%H:%M:%SZ}"
    return RevisionStatus(number=1, key="k", plain_key="p", draft="d", promoted_at=at, windows=list(windows))


def minutes(span: tuple[datetime, datetime] | None) -> tuple[float, float] | None:
    if span is None:
        return None
    start, end = ((time - NOON) / timedelta(minutes=1) for time in span)
    return start, end


@pytest.mark.parametrize(
    ("windows", "now", "expected"),
    [
        ([], 4.9, None),
        ([], 5, (0, 5)),
        ([], 9.9, (0, 5)),
        ([5], 9.9, None),
        ([5], 10, (5, 10)),
        ([5, 10], 15.5, (10, 15)),
        # The operator was away: 12 windows have ended, a verdict looks at two
        ([5], 66, (55, 60)),
        ([5, 60], 66, (60, 65)),
    ],
)
def test_windows_follow_each_other_from_the_promotion_on(
    windows: list[int], now: float, expected: tuple[float, float] | None
) -> None:
    revision = serving(*(good(at) for at in windows))
    assert minutes(due(revision, WATCH, NOON + timedelta(minutes=now))) == expected


def test_a_revision_without_a_draft_has_no_window_to_read() -> None:
    assert due(serving().model_copy(update={"draft": None}), WATCH, NOON + timedelta(hours=1)) is None


def test_a_revision_that_was_never_promoted_is_not_watched() -> None:
    assert due(serving(promoted=None), WATCH, NOON + timedelta(hours=1)) is None


def test_a_revision_that_serves_again_is_not_judged_by_windows_across_its_absence() -> None:
    again = serving(good(5), promoted=NOON + timedelta(minutes=42))
    assert minutes(due(again, WATCH, NOON + timedelta(minutes=50))) == (42, 47)


# ------------------------------------------------------------------------------------------------------------- PromQL


def test_queries_ask_for_one_revision_of_one_object() -> None:
    for query in queries("llm", "kimi-k25", 3, 300).values():
        assert 'eagle3_namespace="llm",eagle3_name="kimi-k25",eagle3_revision="r3"' in query
        assert "[300s]" in query


def test_label_values_cannot_leave_their_quotes() -> None:
    query = queries('a"} or vector(1) #', "back\\slash\n", 1, 60)["tokens"]
    assert r'eagle3_namespace="a\"} or vector(1) #"' in query
    assert r'eagle3_name="back\\slash\n"' in query
