"""Which deviations of a greedy answer are ties, and which are wrong answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_draft.probe.lossless import EXACT, Answer, deviation, epsilon

BASELINE = Answer(prompt=3, output_ids=[5, 6, 7, 8], gaps=[2.0, 0.05, 0.0, 3.0], runners_up=[50, 60, 70, 80])


def test_equal_answers_do_not_deviate() -> None:
    assert deviation(BASELINE, [5, 6, 7, 8], 0.25) is None


def test_the_baselines_second_best_token_within_epsilon_is_a_tie() -> None:
    found = deviation(BASELINE, [5, 60, 1, 2], 0.25)
    assert found is not None
    assert (found.kind, found.position, found.gap, found.prompt) == ("tie", 1, 0.05, 3)


def test_the_second_best_token_beyond_epsilon_is_a_wrong_answer() -> None:
    found = deviation(BASELINE, [5, 60, 1, 2], 0.01)
    assert found is not None
    assert (found.kind, found.gap) == ("different", 0.05)


def test_a_token_that_was_neither_best_nor_second_is_a_wrong_answer_however_close_those_were() -> None:
    found = deviation(BASELINE, [5, 6, 99, 8], 0.25)
    assert found is not None
    assert (found.kind, found.position) == ("different", 2)


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


def test_without_gaps_nothing_is_a_tie() -> None:
    found = deviation(Answer(prompt=0, output_ids=[1, 2]), [1, 3], 0.25)
    assert found is not None
    assert found.kind == "different"


@pytest.mark.parametrize(
    ("dtype", "exact", "expected"),
    [
        ("float32", True, EXACT),
        ("bfloat16", False, 0.25),
        ("float16", False, 0.03),
        ("float32", False, 1e-3),
        ("auto", False, 0.25),
        (None, False, 0.25),
    ],
)
def test_epsilon_is_two_roundings_of_a_logit(dtype: object, exact: bool, expected: float) -> None:
    assert epsilon(dtype, exact=exact) == expected


tokens = st.lists(st.integers(0, 3), max_size=6)


@given(tokens, tokens, st.floats(0, 1), st.floats(0, 1))
def test_a_wider_epsilon_never_makes_a_tie_a_wrong_answer(
    baseline: list[int], other: list[int], one: float, two: float
) -> None:
    answer = Answer(
        prompt=0, output_ids=baseline, gaps=[0.5] * len(baseline), runners_up=[(i + 1) % 4 for i in baseline]
    )
    narrow, wide = (deviation(answer, other, epsilon) for epsilon in sorted((one, two)))
    assert (narrow is None) == (wide is None) == (baseline == other)
    if narrow is not None and wide is not None:
        assert narrow.position == wide.position
        assert (narrow.kind, wide.kind) != ("tie", "different")
