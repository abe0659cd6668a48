"""How much of the held-out sample a converted draft is asked, so that a large one is proven in minutes too."""

from itertools import pairwise

import torch

from eagle3_draft.convert import accuracy
from eagle3_draft.convert.head import HEAD_ROWS, likeliest, logits
from eagle3_draft.features import LastState, Sample
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.model.fast import FastDraft

STEPS = 7


def shaped(hidden: int, inner: int, vocabulary: int) -> FastDraft:
    """A draft of real sizes without numbers."""
    sizes = DraftConfig(
        hidden_size=hidden,
        target_hidden_size=hidden,
        layers=[1, 2, 3],
        intermediate_size=inner,
        heads=32,
        kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        vocabulary_size=vocabulary,
        draft_vocabulary_size=vocabulary,
        max_position_embeddings=4096,
    )
    with torch.device("meta"):
        return FastDraft(sizes)


def conversations(count: int, tokens: int = 256, answer: int = 192) -> list[Sample]:
    mask = (torch.arange(tokens) >= tokens - answer).to(torch.uint8)
    told = LastState(torch.zeros(tokens, 1), torch.zeros(tokens, dtype=torch.int32), torch.zeros(tokens))
    return [Sample(torch.zeros(tokens, dtype=torch.int32), mask, torch.zeros(tokens, 3), told)] * count


def test_a_small_draft_is_asked_in_every_conversation_at_positions_from_the_answers_beginning_to_its_end() -> None:
    asked = accuracy.chosen(shaped(1024, 4096, 32000), conversations(64), STEPS)
    assert len(asked.samples) == 64
    assert asked.thinned
    positions = asked.samples[0].loss_mask.nonzero().flatten().tolist()
    assert len(positions) == accuracy.POSITIONS
    assert positions[0] == 64
    assert len({b - a for a, b in pairwise(positions)}) == 1
    assert positions[-1] > 220


def test_the_larger_a_draft_the_fewer_conversations_it_is_asked_in_and_never_none() -> None:
    sizes = ((1024, 4096, 32000), (4096, 14336, 32000), (7168, 28672, 163840), (65536, 262144, 262144))
    counts = [len(accuracy.chosen(shaped(*size), conversations(64), STEPS).samples) for size in sizes]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 64
    assert counts[-1] == 1


def test_short_answers_are_asked_whole() -> None:
    short = conversations(3, tokens=20, answer=accuracy.POSITIONS)
    asked = accuracy.chosen(shaped(1024, 4096, 32000), short, STEPS)
    assert not asked.thinned
    assert all(torch.equal(one.loss_mask, other.loss_mask) for one, other in zip(asked.samples, short, strict=True))


def test_the_likeliest_token_is_found_wherever_in_the_head_it_stands() -> None:
    rows = 2 * HEAD_ROWS + 7
    head = torch.randn(rows, 8, generator=torch.Generator().manual_seed(0))
    states = torch.stack([head[number] * 100 for number in (0, HEAD_ROWS, rows - 1)])
    assert torch.equal(likeliest(states, head), (states @ head.T).argmax(-1))
    assert torch.allclose(logits(states, head), states @ head.T)
