"""The draft's vocabulary is what the assistant says most."""

from pathlib import Path

import torch

from eagle3_api.checkpoints.form import MapKind
from eagle3_api.checkpoints.vocabulary import understand_map
from eagle3_draft.features import Sample, TopK
from eagle3_draft.train.vocabulary import Vocabulary, choose, count_supervised, coverage


def said(tokens: list[int], mask: list[int]) -> Sample:
    return Sample(
        input_ids=torch.tensor(tokens, dtype=torch.int32),
        loss_mask=torch.tensor(mask, dtype=torch.uint8),
        hidden=torch.empty(len(tokens), 0),
        teaching=TopK(torch.empty(len(tokens), 0), torch.empty(len(tokens), 0)),
    )


def test_only_tokens_of_the_assistant_count() -> None:
    counts = count_supervised([said([5, 5, 7, 7], [0, 0, 1, 1]), said([7, 9], [1, 0])], target_size=10)
    assert counts.tolist() == [0, 0, 0, 0, 0, 0, 0, 3, 0, 0]


def test_the_most_frequent_are_taken_and_ties_go_to_the_lower_id() -> None:
    counts = torch.zeros(200, dtype=torch.int64)
    counts[150:190] = 3
    counts[100:140] = 2
    vocabulary = choose(counts, 64, always=[])
    assert vocabulary.ids.tolist() == [*range(100, 124), *range(150, 190)]
    assert coverage(vocabulary, counts) == (40 * 3 + 24 * 2) / (40 * 3 + 40 * 2)


def test_tokens_that_end_a_turn_are_in_although_rare() -> None:
    counts = torch.ones(200, dtype=torch.int64) * 5
    counts[199] = 0
    assert 199 in choose(counts, 64, always=[199, 100_000]).ids.tolist()


def test_it_is_at_most_the_targets_rounded_down_to_a_multiple_of_64() -> None:
    counts = torch.ones(150, dtype=torch.int64)
    assert len(choose(counts, 32000, always=[]).ids) == 128
    assert choose(torch.ones(128, dtype=torch.int64), 32000, always=[]).offsets.eq(0).all()


def test_the_map_is_one_that_sglang_reads_and_survives_a_file(tmp_path: Path) -> None:
    counts = torch.randint(0, 9, (300,), generator=torch.Generator().manual_seed(0))
    vocabulary = choose(counts, 128, always=[])
    assert vocabulary.ids.tolist() == sorted(set(vocabulary.ids.tolist()))
    vocabulary.save(tmp_path / "v.safetensors")
    again = Vocabulary.load(tmp_path / "v.safetensors")
    assert torch.equal(again.ids, vocabulary.ids)
    assert again.offsets.dtype == torch.int64
    assert again.members.dtype == torch.bool
    read = understand_map(again.offsets.tolist(), MapKind.EITHER, 300, again.members.tolist())
    assert read.ids == vocabulary.ids.tolist()
