# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,attr-defined"
"""The loss of ``loss.step_sums`` and its gradient in one pass, without the logits ever lying in memory all at once.

Logits exist for a chunk of labelled positions at a time: the target's once for all steps, the draft's step by step. A kernel
reads both, says how far they are apart and which proposal is the draft's, and leaves the loss's gradient where the
draft's logits were; the products with the head's weight and with the states follow at once. So the forward computes the
gradients, and the backward hands them on.
"""

from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eagle3_api.spec import Loss
from eagle3_draft.features import mapped
from eagle3_draft.features.likeliest_kernel import likeliest
from eagle3_draft.model.factor import Factor
from eagle3_draft.model.rowwise import put_rows, scale
from eagle3_draft.train.batches import Batch
from eagle3_draft.train.loss import CROSS_ENTROPY, LEAST, Labels, StepSums, Teacher, known_mass, known_rows, wide

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU
    triton = tl = None

#: Labelled positions whose logits exist at a time, at most.
CHUNK = 8192

#: Logits that exist at a time, of each of the two, at most: those of as many positions at a draft vocabulary of 32,000. A draft
#: that knows all of its target's tokens has fewer positions in a chunk, not more logits.
LOGITS = CHUNK * 32_000

#: Logits that a program of the kernels has at a time.
BLOCK = 4096


class UnrollLoss(NamedTuple):
    """The loss of one unroll, and its measures. A tuple, because FSDP looks in there for what a backward will start from."""

    loss: Tensor  # (), the weighted sum of the steps' losses; carries the gradient
    sums: StepSums  # without one
    proposed: list[Tensor]  # per step (wanted_i,), the target's ids of the proposals
    right: list[Tensor]  # per step (wanted_i,) bool, whether the proposal is the target's most likely token
    mass: Tensor  # (), sum over the labelled positions of the target's probability of the tokens that the draft knows


def unroll_loss(
    states: list[Tensor],
    head: Factor,
    batch: Batch,
    labels: Labels,
    teacher: Teacher,
    weights: Tensor,
    loss: Loss = CROSS_ENTROPY,
) -> UnrollLoss:
    """The loss and the measures of an unroll.

    Args:
        states: of each step, (alive_i, hidden), in the order of ``batch.rows``.
        head: the draft's, (draft vocabulary, hidden).
        batch: whose positions the states are of.
        labels: of the target at the labelled positions.
        teacher: reads what it says.
        weights: (steps,) float32, what a counted row of each step counts in ``UnrollLoss.loss``.
        loss: what a row's loss is.
    """
    total, losses, mass, *best = _UnrollLoss.apply(
        head.weight, head, batch, labels.known, teacher, weights, loss, *states
    )
    proposed = [teacher.ids[token] for token in best]
    right = [tokens == labels.greedy[rows] for tokens, rows in zip(proposed, batch.label_rows, strict=True)]
    sums = StepSums(
        losses=losses,
        counted=known_rows(labels, batch.label_rows),
        right=torch.stack([of_step.sum() for of_step in right]).to(torch.float32),
        labelled=torch.stack([losses.new_full((), len(rows)) for rows in batch.label_rows]),
    )
    return UnrollLoss(loss=total, sums=sums, proposed=proposed, right=right, mass=mass)


class _UnrollLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        head: Factor,
        batch: Batch,
        known: Tensor,
        teacher: Teacher,
        weights: Tensor,
        loss: Loss,
        *states: Tensor,
    ) -> tuple[Tensor, ...]:
        learning = any(ctx.needs_input_grad)
        of_head = torch.zeros_like(weight) if learning else None
        of_states = [torch.zeros_like(state) for state in states] if learning else []
        losses = [[weights.new_zeros(())] for _ in states]
        best: list[list[Tensor]] = [[rows[:0]] for rows in batch.label_rows]
        mass = weights.new_zeros(())
        size = chunk_rows(len(weight))
        for first in range(0, len(known), size):
            teaching = mapped(batch.teaching, itemgetter(slice(first, first + size)))
            logits = teacher.logits(teaching)
            normaliser = log_sum_exp(logits)
            theirs = TeacherLogits(logits, normaliser, known_mass(normaliser, teaching))
            mass += theirs.mass.sum()
            for step, state in enumerate(states):
                part = batch.between(step, first, first + size)
                rows, spots = batch.label_rows[step][part], batch.rows.spots[step][part]
                if not len(rows):
                    continue
                x = state.index_select(0, spots)
                logits = head.forward(x)
                far, proposals = compare(
                    logits, theirs, rows - first, known[rows] * weights[step], loss, gradient=learning
                )
                losses[step].append((far * known[rows]).sum())
                best[step].append(proposals)
                if of_head is not None:
                    of_head.addmm_(logits.T, x)
                    put_rows(of_states[step], spots, head.backward(logits))
        summed = torch.stack([torch.stack(of_step).sum() for of_step in losses])
        proposed = [torch.cat(of_step) for of_step in best]
        ctx.of_head, ctx.of_states = of_head, of_states
        ctx.mark_non_differentiable(summed, mass, *proposed)
        return (weights * summed).sum(), summed, mass, *proposed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        computed = [ctx.of_head, *ctx.of_states]
        # In place: nobody else has them, and a graph is walked back once
        for gradient in computed:
            scale(gradient, gradients[0])
        del ctx.of_head, ctx.of_states
        return computed[0], None, None, None, None, None, None, *computed[1:]


def chunk_rows(vocabulary: int) -> int:
    """Supervised positions of a chunk, for a draft of so many tokens."""
    return max(1, min(CHUNK, LOGITS // vocabulary))


def log_sum_exp(logits: Tensor) -> Tensor:
    """Of each row, (rows,) float32 or wider."""
    return likeliest(logits)[1] if logits.is_cuda else wide(logits).logsumexp(-1)


@dataclass(frozen=True)
class TeacherLogits:
    """The target's distributions in the rows of a chunk.

    Args:
        logits: (chunk, draft vocabulary), of the tokens that the draft knows.
        normaliser: (chunk,), their log-sum-exp.
        mass: (chunk,), the target's probability of all of them together.
    """

    logits: Tensor
    normaliser: Tensor
    mass: Tensor


def compare(
    logits: Tensor, theirs: TeacherLogits, rows: Tensor, weights: Tensor, loss: Loss, *, gradient: bool
) -> tuple[Tensor, Tensor]:
    """``loss.row_losses``, and the draft's most likely token in each row.

    Args:
        logits: (rows, draft vocabulary), the draft's. With ``gradient`` the loss's gradient, times weight, takes their place.
        theirs: the target's, of a chunk.
        rows: (rows,) int64, which of the chunk each is compared with.
        weights: (rows,) float32, what each row counts in the gradient.
        loss: what is meant by far.
        gradient: whether it is wanted.

    Returns:
        (rows,) float32 or wider, and (rows,) int64.
    """
    by = _compare_by_kernel if logits.is_cuda else _compare_plainly
    return by(logits, theirs, rows, weights, loss, gradient=gradient)


def _compare_by_kernel(
    logits: Tensor, theirs: TeacherLogits, rows: Tensor, weights: Tensor, loss: Loss, *, gradient: bool
) -> tuple[Tensor, Tensor]:
    far = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    best = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    _compare_kernel[(len(logits),)](
        logits,
        theirs.logits,
        theirs.normaliser,
        theirs.mass,
        rows,
        weights,
        far,
        best,
        logits.shape[1],
        loss.eta,
        LEAST,
        DIVERGENCE=loss.kind in ("KL", "LKLambda"),
        ACCEPTANCE=loss.kind in ("LKAlpha", "LKLambda"),
        GRADIENT=gradient,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return far, best


def _compare_plainly(
    logits: Tensor, theirs: TeacherLogits, rows: Tensor, weights: Tensor, loss: Loss, *, gradient: bool
) -> tuple[Tensor, Tensor]:
    log_share = wide(theirs.logits[rows]) - theirs.normaliser[rows, None]
    log_own = wide(logits).log_softmax(-1)
    share, own, best = log_share.exp(), log_own.exp(), logits.argmax(-1)
    far, change = -(share * log_own).sum(-1), own - share
    if loss.kind in ("KL", "LKLambda"):
        far = far + (share * log_share).sum(-1)
    if loss.kind in ("LKAlpha", "LKLambda"):
        told = share * theirs.mass[rows, None]
        accepted = torch.minimum(told, own).sum(-1).clamp(min=LEAST)
        below = own * (own < told)
        rise = below - own * below.sum(-1, keepdim=True)  # the gradient of what is accepted
        if loss.kind == "LKAlpha":
            far, change = -accepted.log(), -rise / accepted[:, None]
        else:
            leading = (-loss.eta * accepted).exp()
            far = leading * far + (1 - leading) * (1 - accepted)
            change = leading[:, None] * change - (1 - leading)[:, None] * rise
    if gradient:
        logits.copy_(change * weights[:, None])
    return far, best


if triton is not None:

    @triton.jit
    def _compare_kernel(
        logits_at,
        teacher_at,
        normaliser_at,
        mass_at,
        rows_at,
        weights_at,
        far_at,
        best_at,
        vocabulary,
        eta,
        least,
        DIVERGENCE: tl.constexpr,
        ACCEPTANCE: tl.constexpr,
        GRADIENT: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0)
        of = tl.load(rows_at + row)
        logits_at += row.to(tl.int64) * vocabulary
        teacher_at += of * vocabulary
        normaliser = tl.load(normaliser_at + of)
        highest = -float("inf")
        total = 0.0
        best = 0
        agreement = tl.zeros([BLOCK], tl.float32)
        for start in range(0, vocabulary, BLOCK):
            token = start + tl.arange(0, BLOCK)
            there = token < vocabulary
            logits = tl.load(logits_at + token, mask=there, other=-float("inf")).to(tl.float32)
            log_share = tl.load(teacher_at + token, mask=there, other=-float("inf")).to(tl.float32) - normaliser
            counterpart = logits - log_share if DIVERGENCE else logits
            agreement += tl.where(there, tl.exp(log_share) * counterpart, 0.0)
            block_highest, block_best = tl.max(logits, 0, return_indices=True)
            best = tl.where(block_highest > highest, start + block_best, best)
            higher = tl.maximum(highest, block_highest)
            total = total * tl.exp(highest - higher) + tl.sum(tl.exp(logits - higher), 0)
            highest = higher
        own = highest + tl.log(total)
        far = own - tl.sum(agreement, 0)
        # What the gradient is made of: so much of own - share, and so much less of what is accepted
        leading = 1.0
        accepting = 0.0
        fallen = 0.0
        mass = 1.0
        if ACCEPTANCE:
            mass = tl.load(mass_at + of)
            accepted = tl.zeros([BLOCK], tl.float32)
            below = tl.zeros([BLOCK], tl.float32)
            for start in range(0, vocabulary, BLOCK):
                token = start + tl.arange(0, BLOCK)
                there = token < vocabulary
                logits = tl.load(logits_at + token, mask=there, other=-float("inf")).to(tl.float32)
                teacher = tl.load(teacher_at + token, mask=there, other=-float("inf")).to(tl.float32)
                said, told = tl.exp(logits - own), tl.exp(teacher - normaliser) * mass
                accepted += tl.minimum(said, told)
                below += tl.where(said < told, said, 0.0)
            alike = tl.maximum(tl.sum(accepted, 0), least)
            fallen = tl.sum(below, 0)
            if DIVERGENCE:
                leading = tl.exp(-eta * alike)
                accepting = 1.0 - leading
                far = leading * far + accepting * (1.0 - alike)
            else:
                leading = 0.0
                accepting = 1.0 / alike
                far = -tl.log(alike)
        tl.store(far_at + row, far)
        tl.store(best_at + row, best.to(tl.int64))
        if GRADIENT:
            weight = tl.load(weights_at + row)
            for start in range(0, vocabulary, BLOCK):
                token = start + tl.arange(0, BLOCK)
                there = token < vocabulary
                logits = tl.load(logits_at + token, mask=there, other=-float("inf")).to(tl.float32)
                teacher = tl.load(teacher_at + token, mask=there, other=-float("inf")).to(tl.float32)
                said, share = tl.exp(logits - own), tl.exp(teacher - normaliser)
                change = leading * (said - share)
                if ACCEPTANCE:
                    rise = tl.where(said < share * mass, said, 0.0) - said * fallen
                    change -= accepting * rise
                tl.store(logits_at + token, (change * weight).to(logits_at.dtype.element_ty), mask=there)
