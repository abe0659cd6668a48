"""The replay accepts what a server accepts."""

from typing import Any

import pytest
import torch

from eagle3_draft.features import Sample
from eagle3_draft.model.config import draft_config
from eagle3_draft.model.draft import Draft
from eagle3_draft.train.batches import pack
from eagle3_draft.train.evaluate import survivors
from eagle3_draft.train.loss import Teacher, right_rows
from eagle3_draft.train.replay import accepted, replay
from unit.model.served import ServedDraft
from unit.train import corpus


def test_a_wrong_proposal_ends_the_chain_even_if_later_ones_are_right() -> None:
    right = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
    assert accepted(right, 3).tolist() == [1, 3, 0]
    assert accepted(right, 1).tolist() == [1, 1, 0]


def test_a_chain_survives_as_long_as_all_its_proposals_are_right() -> None:
    right = torch.tensor([[True, True, True], [True, False, True], [False, True, True], [False, False, False]])
    wanted = torch.tensor([[True, True, True], [True, True, True], [True, True, True], [False, True, True]])
    assert survivors(right, wanted).tolist() == [[2, 1, 1], [3, 3, 3]]


@pytest.mark.parametrize(
    ("mask", "chains", "tokens", "steps"),
    [
        # The first token of an answer is the prefill's: 4 tokens, 3 of them by verify steps
        ([0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], 3, 3),
        # From token 2 on, position 1 drafts: two accepted and one of the target's own
        ([0, 0, 1, 1, 1, 1], [0, 2, 0, 0, 0, 0], 3, 1),
        # What is accepted beyond the answer's end does not exist
        ([0, 0, 1, 1, 1, 1], [0, 3, 3, 3, 3, 3], 3, 1),
        ([0, 0, 1, 1, 1, 1, 0], [0, 1, 0, 3, 0, 0, 0], 3, 2),
        # Two answers, each with its own prefill
        ([0, 1, 1, 0, 1, 1, 1], [0, 0, 0, 1, 0, 0, 0], 3, 2),
        # An answer of one token needs no verify step
        ([0, 1, 0], [0, 0, 0], 0, 0),
        ([0, 0], [0, 0], 0, 0),
    ],
)
def test_it_walks_answers_as_a_server_does(mask: list[int], chains: list[int], tokens: int, steps: int) -> None:
    assert replay(chains, mask) == (tokens, steps)


def served(target: Any, draft: ServedDraft, sample: Sample, num_steps: int) -> tuple[int, int]:
    """Tokens of verify steps, and verify steps, of a server that answers greedily: draft, verify, go on."""
    mask = sample.loss_mask.tolist()
    ids = sample.input_ids.tolist()
    first = mask.index(1)
    tokens = ids[: first + 1]  # the prompt, and the prefill's token
    made = steps = 0
    while len(tokens) < len(ids):
        states = target(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        features = torch.cat([states[layer + 1][0] for layer in corpus.LAYERS], -1)
        chain = draft.chain(tokens, features, num_steps)
        verdict = target(torch.tensor([tokens + chain])).logits[0].argmax(-1).tolist()
        before = len(tokens)
        for proposal in chain:
            wanted = verdict[len(tokens) - 1]
            tokens.append(wanted)
            if proposal != wanted:
                break
        else:
            tokens.append(verdict[len(tokens) - 1])
        tokens = tokens[: len(ids)]  # the answer's end
        made += len(tokens) - before
        steps += 1
    assert tokens == ids
    return made, steps


@torch.no_grad()
def test_on_text_of_the_targets_own_the_replay_is_what_a_server_measures() -> None:
    torch.manual_seed(3)
    target = corpus.new_target()
    samples = [corpus.converse(target, answer=14) for _ in range(3)]
    said = torch.cat([sample.input_ids[sample.loss_mask.bool()] for sample in samples]).long()
    said = torch.unique(said)
    rest = torch.tensor([token for token in range(corpus.VOCABULARY) if token not in said])
    ids = torch.cat([said, rest[: 64 - len(said)]]).sort().values

    sizes = draft_config(target.config.to_dict(), layers=corpus.LAYERS, draft_vocabulary_size=64)
    draft = Draft(sizes)
    draft.initialise(0)
    embedding, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    _fit(draft, samples, embedding, head, ids)
    slow = ServedDraft(sizes, dict(draft.state_dict()), embedding, ids)

    lengths = []
    for num_steps in (1, 3):
        walked = torch.zeros(2)
        measured = torch.zeros(2)
        for sample in samples:
            batch = pack([sample], 4)
            logits = draft(batch.features, embedding[batch.input_ids], batch.documents, batch.wanted)
            answers = Teacher(head, ids).labels(batch.teaching)
            proposed = zip(logits, batch.label_rows, strict=True)
            right = batch.table([right_rows(of_step, answers, rows, ids) for of_step, rows in proposed], missing=False)
            walked += torch.tensor(replay(accepted(right, num_steps).tolist(), sample.loss_mask.tolist()))
            measured += torch.tensor(served(target, slow, sample, num_steps))
        assert walked.tolist() == measured.tolist()
        lengths.append((walked[0] / walked[1]).item())
    assert 1.1 < lengths[0] < lengths[1]


@torch.enable_grad()
def _fit(draft: Draft, samples: list[Sample], embedding: torch.Tensor, head: torch.Tensor, ids: torch.Tensor) -> None:
    """Make a draft that is often right, and often wrong."""
    optimizer = torch.optim.AdamW(draft.parameters(), lr=3e-3)
    batch = pack(samples[:2], 2)
    labels = Teacher(head.detach(), ids).soft_labels(batch.teaching)
    for _ in range(20):
        logits = draft(batch.features, embedding.detach()[batch.input_ids], batch.documents, batch.wanted)
        loss = sum(
            torch.nn.functional.cross_entropy(of_step, labels.logits[rows].softmax(-1))
            for of_step, rows in zip(logits, batch.label_rows, strict=True)
        )
        assert isinstance(loss, torch.Tensor)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
