"""The learning rate rises for 1.5 % of the steps and falls to nothing; evaluations are spread evenly."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_draft.train.schedule import evaluation_steps, learning_rate


def test_it_warms_up_and_then_falls_like_half_a_cosine() -> None:
    rates = [learning_rate(step, 1000, 1e-4) for step in range(1000)]
    assert rates[0] == pytest.approx(1e-4 / 15)
    assert rates[14] == rates[15] == max(rates) == pytest.approx(1e-4)
    assert rates[15 + (1000 - 15) // 2] == pytest.approx(0.5e-4, rel=0.01)
    assert rates[15:] == sorted(rates[15:], reverse=True)
    assert 0 < rates[-1] < 1e-9


def test_a_training_of_one_step_learns() -> None:
    assert learning_rate(0, 1, 1e-4) == 1e-4


def test_evaluations_are_spread_over_each_epoch() -> None:
    assert sorted(evaluation_steps([10, 7], 1)) == [10, 17]
    assert sorted(evaluation_steps([10, 7], 2)) == [5, 10, 14, 17]
    assert sorted(evaluation_steps([3], 100)) == [1, 2, 3]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 50))
def test_every_epoch_ends_with_an_evaluation(steps: list[int], per_epoch: int) -> None:
    found = evaluation_steps(steps, per_epoch)
    assert set(accumulate(steps)) <= found
    assert found <= set(range(1, sum(steps) + 1))
    assert len(found) == sum(min(of_epoch, per_epoch) for of_epoch in steps)
