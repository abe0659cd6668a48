"""By which accept length a window is judged, for the load that it had."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.jobs import LoadResult, ProbeResult
from eagle3_api.spec import Probe
from eagle3_api.status import Window
from eagle3_operator.judge.bar import Bar

#: Three steps of SmolLM2-135M on an H200: concurrency and break-even.
MEASURED = ((1, 1.49), (8, 2.18), (32, 2.41))
JUST_BREAK_EVEN = Probe(min_accept_length=1.0, min_speedup=1.0)


def probe(*points: tuple[int, float | None], proves: int = 1) -> ProbeResult:
    """Measured at these loads, and proven at one of them."""
    at = {load: {"concurrency": load, "tokens_per_second": 100.0, "break_even": length} for load, length in points}
    made: dict[str, Any] = {
        **at.pop(proves),
        "speculative": True,
        "prompts_digest": "d",
        "requests": 64,
        "tokens": 8192,
        "seconds": 64.0,
        "first_token_seconds": 0.1,
        "inter_token_seconds": 0.008,
        "loads": [LoadResult.model_validate(one) for one in at.values()],
    }
    return ProbeResult(**made)


def under(running: float, *, verify_calls: float = 1000) -> Window:
    return Window(start="a", end="b", tokens=3000, requests=100, verify_calls=verify_calls, running=running)


def bar(
    *points: tuple[int, float | None], proves: int = 1, policy: Probe = JUST_BREAK_EVEN, adaptive: bool = False
) -> Bar:
    return Bar(policy, probe(*points, proves=proves), adaptive)


@pytest.mark.parametrize(
    ("running", "length"),
    [(0.2, 1.49), (1, 1.49), (4.5, 1.835), (8, 2.18), (20, 2.295), (32, 2.41), (200, 2.41)],
)
def test_a_window_is_judged_by_what_was_measured_on_both_sides_of_its_load(running: float, length: float) -> None:
    assert bar(*MEASURED).of(under(running)) == pytest.approx(length)


def test_a_draft_that_gains_alone_and_costs_time_among_many_is_told_apart_by_the_load() -> None:
    """The accept length is 2.0 at each of them."""
    one = bar(*MEASURED)
    assert [one.of(under(running)) <= 2.0 for running in (1, 6, 7, 32)] == [True, True, False, False]


def test_where_one_load_was_measured_it_is_the_bar_of_every_window() -> None:
    assert {bar((8, 2.18), proves=8).of(under(running)) for running in (0, 1, 8, 300)} == {2.18}


def test_a_window_of_which_nobody_could_tell_the_load_is_judged_by_that_of_the_proof() -> None:
    assert bar(*MEASURED, proves=8).of(under(0)) == 2.18


def test_the_order_in_which_loads_are_named_is_nothing_to_the_bar() -> None:
    assert bar((32, 2.41), (1, 1.49), (8, 2.18), proves=8).of(under(20)) == bar(*MEASURED, proves=8).of(under(20))


@pytest.mark.parametrize(
    ("speedup", "alone", "between", "among_many"),
    [(1.2, 1.2 * 1.5, (1.8 + 2.4) / 2, 2.4), (0.8, 0.8 * 1.5, 0.8 * 1.95, 0.8 * 2.4), (0.0, 0.0, 0.0, 0.0)],
)
def test_what_is_to_be_gained_is_asked_for_where_it_was_proven_and_elsewhere_that_no_time_is_lost(
    speedup: float, alone: float, between: float, among_many: float
) -> None:
    policy = JUST_BREAK_EVEN.model_copy(update={"min_speedup": speedup})
    one = bar((1, 1.5), (9, 2.4), policy=policy)
    assert [one.of(under(running)) for running in (1, 5, 9)] == pytest.approx([alone, between, among_many])


def test_without_a_measurement_or_a_break_even_there_is_no_bar() -> None:
    assert Bar(JUST_BREAK_EVEN, None).of(under(3)) == 0
    assert bar((1, None)).of(under(3)) == 0


points = st.dictionaries(st.integers(1, 256), st.floats(1, 8), min_size=1, max_size=5)


@given(points, st.floats(0.01, 1000))
def test_the_bar_is_never_beyond_what_was_measured(measured: dict[int, float], running: float) -> None:
    found = bar(*measured.items(), proves=next(iter(measured))).of(under(running))
    assert min(measured.values()) - 1e-9 <= found <= max(measured.values()) + 1e-9


@given(points, st.floats(0.01, 300))
def test_a_little_more_load_is_a_little_other_bar(measured: dict[int, float], running: float) -> None:
    one = bar(*measured.items(), proves=next(iter(measured)))
    assert abs(one.of(under(running + 1e-4)) - one.of(under(running))) <= 1e-4 * 7 + 1e-9


# ------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("running", "words"),
    [
        (0.6, "the bar for 0.6 requests together on a server (1.49 at 1)"),
        (20, "the bar for 20 requests together on a server (2.18 at 8, 2.41 at 32)"),
        (8, "the bar for 8 requests together on a server (2.18 at 8)"),
        (90, "the bar for 90 requests together on a server (2.41 at 32)"),
    ],
)
def test_the_bar_says_what_it_is_made_of(running: float, words: str) -> None:
    assert bar(*MEASURED).words(under(running)) == words


@pytest.mark.parametrize(("running", "told"), [(64, False), (65, True)])
def test_a_pass_under_much_more_load_than_any_that_was_measured_says_so(running: float, told: bool) -> None:
    said = bar(*MEASURED).too_mild(under(running))
    wanted = (
        "; 65 requests together on a server, and break-even is known only up to 32: add the load that is served to "
        "probe.loads"
    )
    assert said == (wanted if told else "")


@pytest.mark.parametrize(("running", "told"), [(16, False), (3, True), (0, False)])
def test_a_failure_under_much_less_load_than_any_that_was_measured_says_so(running: float, told: bool) -> None:
    said = bar((32, 2.41), proves=32).too_strict(under(running))
    wanted = (
        "; 3 requests together on a server, and break-even is known only from 32 on: add the load that is served to "
        "probe.loads"
    )
    assert said == (wanted if told else "")


# -------------------------------------------------------------------------------------------- servers that adapt steps

#: Of the tiers from 1, 8 and 32 requests on two have a measurement, one of them two.
TIERS = ((1, 1.5), (4, 1.9), (32, 2.4))


def test_servers_that_adapt_their_steps_are_judged_only_by_what_was_measured_in_the_windows_own_tier() -> None:
    one = bar(*TIERS, adaptive=True)
    assert [one.comparable(under(running)) for running in (1, 7, 8, 31, 32)] == [True, True, False, False, True]
    assert [one.of(under(running)) for running in (1, 2.5, 7, 32, 99)] == pytest.approx([1.5, 1.7, 1.9, 2.4, 2.4])
    assert one.words(under(32)) == "the bar for 32 requests together on a server (2.40 at 32)"


def test_that_speculation_does_nothing_is_seen_under_any_load() -> None:
    assert bar(*TIERS, adaptive=True).comparable(under(9, verify_calls=0))


def test_the_least_accept_length_is_of_the_steps_that_were_proven() -> None:
    """From 32 requests on a single step is drafted, which is accepted with 2.0 at most."""
    policy = Probe(min_accept_length=2.5, min_speedup=1.0)
    adapting, fixed = (bar(*TIERS, policy=policy, adaptive=adaptive) for adaptive in (True, False))
    assert [adapting.least_accept_length(under(running)) for running in (3, 40)] == [2.5, 1.0]
    assert [fixed.least_accept_length(under(running)) for running in (3, 40)] == [2.5, 2.5]
    assert [adapting.as_probed(under(running)) for running in (3, 40)] == [True, False]
