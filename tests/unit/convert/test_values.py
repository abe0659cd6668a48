"""Rows that repeat are counted, in whatever pieces they come."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.checkpoints import Level
from eagle3_draft.convert.values import HELD, Values, judge


@given(
    rows=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    width=st.sampled_from([1, 2, 5, 40]),
    column=st.integers(0, 39),
    cuts=st.lists(st.integers(0, 1200), max_size=8),
)
def test_pieces_count_as_the_whole_does(rows: list[int], width: int, column: int, cuts: list[int]) -> None:
    """Rows that differ do so in one value, wherever that is."""
    matrix = torch.zeros(len(rows), width)
    matrix[:, column % width] = torch.tensor(rows, dtype=torch.float32)
    flat = matrix.reshape(-1)
    bounds = sorted({0, len(flat), *(cut for cut in cuts if cut < len(flat))})
    values = Values(width)
    for start, end in pairwise(bounds):
        values.add(flat[start:end])
    assert values.rows == len(rows)
    assert values.repeated == sum(a == b for a, b in pairwise(rows))
    assert (values.least, values.greatest) == (flat.min().item(), flat.max().item())


def test_what_the_type_of_the_weights_does_not_hold_is_refused() -> None:
    values = Values()
    values.add(torch.tensor([1.0, -70000.0]))
    (found,) = judge({"fc.weight": (values, 2)}, torch.float16)
    assert (found.rule, found.level) == (HELD, Level.REFUSED)
    assert found.message == "a value of fc.weight is 70000, and the target's type, float16, ends at 65504"
    assert not list(judge({"fc.weight": (values, 2)}, torch.bfloat16))
