"""The draft's vocabulary is what the assistant says most."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.checkpoints.form import MapKind
from eagle3_api.checkpoints.vocabulary import understand_map
from eagle3_draft.data.tokenizer_files import SpecialTokens
from eagle3_draft.features import Sample, TopK
from eagle3_draft.train.vocabulary import MULTIPLE, Usage, Vocabulary, choose, coverage, required


def said(tokens: list[int], mask: list[int]) -> Sample:
    return Sample(
        input_ids=torch.tensor(tokens, dtype=torch.int32),
        loss_mask=torch.tensor(mask, dtype=torch.uint8),
        hidden=torch.empty(len(tokens), 0),
        teaching=TopK(torch.empty(len(tokens), 0), torch.empty(len(tokens), 0)),
    )


def test_only_tokens_of_the_assistant_count() -> None:
    usage = Usage.of([said([5, 5, 7, 7], [0, 0, 1, 1]), said([7, 9], [1, 0])], target_size=10)
    assert usage.supervised.tolist() == [0, 0, 0, 0, 0, 0, 0, 3, 0, 0]
    assert usage.overall.tolist() == [0, 0, 0, 0, 0, 2, 0, 3, 0, 1]


def test_the_most_frequent_are_taken_and_ties_go_to_the_lower_id() -> None:
    counts = torch.zeros(200, dtype=torch.int64)
    counts[150:190] = 3
    counts[100:140] = 2
    vocabulary = choose(counts, 64, always=[])
    assert vocabulary.ids.tolist() == [*range(100, 124), *range(150, 190)]
    assert coverage(vocabulary, Usage(counts, counts)) == (40 * 3 + 24 * 2) / (40 * 3 + 40 * 2)


#: A tokenizer of 256 special tokens, most of them reserved.
SPECIAL = SpecialTokens(
    {
        64: "<|begin|>",
        65: "<|end|>",
        66: "<|turn|>",
        67: "<|tool|>",
        **{token: f"<|reserved_{token}|>" for token in range(68, 320)},
    },
    framing=frozenset({64, 65}),
)
TARGET = 512


@given(
    conversations=st.lists(
        st.lists(st.tuples(st.integers(0, TARGET - 1), st.integers(0, 1)), min_size=1, max_size=24), max_size=12
    ),
    size=st.integers(1, 10).map(MULTIPLE.__mul__),
    again=st.randoms(use_true_random=False),
)
def test_whatever_the_data_the_vocabulary_is_the_most_frequent_tokens_with_all_special_ones(
    conversations: list[list[tuple[int, int]]], size: int, again: random.Random
) -> None:
    samples = [said([token for token, _ in one], [mask for _, mask in one]) for one in conversations]
    usage = Usage.of(samples, TARGET)
    always = required(SPECIAL, "{{ '<|turn|>' + content }}", usage)
    known = {64, 65, 66}  # they frame a text, or the template writes them
    assert always == known | {token for one in conversations for token, _ in one if token in SPECIAL.texts}
    if len(always) > size:
        with pytest.raises(ValueError, match="cannot all be in a vocabulary of 64"):
            choose(usage.supervised, size, always)
        return
    ids = choose(usage.supervised, size, always).ids.tolist()
    assert always <= set(ids)
    assert len(ids) == min(size, TARGET)
    assert ids == sorted(set(ids))
    others, outside = set(ids) - always, set(range(TARGET)) - set(ids)
    rank = [(-int(count), token) for token, count in enumerate(usage.supervised)]
    assert max((rank[token] for token in others), default=(0, -1)) <= min(
        (rank[token] for token in outside), default=(1, 0)
    )
    again.shuffle(samples)
    assert choose(usage.supervised, size, sorted(always, reverse=True)).ids.tolist() == ids
    assert torch.equal(Usage.of(samples, TARGET).supervised, usage.supervised)


def test_reserved_tokens_that_nothing_writes_push_out_no_word() -> None:
    counts = torch.zeros(TARGET, dtype=torch.int64)
    counts[400:512] = 1
    ids = choose(counts, 128, required(SPECIAL, "<|turn|>", Usage(counts, counts))).ids.tolist()
    assert set(ids) == {64, 65, 66, *range(400, 512), *range(13)}


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


@pytest.mark.parametrize("size", [0, 1, 63, 100, 32_001])
def test_a_size_that_no_server_takes_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"a vocabulary of {size} cannot be served: it must be a multiple of 64"):
        choose(torch.ones(200, dtype=torch.int64), size, always=[])
