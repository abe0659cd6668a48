"""A server's proposals against the reference's: what the comparison on a GPU is made by."""

import math
from collections.abc import Sequence
from functools import partial

import pytest
import torch

from eagle3_draft.features import Sample
from eagle3_draft.model import Draft
from eagle3_draft.model.config import draft_config
from served.proposals import behind, expected
from unit.train import corpus

STEPS, KNOWN = 3, 64


@pytest.fixture(scope="module")
def sample() -> Sample:
    """Three tokens of a prompt and more of an answer, with the target's states."""
    torch.manual_seed(0)
    return corpus.converse(corpus.new_target())


@pytest.fixture(scope="module")
def reference(sample: Sample) -> partial[list[list[float]]]:
    """``behind`` of a random draft that knows every second token, but for the proposals."""
    target = corpus.new_target()
    draft = Draft(draft_config(target.config.to_dict(), layers=corpus.LAYERS, draft_vocabulary_size=KNOWN))
    draft.initialise(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return partial(behind, draft, torch.arange(KNOWN) * 2, sample, target.get_input_embeddings().weight, 3)


@pytest.fixture(scope="module")
def own(reference: partial[list[list[float]]]) -> list[list[int]]:
    """The reference's proposals, made one after the other."""
    return list(expected(*reference.args, steps=STEPS))


def changed(steps: Sequence[Sequence[int]], number: int, place: int, token: int) -> list[list[int]]:
    made = [list(step) for step in steps]
    made[number][place] = token
    return made


def test_the_references_own_proposals_are_nowhere_behind(
    reference: partial[list[list[float]]], own: list[list[int]], sample: Sample
) -> None:
    found = reference(own)
    assert found == [[0.0] * STEPS] * len(own)
    assert sum(map(len, found)) >= len(sample.input_ids) - 4


def test_another_proposal_is_behind_and_the_chain_goes_on_from_it(
    reference: partial[list[list[float]]], own: list[list[int]]
) -> None:
    other = next(token for token in range(0, 2 * KNOWN, 2) if token not in own[2])
    found = reference(changed(own, 2, 0, other))
    assert found[2][0] > 0
    assert found[:2] == [[0.0] * STEPS] * 2
    assert reference(changed(own, 2, STEPS - 1, other))[2][: STEPS - 1] == [0.0] * (STEPS - 1)


def test_a_token_that_the_draft_cannot_propose_is_infinitely_behind(
    reference: partial[list[list[float]]], own: list[list[int]]
) -> None:
    assert reference(changed(own, 1, 1, 3))[1][1] == math.inf


def test_what_was_proposed_after_the_end_is_left_out(
    reference: partial[list[list[float]]], own: list[list[int]]
) -> None:
    assert reference([*own, own[0]]) == reference(own)
