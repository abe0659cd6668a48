"""What the operator says of a probe's measurements."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.conditions import Reason
from eagle3_api.jobs import LoadResult, Mismatch, ProbeResult
from eagle3_api.spec import Probe
from eagle3_operator.judge.probe import cost_of_loads, judge_probe
from eagle3_operator.judge.verdict import Verdict

BAR = Probe(min_accept_length=1.8, min_speedup=1.1)


def measured(**changes: Any) -> ProbeResult:
    """A good draft: accept length 2.71, 126.9 tok/s against 90.0."""
    made: dict[str, Any] = {
        "speculative": True,
        "prompts_digest": "d",
        "concurrency": 1,
        "requests": 64,
        "tokens": 8192,
        "seconds": 64.55,
        "tokens_per_second": 126.9,
        "verify_steps": 2999,
        "accept_length": 2.71,
        "break_even": 1.92,
        "baseline_tokens_per_second": 90.0,
        "first_token_seconds": 0.1,
        "inter_token_seconds": 0.008,
        "compared": 64,
    }
    return ProbeResult(**made | changes)


USELESS = {"accept_length": 1.0, "tokens_per_second": 54.8, "break_even": 1.74, "verify_steps": 8128}


def judge(result: ProbeResult, *, expected: float | None = 2.62, policy: Probe = BAR, name: str = "r2") -> Verdict:
    return judge_probe(result, policy, expected=expected, name=name)


def test_a_draft_that_is_accepted_and_faster_is_proven_with_the_numbers_that_prove_it() -> None:
    verdict = judge(measured(), expected=2.74, name="r1")
    assert (verdict.outcome, verdict.reason) == ("Pass", Reason.PROVEN)
    assert verdict.message == (
        "r1: accept length 2.71 (expected 2.74), 126.9 tok/s against 90.0 at concurrency 1 (1.41x), "
        "greedy outputs identical on 64 prompts"
    )


def test_a_useless_draft_is_rejected_for_its_cost_and_the_message_names_the_likely_cause() -> None:
    verdict = judge(measured(**USELESS))
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.SLOWER_THAN_BASELINE)
    assert verdict.message == (
        "r2: accept length 1.00 (expected 2.62), 54.8 tok/s against 90.0 without speculation; break-even at this load is "
        "1.74. Most likely the features in training differ from serving (runbook: ParityMismatch)."
    )


def test_a_draft_that_keeps_its_promise_but_costs_time_is_not_blamed_on_its_features() -> None:
    verdict = judge(measured(accept_length=2.6, tokens_per_second=80.0, break_even=2.93))
    assert verdict.reason is Reason.SLOWER_THAN_BASELINE
    assert "ParityMismatch" not in verdict.message
    assert "draft fewer steps" in verdict.message


def test_a_speedup_below_the_bar_says_both_numbers() -> None:
    verdict = judge(measured(tokens_per_second=92.7, accept_length=2.6))
    assert verdict.reason is Reason.SLOWER_THAN_BASELINE
    assert "1.03x, below minSpeedup 1.1" in verdict.message


def test_a_draft_that_just_reaches_a_bar_passes_it() -> None:
    assert judge(measured(tokens_per_second=99.0)).passed  # 1.1 x 90
    assert judge(measured(accept_length=1.8), expected=2.4).passed  # 0.75 x 2.4, and minAcceptLength


def test_a_draft_as_fast_as_the_server_without_it_is_told_the_speedup_that_was_asked_for() -> None:
    verdict = judge(measured(tokens_per_second=90.0, break_even=None))
    assert verdict.failed
    assert ": 1.00x, below minSpeedup 1.1. At concurrency 1" in verdict.message


def test_where_speed_is_no_bar_a_broken_promise_comes_before_a_low_accept_length() -> None:
    anything_goes = BAR.model_copy(update={"min_speedup": 0})
    verdict = judge(measured(**USELESS), policy=anything_goes)
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.PARITY_MISMATCH)
    assert "accept length 1.00 (expected 2.62), more than 25% below what training promised" in verdict.message


def test_a_fast_draft_that_breaks_its_promise_is_rejected_too() -> None:
    assert judge(measured(accept_length=1.9), expected=2.6).reason is Reason.PARITY_MISMATCH


def test_a_badly_trained_draft_that_keeps_its_promise_has_a_low_accept_length() -> None:
    verdict = judge(measured(accept_length=1.4), expected=1.45)
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.LOW_ACCEPT_LENGTH)
    assert "below minAcceptLength 1.8" in verdict.message


def test_an_adopted_draft_of_which_nothing_is_expected_is_judged_by_the_bar_alone() -> None:
    assert judge(measured(accept_length=1.85), expected=None).passed
    assert judge(measured(accept_length=1.75), expected=None).reason is Reason.LOW_ACCEPT_LENGTH


def at(concurrency: int, speed: float, *, plain: float | None = 90.0, break_even: float | None = None) -> LoadResult:
    """One further load."""
    made = {"tokens_per_second": speed, "baseline_tokens_per_second": plain, "break_even": break_even}
    return LoadResult.model_validate({"concurrency": concurrency, **made})


ONWARDS = (
    "From concurrency 8 on speculation costs time instead of saving it (0.90x, break-even is 3.01), and under such a load the "
    "watch would roll it back: draft fewer steps, or let the server choose them (serve.speculative.mode: Auto)"
)


@pytest.mark.parametrize(
    ("loads", "speedups", "warning"),
    [
        ([at(8, 99.0), at(32, 90.0)], "1.10x at 8, 1.00x at 32", ""),
        ([at(8, 81.0, break_even=3.01), at(32, 72.0)], "0.90x at 8, 0.80x at 32", ONWARDS),
        ([at(8, 81.0), at(32, 99.0)], "0.90x at 8, 1.10x at 32", "At concurrency 8 speculation costs time"),
        (
            [at(2, 81.0), at(8, 99.0), at(32, 81.0)],
            "0.90x at 2, 1.10x at 8, 0.90x at 32",
            "At concurrency 2 and 32 speculation costs time",
        ),
        ([at(8, 81.0, plain=None)], None, ""),
    ],
)
def test_further_loads_are_told_and_reject_nothing_where_speculation_costs_time(
    loads: list[LoadResult], speedups: str | None, warning: str
) -> None:
    verdict = judge(measured(loads=loads))
    assert (verdict.outcome, verdict.reason) == ("Pass", Reason.PROVEN)
    told = "126.9 tok/s against 90.0 at concurrency 1 (1.41x), "
    told += f"{speedups}, greedy outputs" if speedups is not None else "greedy outputs"
    assert told in verdict.message
    assert (
        (f"identical on 64 prompts. {warning}" in verdict.message) if warning else verdict.message.endswith("prompts")
    )
    assert cost_of_loads(measured(loads=loads)).startswith(warning)


def test_what_is_to_be_proven_is_proven_at_the_concurrency_however_fast_it_is_elsewhere() -> None:
    verdict = judge(measured(**USELESS, loads=[at(8, 900.0)]))
    assert verdict.reason is Reason.SLOWER_THAN_BASELINE
    assert "break-even at this load is 1.74; 0.61x at 1, 10.00x at 8. Most likely" in verdict.message


def test_of_a_server_that_gains_under_much_load_alone_that_is_not_called_from_there_on() -> None:
    """What was proven, at 16 requests, gains."""
    told = cost_of_loads(measured(concurrency=16, loads=[at(8, 81.0)]))
    assert told.startswith("At concurrency 8 speculation costs time")


def test_the_server_without_a_draft_says_its_speed_at_each_load() -> None:
    plain = {"speculative": False, "verify_steps": 0, "accept_length": None, "break_even": None}
    loads = [at(8, 4167.0, plain=None), at(32, 17101.0, plain=None)]
    verdict = judge(measured(**plain, baseline_tokens_per_second=None, tokens_per_second=451.0, loads=loads), name="r0")
    assert verdict.message == "r0: 451.0 tok/s at concurrency 1, 4167.0 at 8, 17101.0 at 32 without speculation"


def test_the_server_without_a_draft_passes_when_it_answered() -> None:
    plain = measured(
        speculative=False,
        verify_steps=0,
        accept_length=None,
        break_even=None,
        baseline_tokens_per_second=None,
        tokens_per_second=90.0,
    )
    verdict = judge(plain, expected=None, name="r0")
    assert (verdict.outcome, verdict.reason) == ("Pass", Reason.PROVEN)
    assert verdict.message == "r0: 90.0 tok/s at concurrency 1 without speculation"


@pytest.mark.parametrize(
    ("mismatch", "reason"),
    [
        (Mismatch(name="speculative_algorithm", asked='"EAGLE3"', got='"EAGLE"'), Reason.WRONG_ALGORITHM),
        (Mismatch(name="speculative_algorithm", asked='"EAGLE3"', got="null"), Reason.SPECULATION_INACTIVE),
        (Mismatch(name="max_running_requests", asked="64", got="48"), Reason.ARGUMENT_MISMATCH),
        (Mismatch(name="speculative_num_draft_tokens", asked="16", got="2"), Reason.ARGUMENT_MISMATCH),
    ],
)
def test_a_server_that_runs_with_other_arguments_is_rejected_whatever_it_measured(
    mismatch: Mismatch, reason: Reason
) -> None:
    for speculative in (True, False):
        verdict = judge(measured(argument_mismatches=[mismatch], speculative=speculative, foreign_requests=3))
        assert (verdict.outcome, verdict.reason) == ("Fail", reason)
        assert str(mismatch) in verdict.message


def test_the_wrong_algorithm_is_named_among_other_mismatches() -> None:
    mismatches = [
        Mismatch(name="tp_size", asked="2", got="1"),
        Mismatch(name="speculative_algorithm", asked='"EAGLE3"', got='"EAGLE"'),
    ]
    assert judge(measured(argument_mismatches=mismatches)).reason is Reason.WRONG_ALGORITHM


def test_foreign_requests_make_a_measurement_inconclusive_not_bad() -> None:
    verdict = judge(measured(**USELESS, foreign_requests=3))
    assert (verdict.outcome, verdict.reason) == ("Inconclusive", Reason.FOREIGN_TRAFFIC)
    assert "3 requests from somebody else" in verdict.message


def test_a_healthy_server_that_does_not_speculate_is_named_so() -> None:
    verdict = judge(measured(verify_steps=0, accept_length=None, break_even=None, tokens_per_second=90.0))
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.SPECULATION_INACTIVE)


def test_answers_of_one_token_measure_nothing_and_reject_nothing() -> None:
    result = measured(verify_steps=0, accept_length=None, tokens=64)
    assert (judge(result).outcome, judge(result).reason) == ("Error", Reason.PROBE_ERROR)


def test_no_answer_at_all_is_an_error() -> None:
    assert judge(measured(tokens=0, tokens_per_second=0.0)).outcome == "Error"


def test_another_chat_template_rejects_the_draft_and_not_the_server_without_one() -> None:
    words = "a conversation has 17 tokens by the server's chat template and 21 as rendered for training"
    verdict = judge(measured(template_mismatch=words))
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.TEMPLATE_MISMATCH)
    assert words in verdict.message
    assert judge(measured(template_mismatch=words, speculative=False)).passed


def test_changed_greedy_answers_reject_even_a_fast_draft() -> None:
    verdict = judge(measured(different=3))
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.NOT_LOSSLESS)
    assert "3 of 64 greedy answers differ" in verdict.message


def test_a_changed_answer_is_said_with_how_far_it_is_from_a_tie() -> None:
    verdict = judge(measured(different=3, tie=0.5, rounding=0.25, baseline_different=1))
    assert "by more than 0.5 in the logits; the server without it moves its own by up to 0.25" in verdict.message
    assert "differs from itself in 1 answers" in verdict.message


def test_a_changed_answer_of_a_measurement_without_margins_is_said_without_them() -> None:
    verdict = judge(measured(different=3, baseline_different=1))
    assert (
        "differ from those without speculation, beyond ties; the server without it differs from itself in 1 answers"
        in (verdict.message)
    )
    assert "logits" not in verdict.message


def test_a_server_that_differs_from_itself_as_often_is_not_blamed_on_the_draft() -> None:
    verdict = judge(measured(different=2, baseline_different=2))
    assert verdict.passed
    assert "greedy outputs differ on 2 of 64 prompts" in verdict.message


def test_what_is_proven_says_how_far_its_answers_were_compared() -> None:
    assert judge(measured(ties=2)).message.endswith("greedy outputs identical on 64 prompts up to 2 ties")
    assert judge(measured(compared=0)).message.endswith("at concurrency 1 (1.41x)")


def test_losslessness_is_not_asked_for_where_the_policy_says_so() -> None:
    assert judge(measured(different=3), policy=BAR.model_copy(update={"lossless": False})).passed


def test_without_a_baseline_nothing_is_proven() -> None:
    result = measured(baseline_tokens_per_second=None, break_even=None)
    assert judge(result).outcome == "Error"
    assert judge(result, policy=BAR.model_copy(update={"min_speedup": 0})).passed


def test_a_changed_policy_re_judges_the_stored_measurement() -> None:
    stored = ProbeResult.model_validate(measured(tokens_per_second=92.7).to_json())
    assert judge(stored).failed
    assert judge(stored, policy=BAR.model_copy(update={"min_speedup": 1.0})).passed


RANK = {"Fail": 0, "Pass": 1}
speeds = st.floats(1, 1000)
lengths = st.floats(1, 8)


@given(speed=speeds, faster=speeds, length=lengths, longer=lengths, expected=st.none() | lengths)
def test_a_faster_or_better_accepted_draft_is_never_judged_worse(
    speed: float, faster: float, length: float, longer: float, expected: float | None
) -> None:
    def rank(tokens_per_second: float, accept_length: float) -> int:
        result = measured(tokens_per_second=tokens_per_second, accept_length=accept_length)
        return RANK[judge(result, expected=expected).outcome]

    assert rank(max(speed, faster), max(length, longer)) >= rank(min(speed, faster), min(length, longer))
