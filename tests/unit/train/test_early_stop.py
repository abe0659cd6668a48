"""A training ends when it brings nothing more, and not because one evaluation was worse."""

from hypothesis import given
from hypothesis import strategies as st

from eagle3_draft.train.early_stop import has_plateaued

LENGTHS = st.lists(st.floats(1, 8), max_size=30)


def plateau(*lengths: float, patience: int = 2) -> bool:
    return has_plateaued(lengths, patience=patience, min_improvement=0.1)


def test_it_waits_as_long_as_it_was_told() -> None:
    assert not plateau()
    assert not plateau(2.0)
    assert not plateau(2.0, 2.0)
    assert plateau(2.0, 2.0, 2.05)
    assert not plateau(2.0, 1.5, 2.2)


def test_small_improvements_count_once_they_add_up() -> None:
    assert not plateau(2.0, 2.06, 2.12, 2.18, 2.24)


def test_a_length_that_was_lost_must_be_won_back_first() -> None:
    assert plateau(3.0, 1.0, 2.0)


@given(LENGTHS, st.integers(1, 5))
def test_one_that_ended_has_seen_no_more_than_its_patience_after_the_last_improvement(
    lengths: list[float], patience: int
) -> None:
    ends = [end for end in range(len(lengths) + 1) if plateau(*lengths[:end], patience=patience)]
    if ends:
        before = lengths[: ends[0]]
        assert max(before[-patience:]) < max(before[:-patience]) + 0.1
        assert len(before) > patience
