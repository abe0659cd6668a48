"""The converted draft's accuracy on held-out features, against what its trainer said.

A draft of a billion parameters takes a machine without a GPU minutes to ask at every position that its trainer measured, and the
statistics do not need them: positions of one conversation are alike. So a few are asked of each conversation, evenly apart, and
of as many conversations as a bounded work allows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3_api.checkpoints import Finding, Level
from eagle3_api.checkpoints.rules import Rule
from eagle3_api.conditions import Reason
from eagle3_api.jobs import TrainResult
from eagle3_draft.convert.agreement import Agreement, Tally
from eagle3_draft.convert.head import likeliest
from eagle3_draft.convert.proposals import Comparison, Step
from eagle3_draft.features import Sample
from eagle3_draft.model.fast import FastDraft, unroll
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.train.batches import pack, passes
from eagle3_draft.train.held_out import TOKENS as SAMPLE_TOKENS

#: Positions of a conversation that are asked at most.
POSITIONS = 8

#: Multiplications, of which a proposal of a draft with a billion parameters is a billion: two minutes on two cores.
WORK = 6e12

#: Tokens that are computed together: it bounds the memory, and is enough for the processor's speed.
TOKENS = 1024

#: How far accuracies may be apart on what the trainer measured itself, where rounding alone is between them; and how many
#: standard errors more on a part of it, where conversations differ too.
APART, ERRORS_ON_A_PART = 0.03, 3

ACCURACY = Rule(
    "accuracy",
    "its accuracy on held-out features against the trainer's own",
    "a draft that was accepted in training and is not here will not be in serving either",
    "Look into the training's report: it measured another draft, or other features.",
)


@dataclass(frozen=True)
class Asked:
    """What of the held-out sample a draft is asked.

    Attributes:
        samples: conversations, whose loss mask is that of the positions.
        thinned: positions were left out.
    """

    samples: list[Sample]
    thinned: bool


@dataclass(frozen=True)
class Measured:
    """What a draft said there.

    Attributes:
        agreement: with the target.
        steps: with what the trainer recorded, by step; None where it recorded nothing.
    """

    agreement: Agreement
    steps: list[Step] | None


def chosen(draft: FastDraft, samples: Sequence[Sample], steps: int) -> Asked:
    """As many conversations as ``WORK`` allows, at least one, and a few positions of each.

    Args:
        draft: that will be asked.
        samples: the held-out conversations.
        steps: unroll steps.
    """
    per_proposal = sum(parameter.numel() for parameter in draft.parameters())
    last = draft.decoder_layers[-1]
    later = [*last.mlp.parameters(), *last.self_attn.o_proj.parameters(), *draft.lm_head.parameters()]
    per_token = per_proposal - sum(parameter.numel() for parameter in later)
    asked: list[Sample] = []
    work = 0.0
    for sample in samples:
        one = _thinned(sample)
        work += len(one) * per_token + int(one.loss_mask.sum()) * steps * per_proposal
        if asked and work > WORK:
            break
        asked.append(one)
    whole = [*map(_positions, samples)] == [*map(_positions, asked)]
    return Asked(asked, thinned=not whole)


def _positions(sample: Sample) -> int:
    return int(sample.loss_mask.sum())


def _thinned(sample: Sample) -> Sample:
    """At most ``POSITIONS`` of its positions, evenly apart."""
    rows = sample.loss_mask.nonzero().flatten()
    kept = torch.zeros_like(sample.loss_mask)
    kept[rows[:: max(1, math.ceil(len(rows) / POSITIONS))]] = 1
    return replace(sample, loss_mask=kept)


@torch.no_grad()
def measure(
    draft: FastDraft,
    ids: Tensor,
    samples: Sequence[Sample],
    embedding: Tensor,
    steps: int,
    recorded: Sequence[Tensor] | None = None,
) -> Measured:
    """Ask a draft at the positions of the loss mask.

    Args:
        draft: in the type in which it is served, which is the one that is computed in.
        ids: (draft vocabulary,), the target's ids of the tokens that it knows.
        samples: conversations with the target's states.
        embedding: that the draft reads, (vocabulary, hidden).
        steps: unroll steps.
        recorded: of each conversation (tokens, steps), what the trainer's draft proposed there, where that was recorded.
    """
    head, tally = draft.lm_head.weight, Tally(steps)
    dtype, comparison = head.dtype, Comparison(ids, head, steps)
    lengths = [len(sample) for sample in samples]
    progress = ProgressReporter(len(samples), "held-out conversations")
    for part in passes(range(len(samples)), lengths, TOKENS):
        batch = pack([samples[number] for number in part], steps)
        states = unroll(draft, batch.states(dtype), embedding[batch.input_ids].to(dtype), batch.rows)
        asked = [of_step[spots] for of_step, spots in zip(states, batch.rows.spots, strict=True)]
        proposed = [ids[likeliest(of_step, head)] for of_step in asked]
        tally.add(proposed, batch)
        if recorded is not None:
            comparison.add(batch, torch.cat([recorded[number] for number in part]), asked, proposed)
        progress.advance(len(part))
    return Measured(tally.agreement(), None if recorded is None else comparison.steps())


def against_the_trainer(agreement: Agreement, result: TrainResult, asked: Asked) -> Iterator[Finding]:
    """The accuracies of the converted draft here and of the trained one there."""
    if not agreement.positions:
        yield Finding(
            ACCURACY, Level.UNKNOWN, "the held-out sample has no position of an answer to compare accuracies at"
        )
        return
    conversations = len(asked.samples)
    whole = (
        result.held_out <= conversations
        and not asked.thinned
        and all(len(sample) < SAMPLE_TOKENS for sample in asked.samples)
    )
    here, there = agreement.accuracy[0], result.accuracy[0]
    pairs = list(zip(agreement.accuracy, result.accuracy, strict=False))
    steps, apart = len(pairs), max(abs(a - b) for a, b in pairs)
    wrong = any(abs(a - b) > APART + (0 if whole else _sampling(b, conversations)) for a, b in pairs)
    said = (
        f"the first proposals of the converted draft are right in {here:.1%} of {agreement.positions:,} held-out positions, of the "
        f"trained one they were in {there:.1%}; over {steps} steps they are at most {apart:.1%} apart"
    )
    said += "" if whole else f", on {conversations} of the conversations that it was measured on"
    if wrong:
        yield Finding(ACCURACY, Level.REFUSED, said, Reason.PARITY_MISMATCH)
    else:
        yield Finding(ACCURACY, Level.PASSED, said)


def _sampling(accuracy: float, conversations: int) -> float:
    """How far a part of what was measured may be from the whole by chance.

    Binomial, with a conversation as one draw: its positions are alike, and at worst all right or all wrong. Two right and
    two wrong ones are added (Agresti and Coull 1998), else an accuracy of one would have no error.
    """
    draws = conversations + 4
    share = (accuracy * conversations + 2) / draws
    return ERRORS_ON_A_PART * math.sqrt(share * (1 - share) / draws)
