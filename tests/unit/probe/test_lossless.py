"""Which deviations of a greedy answer are ties, and which are wrong answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_draft.probe.lossless import Answer, deviation, epsilon, rounding

BASELINE = Answer(
    prompt=3,
    output_ids=[5, 6, 7, 8],
    near=[{5: 0, 50: 2.0, 51: 2.1}, {6: 0, 60: 0.05, 61: 0.2}, {7: 0, 70: 0.0, 71: 0.0}, {8: 0, 80: 3.0}],
)


def test_equal_answers_do_not_deviate() -> None:
    assert deviation(BASELINE, [5, 6, 7, 8], 0.25) is None


def test_a_token_that_is_within_epsilon_of_the_baselines_best_is_a_tie() -> None:
    found = deviation(BASELINE, [5, 60, 1, 2], 0.25)
    assert found is not None
    assert (found.kind, found.position, found.gap, found.prompt) == ("tie", 1, 0.05, 3)


def test_so_is_one_of_three_that_are_as_likely() -> None:
    found = deviation(BASELINE, [5, 61, 1, 2], 0.25)
    assert found is not None
    assert (found.kind, found.gap) == ("tie", 0.2)


def test_a_token_beyond_epsilon_is_a_wrong_answer() -> None:
    found = deviation(BASELINE, [5, 60, 1, 2], 0.01)
    assert found is not None
    assert (found.kind, found.gap) == ("different", 0.05)


def test_a_token_that_is_not_near_is_a_wrong_answer_however_close_others_were() -> None:
    found = deviation(BASELINE, [5, 6, 99, 8], 0.25)
    assert found is not None
    assert (found.kind, found.position, found.gap) == ("different", 2, None)


def test_only_the_first_token_that_differs_decides() -> None:
    found = deviation(BASELINE, [5, 6, 70, 99], 0.25)
    assert found is not None
    assert (found.kind, found.position) == ("tie", 2)


def test_an_answer_that_ends_early_is_judged_where_it_ends() -> None:
    kinds = [found.kind for end in (1, 3) if (found := deviation(BASELINE, BASELINE.output_ids[:end], 0.25))]
    assert kinds == ["tie", "different"]


def test_an_answer_that_goes_on_after_the_baselines_end_is_a_wrong_answer() -> None:
    found = deviation(BASELINE, [5, 6, 7, 8, 9], 0.25)
    assert found is not None
    assert (found.kind, found.position, found.gap) == ("different", 4, None)


def test_where_nothing_is_known_to_be_near_nothing_is_a_tie() -> None:
    found = deviation(Answer(prompt=0, output_ids=[1, 2]), [1, 3], 0.25)
    assert found is not None
    assert found.kind == "different"


def test_rounding_is_the_largest_change_of_the_gap_of_a_positions_two_best_tokens() -> None:
    decoded = [{5: -0.1, 50: -2.1, 51: -9.0}, {6: -1.0, 60: -1.05}, {7: -0.5, 70: -0.6}]
    prefilled = [{5: -0.1, 50: -2.0}, {60: -0.9, 6: -1.15}, {7: -0.5, 71: -0.6}]
    assert rounding(decoded, prefilled) == pytest.approx(0.3)  # of the second; the third has another second token


def test_rounding_does_not_depend_on_what_all_of_a_position_have_in_common() -> None:
    decoded = [{5: -0.1, 50: -0.4}]
    assert rounding(decoded, [{5: -3.1, 50: -3.4}]) == pytest.approx(0)
    assert rounding([], []) == 0


@pytest.mark.parametrize(
    ("dtype", "rounding", "expected"),
    [
        ("float32", 0.0, 1e-4),
        ("float32", 2e-3, 2e-3),
        ("bfloat16", 0.1, 0.25),
        ("bfloat16", 0.4, 0.4),
        ("float16", 0.0, 0.03),
        ("auto", 0.0, 0.25),
        (None, 0.0, 0.25),
    ],
)
def test_epsilon_is_the_rounding_that_was_seen_and_no_less_than_that_of_two_logits(
    dtype: object, rounding: float, expected: float
) -> None:
    assert epsilon(dtype, rounding) == pytest.approx(expected)


tokens = st.lists(st.integers(0, 3), max_size=6)


@given(tokens, tokens, st.floats(0, 1), st.floats(0, 1))
def test_a_wider_epsilon_never_makes_a_tie_a_wrong_answer(
    baseline: list[int], other: list[int], one: float, two: float
) -> None:
    near = [{i: 0.0, (i + 1) % 4: 0.5} for i in baseline]
    answer = Answer(prompt=0, output_ids=baseline, near=near)
    narrow, wide = (deviation(answer, other, epsilon) for epsilon in sorted((one, two)))
    assert (narrow is None) == (wide is None) == (baseline == other)
    if narrow is not None and wide is not None:
        assert narrow.position == wide.position
        assert (narrow.kind, wide.kind) != ("tie", "different")
