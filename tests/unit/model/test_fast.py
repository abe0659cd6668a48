"""The unroll that trains is the one that is read: same states, same gradients, fewer rows."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagle3_draft.model import causal
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.model.factor import Factor
from eagle3_draft.model.fast import FastDraft
from eagle3_draft.model.rows import needed
from unit.model.test_draft import SWITCHES, config

STEPS = 4
DOCUMENTS = [9, 1, 14, 6]


@pytest.fixture(autouse=True)
def exact_numbers() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def fast_draft(sizes: DraftConfig) -> FastDraft:
    torch.manual_seed(0)
    draft = FastDraft(sizes)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3 + (parameter.dim() == 1))
    return draft


def wishes(mask: list[int]) -> list[Tensor]:
    """The rows of each step whose proposal is a token with a mask of 1 in the same document."""
    wanted: list[list[int]] = [[] for _ in range(STEPS)]
    start = 0
    for length in DOCUMENTS:
        for step in range(STEPS):
            wanted[step] += [p for p in range(start, start + length - 2 - step) if mask[p + 2 + step]]
        start += length
    return [torch.tensor(rows, dtype=torch.int64) for rows in wanted]


MASKS = {
    "all": [1] * 30,
    "none": [0] * 30,
    "turns": ([0] * 5 + [1] * 4) * 3 + [0] * 3,
    "one": [0] * 20 + [1] + [0] * 9,
}


def weighed(logits: list[Tensor], by: list[Tensor]) -> Tensor:
    return torch.stack([(one * other).sum() for one, other in zip(logits, by, strict=True)]).sum()


def by_name(draft: FastDraft) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in draft.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("multiple", [1, 6, 30])
@pytest.mark.parametrize("switches", ["plain", "one state", "all"])
def test_it_gives_the_logits_and_gradients_of_the_plain_unroll(
    mask: str, multiple: int, switches: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(mask, multiple, config(**SWITCHES[switches]), monkeypatch)


@pytest.mark.parametrize("switches", sorted(SWITCHES.keys() - {"plain", "one state", "all"}))
def test_it_does_so_with_every_switch(switches: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare("turns", 6, config(**SWITCHES[switches]), monkeypatch)


def compare(mask: str, multiple: int, sizes: DraftConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "QUERY_BLOCK", 5)
    draft, wanted = fast_draft(sizes), wishes(MASKS[mask])
    features, embeds = torch.randn(30, len(sizes.layers) * 32), torch.randn(30, 32)
    rows = needed(DOCUMENTS, wanted, multiple)
    judgements = [torch.randn(len(of_step), 64) for of_step in wanted]

    plain = draft(features, embeds, DOCUMENTS, wanted)
    weighed(plain, judgements).backward()  # type: ignore[no-untyped-call]
    expected = by_name(draft)
    draft.zero_grad()

    def logits(states: list[Tensor], head: Factor) -> list[Tensor]:
        return [head.forward(state[spots]) for state, spots in zip(states, rows.spots, strict=True)]

    fast = draft.loss(features, embeds, rows, logits)
    weighed(fast, judgements).backward()  # type: ignore[no-untyped-call]
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one, other)
    found = by_name(draft)
    if mask != "none":
        assert len(found) == len(expected) >= 12
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected.get(name, torch.zeros_like(gradient)))


def test_what_the_other_rows_compute_reaches_no_loss() -> None:
    draft, wanted = fast_draft(config()), wishes(MASKS["turns"])
    features, embeds = torch.randn(30, 96), torch.randn(30, 32)
    rows = needed(DOCUMENTS, wanted, 15)

    def states(all_states: list[Tensor], _head: Factor) -> list[Tensor]:
        return [state[spots] for state, spots in zip(all_states, rows.spots, strict=True)]

    before = draft.loss(features, embeds, rows, states)
    others = replace(rows, rows=rows.rows.clone())
    dead = torch.tensor([row for row in range(len(rows.rows)) if all(row not in spots for spots in rows.spots)])
    assert len(dead) > 1
    others.rows[dead] = others.rows[dead.flip(0)]
    for one, other in zip(before, draft.loss(features, embeds, others, states), strict=True):
        assert torch.equal(one, other)


def test_a_row_is_unrolled_as_long_as_a_loss_counts_for_it() -> None:
    # Labels at tokens 4 and 5 of one document: step i at p proposes token p + 2 + i
    rows = needed([8], [torch.tensor([2, 3]), torch.tensor([1, 2]), torch.tensor([0, 1])])
    assert rows.alive == (4, 3, 2)
    assert rows.rows.tolist() == [0, 1, 2, 3]
    assert [spots.tolist() for spots in rows.spots] == [[2, 3], [1, 2], [0, 1]]


def test_rows_that_are_needed_longest_come_first_and_fillers_are_rows_that_are_not_needed() -> None:
    rows = needed([5, 3], [torch.tensor([1, 6]), torch.tensor([6])], multiple=4)
    assert rows.alive == (4, 4)
    assert rows.rows.tolist() == [6, 1, 0, 2]
    assert rows.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert rows.starts.tolist() == [0] * 5 + [5] * 3


def test_of_half_a_conversation_half_is_unrolled() -> None:
    length, turn = 2048, 256
    mask = (torch.arange(length) // turn) % 2
    wanted = [mask[2 + step :].nonzero().flatten() for step in range(7)]
    alive = needed([length], wanted).alive
    assert alive[0] <= length // 2 + 4 * 8
    assert alive[6] <= length // 2
