"""The learning rate rises for 1.5 % of the steps and falls to nothing."""

import pytest

from eagle3_draft.train.schedule import learning_rate


def test_it_warms_up_and_then_falls_like_half_a_cosine() -> None:
    rates = [learning_rate(step, 1000, 1e-4) for step in range(1000)]
    assert rates[0] == pytest.approx(1e-4 / 15)
    assert rates[14] == rates[15] == max(rates) == pytest.approx(1e-4)
    assert rates[15 + (1000 - 15) // 2] == pytest.approx(0.5e-4, rel=0.01)
    assert rates[15:] == sorted(rates[15:], reverse=True)
    assert 0 < rates[-1] < 1e-9


def test_a_training_of_one_step_learns() -> None:
    assert learning_rate(0, 1, 1e-4) == 1e-4
