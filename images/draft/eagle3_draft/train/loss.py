"""The loss of training-time test, plainly, and the labels that it takes.

The teacher is the target's next-token distribution, restricted to the draft's vocabulary and normalised there; the loss is
its cross-entropy with the draft's. A position whose most likely token the draft does not know teaches nothing: there the
draft can only be wrong. Source: arXiv 2503.01840 and its implementation (SafeAILab/EAGLE, ``traineagle3/cnets.py``),
except that the loss mask is that of the *predicted* token, and that a step's loss is the mean over its counted rows.

A server that samples accepts a proposal with probability min(1, p / q): over all tokens, with the sum of min(p, q), p the
target's distribution over its whole vocabulary and q the draft's. The LK losses make that probability large (arXiv
2602.23881): ``LKAlpha`` its negative logarithm, ``LKLambda`` its distance to 1 beside the Kullback-Leibler divergence, which
leads while the two are far apart. The paper weighs the two by the acceptance of a whole batch; here each position has its own.

What needs the target's whole vocabulary was found when the features were extracted; nothing here multiplies with its head
beyond the tokens that the draft knows.
"""

from copy import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eagle3_api.spec import Loss
from eagle3_draft.features import LastState, Teaching

#: The loss of EAGLE-3.
CROSS_ENTROPY = Loss()

#: A probability of acceptance has no logarithm below.
LEAST = 1e-20

#: The logit of a token of which ``TopK`` says nothing: its probability is 0 in float32, whatever the others'.
NEVER = -1e4

#: Rows of logits whose loss is computed together, in float32.
ROW_CHUNK = 2048


@dataclass(frozen=True)
class Labels:
    """What the target would say at the labelled positions: hard labels."""

    greedy: Tensor  # (labelled,) int64, its most likely token, of its whole vocabulary
    known: Tensor  # (labelled,) bool, whether the draft knows that token


@dataclass(frozen=True)
class SoftLabels(Labels):
    """And how likely it finds which token."""

    logits: Tensor  # (labelled, draft vocabulary), of the tokens that the draft knows, up to a constant in each row
    mass: Tensor  # (labelled,), its probability of the tokens that the draft knows


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

    @property
    def knows(self) -> Tensor:
        """(target vocabulary,) bool, the tokens that the draft knows."""
        return self._places >= 0

    @torch.no_grad()
    def soft_labels(self, teaching: Teaching) -> SoftLabels:
        """The distributions of the target at the labelled positions."""
        hard = self.labels(teaching)
        logits = self.logits(teaching)
        mass = known_mass(wide(logits).logsumexp(-1), teaching)
        return SoftLabels(greedy=hard.greedy, known=hard.known, logits=logits, mass=mass)

    @torch.no_grad()
    def labels(self, teaching: Teaching) -> Labels:
        """The target's most likely tokens at the labelled positions."""
        greedy = teaching.greedy.long()
        return Labels(greedy=greedy, known=self._places[greedy] >= 0)

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


def known_mass(log_normaliser: Tensor, teaching: Teaching) -> Tensor:
    """The target's probability of the tokens that the draft knows, (rows,).

    Args:
        log_normaliser: (rows,), log-sum-exp of its logits of these.
        teaching: which has that of all of them.
    """
    return (log_normaliser - teaching.log_normaliser).exp().clamp(max=1)


def row_losses(logits: Tensor, teacher: Tensor, mass: Tensor, loss: Loss = CROSS_ENTROPY) -> Tensor:
    """The loss of each row: how far the draft's distribution is from the teacher's.

    Args:
        logits: (rows, draft vocabulary), the draft's.
        teacher: as ``logits``, the target's.
        mass: (rows,), the target's probability of all of these tokens.
        loss: what is meant by far.

    Returns:
        (rows,) float32.
    """
    return torch.cat(
        [
            # Only the logits are kept for backward, not their float32 copies
            checkpoint(
                _row_losses,
                logits[start : start + ROW_CHUNK],
                teacher[start : start + ROW_CHUNK],
                mass[start : start + ROW_CHUNK],
                loss,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for start in range(0, max(len(logits), 1), ROW_CHUNK)
        ]
    )


def _row_losses(logits: Tensor, teacher: Tensor, mass: Tensor, loss: Loss) -> Tensor:
    target = wide(teacher).softmax(-1)
    cross_entropy = F.cross_entropy(wide(logits), target, reduction="none")
    if loss.kind == "CrossEntropy":
        return cross_entropy
    divergence = cross_entropy + (target * wide(teacher).log_softmax(-1)).sum(-1)
    if loss.kind == "KL":
        return divergence
    accepted = torch.minimum(target * mass[:, None], wide(logits).softmax(-1)).sum(-1).clamp(min=LEAST)
    if loss.kind == "LKAlpha":
        return -accepted.log()
    leading = (-loss.eta * accepted.detach()).exp()
    return leading * divergence + (1 - leading) * (1 - accepted)


def wide(x: Tensor) -> Tensor:
    """The same in float32, unless it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True)
class StepSums:
    """What one unroll adds up to: sums over this rank's rows, one number per step each."""

    losses: Tensor  # (steps,) float32, sum over counted rows; carries the gradient
    counted: Tensor  # (steps,) rows whose teacher's token the draft knows
    right: Tensor  # (steps,) proposals that are the target's most likely token
    labelled: Tensor  # (steps,) rows that have a label; where the draft does not know it, the proposal is wrong


def known_rows(labels: Labels, label_rows: list[Tensor]) -> Tensor:
    """Rows that the loss counts, per step: (steps,) float32."""
    return torch.stack([labels.known[rows].sum() for rows in label_rows]).to(torch.float32)


def step_sums(
    logits: list[Tensor], labels: SoftLabels, label_rows: list[Tensor], ids: Tensor, loss: Loss = CROSS_ENTROPY
) -> StepSums:
    """The plain loss and measures of an unroll.

    Args:
        logits: of each step, (rows_i, draft vocabulary).
        labels: of the target.
        label_rows: of each step, (rows_i,), which of the labels is that of each row.
        ids: as of ``Teacher``.
        loss: what a row's loss is.
    """
    losses, right, labelled = [], [], []
    for of_step, rows in zip(logits, label_rows, strict=True):
        of_rows = row_losses(of_step, labels.logits[rows], labels.mass[rows], loss)
        losses.append((of_rows * labels.known[rows]).sum())
        right.append(right_rows(of_step, labels, rows, ids).sum())
        labelled.append(len(rows))
    return StepSums(
        losses=torch.stack(losses),
        counted=known_rows(labels, label_rows),
        right=torch.stack(right).to(torch.float32),
        labelled=torch.tensor(labelled, dtype=torch.float32, device=losses[0].device),
    )


def right_rows(logits: Tensor, labels: Labels, rows: Tensor, ids: Tensor) -> Tensor:
    """(rows,) bool: whether a step's proposals are the target's most likely tokens."""
    return ids[logits.argmax(-1)] == labels.greedy[rows]


def step_weights(counted: Tensor, loss: Loss = CROSS_ENTROPY) -> Tensor:
    """What a counted row of each step counts in the loss of an unroll, (steps,): a step is the mean over its rows.

    Args:
        counted: (steps,), the rows of all ranks together.
        loss: says what a step counts less than the one before.
    """
    weights = loss.decay ** torch.arange(len(counted), dtype=counted.dtype, device=counted.device)
    if loss.normalised:
        weights = weights / weights.sum()
    return weights / counted.clamp(min=1)


def total_loss(losses: Tensor, counted: Tensor, loss: Loss = CROSS_ENTROPY) -> Tensor:
    """The loss of an unroll, as ``step_weights`` says.

    Args:
        losses: (steps,), sums over the rows.
        counted: (steps,), the rows of all ranks together.
        loss: says what a step counts less than the one before.
    """
    return (step_weights(counted, loss) * losses).sum()
