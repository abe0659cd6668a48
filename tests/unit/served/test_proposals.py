"""A server's proposals against the reference's: what the comparison on a GPU is made by."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch

from eagle3_draft.features import Sample
from eagle3_draft.model.config import draft_config
from eagle3_draft.model.draft import Draft
from served.proposals import behind, expected
from unit.model.served import ServedDraft
from unit.train import corpus

PROMPT, STEPS, KNOWN = 3, 3, 64
IDS = torch.arange(KNOWN) * 2

Compare = Callable[[Sequence[Sequence[int]]], list[list[float]]]


@pytest.fixture(scope="module")
def target() -> torch.nn.Module:
    torch.manual_seed(0)
    made: torch.nn.Module = corpus.new_target()
    return made


@pytest.fixture(scope="module")
def sample(target: torch.nn.Module) -> Sample:
    """A prompt and an answer, with the target's states."""
    return corpus.converse(target)


@pytest.fixture(scope="module")
def draft(target: torch.nn.Module) -> Draft:
    """A random one that knows every second token."""
    config = corpus.new_target().config.to_dict()
    made = Draft(draft_config(config, layers=corpus.LAYERS, draft_vocabulary_size=KNOWN))
    made.initialise(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return made


@pytest.fixture(scope="module")
def embedding(target: torch.nn.Module) -> torch.Tensor:
    return target.get_parameter("model.embed_tokens.weight").detach()


@pytest.fixture(scope="module")
def compare(draft: Draft, sample: Sample, embedding: torch.Tensor) -> Compare:
    return partial(behind, draft, IDS, sample, embedding, PROMPT)


@pytest.fixture(scope="module")
@torch.no_grad()
def own(draft: Draft, sample: Sample, embedding: torch.Tensor) -> list[list[int]]:
    """What a server with this draft proposes, a token at a time."""
    server = ServedDraft(draft.config, dict(draft.state_dict()), embedding, IDS)
    tokens, known, steps = sample.input_ids.tolist(), PROMPT, []
    while known < len(tokens) - 1:
        steps.append(server.chain(tokens[: known + 1], sample.hidden, STEPS))
        known += 1 + next(
            (n for n, token in enumerate(steps[-1]) if tokens[known + 1 + n : known + 2 + n] != [token]), STEPS
        )
    return steps


def changed(steps: Sequence[Sequence[int]], number: int, place: int, token: int) -> list[list[int]]:
    made = [list(step) for step in steps]
    made[number][place] = token
    return made


def test_the_proposals_of_a_server_that_runs_the_same_draft_are_nowhere_behind(
    compare: Compare, own: list[list[int]], draft: Draft, sample: Sample, embedding: torch.Tensor
) -> None:
    assert compare(own) == [[0.0] * STEPS] * len(own)
    assert list(expected(draft, IDS, sample, embedding, PROMPT, STEPS)) == own


def test_another_proposal_is_behind_and_the_chain_goes_on_from_it(compare: Compare, own: list[list[int]]) -> None:
    other = next(token for token in range(0, 2 * KNOWN, 2) if token not in own[2])
    found = compare(changed(own, 2, 0, other))
    assert found[2][0] > 0
    assert found[:2] == [[0.0] * STEPS] * 2
    assert compare(changed(own, 2, STEPS - 1, other))[2][: STEPS - 1] == [0.0] * (STEPS - 1)


def test_a_token_that_the_draft_cannot_propose_is_infinitely_behind(compare: Compare, own: list[list[int]]) -> None:
    assert compare(changed(own, 1, 1, 3))[1][1] == math.inf


def test_what_was_proposed_after_the_end_is_left_out(compare: Compare, own: list[list[int]]) -> None:
    assert compare([*own, own[0]]) == compare(own)
