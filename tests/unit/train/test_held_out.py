"""The held-out sample has what the draft proposed at its positions, whatever batches it was measured in."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_api.artifacts import HELD_OUT
from eagle3_draft.features import Sample, sample_of
from eagle3_draft.storage import artifacts
from eagle3_draft.train import held_out
from eagle3_draft.train.batches import pack
from eagle3_draft.train.held_out import CONVERSATIONS, NONE, TOKENS, Recorder

pytestmark = pytest.mark.usefixtures("one_rank")

STEPS = 3


def conversation(number: int, tokens: int) -> Sample:
    """One whose every token but the first is the assistant's, and tells which it is."""
    return sample_of(
        {
            "input_ids": torch.arange(tokens, dtype=torch.int32) + 1000 * number,
            "loss_mask": (torch.arange(tokens) > 0).to(torch.uint8),
            "hidden": torch.zeros(tokens, 2),
            "top_tokens": torch.zeros(tokens, 1, dtype=torch.int32),
            "top_log_probabilities": torch.zeros(tokens, 1, dtype=torch.float16),
        }
    )


def recorded(samples: Sequence[Sample], batches: Sequence[Sequence[int]], multiple: int = 1) -> torch.Tensor:
    """What is taken down of a draft that proposes ten times the token that it stands at, and the step."""
    recorder = Recorder([len(sample) for sample in samples], STEPS)
    for chosen in batches:
        batch = pack([samples[number] for number in chosen], STEPS + 2, multiple=multiple)
        recorder.add(chosen, batch, [batch.input_ids[rows] * 10 + step for step, rows in enumerate(batch.wanted)])
    return recorder.gathered()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(2, 9), min_size=1, max_size=6).flatmap(
        lambda lengths: st.tuples(st.just(lengths), st.permutations(range(len(lengths))), st.integers(1, 3))
    ),
    st.integers(1, 8),
)
def test_the_batches_and_their_order_do_not_matter(made: tuple[list[int], list[int], int], multiple: int) -> None:
    lengths, order, size = made
    samples = [conversation(number, tokens) for number, tokens in enumerate(lengths)]
    whole = recorded(samples, [range(len(samples))])
    parts = [order[first : first + size] for first in range(0, len(order), size)]
    assert torch.equal(recorded(samples, parts, multiple), whole)
    tokens = torch.cat([sample.input_ids for sample in samples])
    left = torch.cat([torch.arange(tokens, 0, -1) for tokens in lengths])
    for step in range(STEPS):
        # A proposal is two tokens and the step on; nothing is said of one that is beyond the end
        expected = torch.where(left > step + 2, tokens * 10 + step, NONE)
        assert torch.equal(whole[:, step], expected)


def test_of_long_conversations_the_beginnings_are_kept_and_of_many_the_first(tmp_path: Path) -> None:
    samples = [conversation(number, TOKENS + 5 if number == 1 else 4) for number in range(CONVERSATIONS + 3)]
    proposals = recorded(
        samples, [[1, CONVERSATIONS], [CONVERSATIONS + 1], [n for n in range(CONVERSATIONS) if n != 1]]
    )
    held_out.save(tmp_path / HELD_OUT, samples, torch.float32, proposals)
    artifacts.publish(tmp_path, stage="train", key="k", made_from={}, numbers={}, provenance={})
    read = held_out.read(tmp_path)
    assert read.proposals is not None
    assert [len(sample) for sample in read.samples] == [4, TOKENS, *[4] * (CONVERSATIONS - 2)]
    assert [sample.input_ids[0].item() for sample in read.samples] == [1000 * n for n in range(CONVERSATIONS)]
    assert [table[0].tolist() for table in read.proposals[2:]] == [
        [10_000 * n, 10_000 * n + 1, NONE] for n in range(2, CONVERSATIONS)
    ]
    end = 10 * (1000 + TOKENS - 1)
    assert read.proposals[1][-1].tolist() == [end, end + 1, end + 2]
