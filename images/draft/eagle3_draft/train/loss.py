"""What the draft is taught, and how far it is from it.

The teacher is the target's next-token distribution, restricted to the draft's vocabulary and normalised there; the loss is
its cross-entropy with the draft's. A position whose most likely token the draft does not know teaches nothing: there the
draft can only be wrong. Source: arXiv 2503.01840 and its implementation (SafeAILab/EAGLE, ``traineagle3/cnets.py``),
except that the loss mask is that of the *predicted* token, and that a step's loss is the mean over its counted rows.

A row of the target's head is a token, 128 thousand and more; tensors of (positions, target vocabulary) never exist.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: What a step counts less than the one before.
DECAY = 0.8

#: Rows of the target's head that are multiplied together when its most likely token is looked for.
VOCABULARY_CHUNK = 16384

#: Rows of logits whose loss is computed together, in float32.
ROW_CHUNK = 2048


@dataclass(frozen=True)
class Answers:
    """What the target would say at the taught positions."""

    greedy: Tensor  # (taught,) int64, its most likely token, of its whole vocabulary
    known: Tensor  # (taught,) bool, whether the draft knows that token


@dataclass(frozen=True)
class Lesson(Answers):
    """And how likely it finds what."""

    logits: Tensor  # (taught, draft vocabulary), its logits of the tokens that the draft knows


class Teacher:
    """The target's head.

    Args:
        head: (target vocabulary, hidden).
        ids: (draft vocabulary,), the target's ids of the tokens that the draft knows.
    """

    def __init__(self, head: Tensor, ids: Tensor) -> None:
        self._head = head
        self.draft_rows = head[ids]
        self._members = torch.zeros(len(head), dtype=torch.bool, device=head.device)
        self._members[ids] = True

    @torch.no_grad()
    def teach(self, last: Tensor) -> Lesson:
        """The lesson of final-normed hidden states: (taught, hidden)."""
        answers = self.answer(last)
        logits = last.to(self._head.dtype) @ self.draft_rows.T
        return Lesson(greedy=answers.greedy, known=answers.known, logits=logits)

    @torch.no_grad()
    def answer(self, last: Tensor, greedy: Tensor | None = None) -> Answers:
        """The lesson without its logits; if ``greedy`` was taken down before, without the head's whole vocabulary."""
        if greedy is None:
            greedy = most_likely(last.to(self._head.dtype), self._head)
        return Answers(greedy=greedy, known=self._members[greedy])


def most_likely(last: Tensor, head: Tensor, chunk: int = VOCABULARY_CHUNK) -> Tensor:
    """Arg-max of ``last @ head.T`` over the vocabulary: (rows,) int64. Of equal ones the lowest id, as the server takes."""
    best = torch.full((len(last),), float("-inf"), dtype=last.dtype, device=last.device)
    token = torch.zeros(len(last), dtype=torch.int64, device=last.device)
    for start in range(0, len(head), chunk):
        value, index = (last @ head[start : start + chunk].T).max(-1)
        better = value > best
        best = torch.where(better, value, best)
        token = torch.where(better, index + start, token)
    return token


def soft_cross_entropy(logits: Tensor, teacher: Tensor) -> Tensor:
    """Cross-entropy of the draft's distribution with the teacher's, row by row.

    Args:
        logits: (rows, draft vocabulary), the draft's.
        teacher: as ``logits``, the target's.

    Returns:
        (rows,) float32.
    """
    return torch.cat(
        [
            # Only the logits are kept for backward, not their float32 copies
            checkpoint(
                _soft_cross_entropy,
                logits[start : start + ROW_CHUNK],
                teacher[start : start + ROW_CHUNK],
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for start in range(0, max(len(logits), 1), ROW_CHUNK)
        ]
    )


def _soft_cross_entropy(logits: Tensor, teacher: Tensor) -> Tensor:
    return F.cross_entropy(wide(logits), wide(teacher).softmax(-1), reduction="none")


def wide(x: Tensor) -> Tensor:
    """The same in float32, unless it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True)
class Marks:
    """How one unroll did: sums over this rank's rows, one number per step each."""

    losses: Tensor  # (steps,) float32, sum over counted rows; carries the gradient
    counted: Tensor  # (steps,) rows whose teacher's token the draft knows
    right: Tensor  # (steps,) proposals that are the target's most likely token
    supervised: Tensor  # (steps,) rows; those that are not counted are wrong


def known_rows(lesson: Answers, teachers: list[Tensor]) -> Tensor:
    """Rows that the loss counts, per step: (steps,) float32."""
    return torch.stack([lesson.known[rows].sum() for rows in teachers]).to(torch.float32)


def mark(logits: list[Tensor], lesson: Lesson, teachers: list[Tensor], ids: Tensor) -> Marks:
    """Mark the logits of each step, (rows_i, draft vocabulary), by the lesson's rows that ``teachers`` names."""
    losses, right, supervised = [], [], []
    for of_step, rows in zip(logits, teachers, strict=True):
        losses.append((soft_cross_entropy(of_step, lesson.logits[rows]) * lesson.known[rows]).sum())
        right.append(right_rows(of_step, lesson, rows, ids).sum())
        supervised.append(len(rows))
    return Marks(
        losses=torch.stack(losses),
        counted=known_rows(lesson, teachers),
        right=torch.stack(right).to(torch.float32),
        supervised=torch.tensor(supervised, dtype=torch.float32, device=losses[0].device),
    )


def right_rows(logits: Tensor, answers: Answers, rows: Tensor, ids: Tensor) -> Tensor:
    """(rows,) bool: whether a step's proposals are the target's most likely tokens."""
    return ids[logits.argmax(-1)] == answers.greedy[rows]


def total_loss(losses: Tensor, counted: Tensor) -> Tensor:
    """The loss of an unroll: the mean over counted rows of each step, steps weighted by powers of ``DECAY``.

    Args:
        losses: (steps,), sums over the rows.
        counted: (steps,), the rows of all ranks together.
    """
    weights = DECAY ** torch.arange(len(losses), dtype=losses.dtype, device=losses.device)
    return (weights * losses / counted.clamp(min=1)).sum()
