"""What the draft is taught, and how far it is from it.

The teacher is the target's next-token distribution, restricted to the draft's vocabulary and normalised there; the loss is
its cross-entropy with the draft's. A position whose most likely token the draft does not know teaches nothing: there the
draft can only be wrong. Source: arXiv 2503.01840 and its implementation (SafeAILab/EAGLE, ``traineagle3/cnets.py``),
except that the loss mask is that of the *predicted* token, and that a step's loss is the mean over its counted rows.

What needs the target's whole vocabulary was found when the features were extracted; nothing here multiplies with its head
beyond the tokens that the draft knows.
"""

from copy import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eagle3_draft.features import LastState, Teaching

#: What a step counts less than the one before.
DECAY = 0.8

#: The logit of a token of which ``TopK`` says nothing: its probability is 0 in float32, whatever the others'.
NEVER = -1e4

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

    logits: Tensor  # (taught, draft vocabulary), of the tokens that the draft knows, up to a constant in each row


class Teacher:
    """Reads what the target says in the draft's vocabulary.

    Args:
        head: the target's, (target vocabulary, hidden), of which the rows that the draft knows are kept.
        ids: (draft vocabulary,), the target's ids of the tokens that the draft knows.
    """

    def __init__(self, head: Tensor, ids: Tensor) -> None:
        self.ids = ids
        self._head = head[ids]
        self._places = torch.full((len(head),), -1, dtype=torch.int64, device=head.device)
        self._places[ids] = torch.arange(len(ids), device=head.device)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Teacher":
        """The same on a device, with a head of this type."""
        moved = copy(self)
        moved.ids, moved._places = self.ids.to(device), self._places.to(device)
        moved._head = self._head.to(device, dtype)
        return moved

    @torch.no_grad()
    def teach(self, teaching: Teaching) -> Lesson:
        """The lesson of what the target says at the taught positions."""
        answers = self.answer(teaching)
        return Lesson(greedy=answers.greedy, known=answers.known, logits=self.logits(teaching))

    @torch.no_grad()
    def answer(self, teaching: Teaching) -> Answers:
        """The lesson without its logits."""
        greedy = teaching.greedy.long()
        return Answers(greedy=greedy, known=self._places[greedy] >= 0)

    @torch.no_grad()
    def logits(self, teaching: Teaching) -> Tensor:
        """(rows, draft vocabulary), up to a constant in each row.

        ``TopK`` tells those of its tokens; the others never come.
        """
        if isinstance(teaching, LastState):
            return teaching.state(self._head.dtype) @ self._head.T
        places = self._places[teaching.top_tokens.long()]
        told = teaching.top_log_probabilities.masked_fill(places < 0, NEVER)
        logits = torch.full((len(told), len(self.ids)), NEVER, dtype=told.dtype, device=told.device)
        return logits.scatter_reduce_(1, places.clamp(min=0), told, "amax")


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
