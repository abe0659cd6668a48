"""The reader makes batches ahead, in order, and its errors come where their batches would have."""

import threading
from contextlib import closing

import pytest
import torch

from eagle3_draft.features import LastState, Sample
from eagle3_draft.train.batches import Batch, pack
from eagle3_draft.train.prefetch import AHEAD, prefetched

CPU = torch.device("cpu")


def batch_of(number: int) -> Batch:
    ids = torch.full((4,), number, dtype=torch.int32)
    told = LastState.of(torch.zeros(4, 1), torch.zeros(4, 5))
    return pack([Sample(ids, torch.ones(4, dtype=torch.uint8), torch.zeros(4, 3), told)], 2)


def test_batches_come_in_order_each_with_its_item() -> None:
    with closing(prefetched(batch_of, range(7), CPU)) as batches:
        assert [(item, int(batch.input_ids[0])) for item, batch in batches] == [(n, n) for n in range(7)]


def test_it_is_a_few_batches_ahead_and_no_more() -> None:
    made: list[int] = []
    enough = threading.Event()

    def make(number: int) -> Batch:
        made.append(number)
        if number == AHEAD:
            enough.set()
        return batch_of(number)

    with closing(prefetched(make, range(50), CPU)) as batches:
        next(batches)
        assert enough.wait(60)
        assert max(made) == AHEAD


def test_an_error_is_raised_where_its_batch_would_have_come() -> None:
    def make(number: int) -> Batch:
        if number == 3:
            raise ValueError("shard 3")
        return batch_of(number)

    seen: list[int] = []
    with closing(prefetched(make, range(9), CPU)) as batches, pytest.raises(ValueError, match="shard 3"):
        for item, _ in batches:
            seen.append(item)
    assert seen == [0, 1, 2]


def test_what_the_next_batch_is_made_of_is_fetched_while_one_is_made() -> None:
    told: list[str] = []

    def make(number: int) -> Batch:
        told.append(f"make {number}")
        return batch_of(number)

    with closing(prefetched(make, range(3), CPU, lambda number: told.append(f"expect {number}"))) as batches:
        list(batches)
    assert told == ["expect 1", "make 0", "expect 2", "make 1", "make 2"]
