"""The reader makes portions ahead, in order, and its errors come where their portions would have."""

import threading

import pytest
import torch

from eagle3_draft.features import LastState, Sample
from eagle3_draft.train.batches import pack
from eagle3_draft.train.portions import Portion
from eagle3_draft.train.prefetch import AHEAD, prefetched

CPU = torch.device("cpu")


def portion_of(number: int) -> Portion:
    ids = torch.full((4,), number, dtype=torch.int32)
    told = LastState.of(torch.zeros(4, 1), torch.zeros(4, 5))
    sample = Sample(ids, torch.ones(4, dtype=torch.uint8), torch.zeros(4, 3), told)
    return Portion(pack([sample], 2), torch.full((2,), float(number)))


def test_portions_come_in_order() -> None:
    with prefetched(portion_of, range(7), CPU) as portions:
        assert [(int(one.counts[0]), int(one.batch.input_ids[0])) for one in portions] == [(n, n) for n in range(7)]


def test_it_is_a_few_portions_ahead_and_no_more() -> None:
    made: list[int] = []
    enough = threading.Event()

    def make(number: int) -> Portion:
        made.append(number)
        if number == AHEAD:
            enough.set()
        return portion_of(number)

    with prefetched(make, range(50), CPU) as portions:
        next(portions)
        assert enough.wait(60)
        assert max(made) == AHEAD


def test_an_error_is_raised_where_its_portion_would_have_come() -> None:
    def make(number: int) -> Portion:
        if number == 3:
            raise ValueError("shard 3")
        return portion_of(number)

    seen: list[int] = []
    with prefetched(make, range(9), CPU) as portions, pytest.raises(ValueError, match="shard 3"):
        seen.extend(int(portion.counts[0]) for portion in portions)
    assert seen == [0, 1, 2]


def test_an_error_beside_the_reader_is_told_though_a_volume_that_hangs_does_not_let_it_end() -> None:
    hangs, comes_back, made = threading.Event(), threading.Event(), []

    def make(number: int) -> Portion:
        if number > 0:
            hangs.set()
            comes_back.wait(10)
        made.append(number)
        return portion_of(number)

    with pytest.raises(OSError, match="hangs"), prefetched(make, range(9), CPU) as portions:
        next(portions)
        assert hangs.wait(60)
        raise OSError("the volume hangs")
    assert made == [0]
    comes_back.set()
    for thread in threading.enumerate():
        if thread.name.startswith("reader"):
            thread.join(10)


def test_nothing_is_made_any_more_once_the_portions_were_enough() -> None:
    begun = threading.Event()

    def make(number: int) -> Portion:
        if number > 0:
            begun.set()
        return portion_of(number)

    with prefetched(make, range(9), CPU) as portions:
        next(portions)
        assert begun.wait(60)
    assert not any(thread.name.startswith("reader") for thread in threading.enumerate())


def test_what_the_next_portion_is_made_of_is_fetched_while_one_is_made() -> None:
    told: list[str] = []

    def make(number: int) -> Portion:
        told.append(f"make {number}")
        return portion_of(number)

    with prefetched(make, range(3), CPU, lambda number: told.append(f"expect {number}")) as portions:
        list(portions)
    assert told == ["expect 1", "make 0", "expect 2", "make 1", "make 2"]
