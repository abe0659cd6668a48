"""The unroll of ``Draft`` as training runs it: the same mathematics as ``Draft.forward``, which is its reference.

What it does otherwise:

- only rows that still carry loss are unrolled (``rows``);
- the half of the query, key and value projections that reads the token's embedding is multiplied once: it depends on the
  token alone, and the steps only shift it;
- projections of one input are one matrix product, and a matrix's gradient is summed over the steps where it is made;
- the causal part of attention is a fused kernel's, and each step's own diagonal is merged into it (``diagonal``);
- the steps' products may have operands in FP8 (``factor``);
- on a GPU what lies between the matrix products is compiled.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor

from eagle3_draft.model import elementwise_kernel
from eagle3_draft.model.causal import first_keys
from eagle3_draft.model.diagonal import Chain
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.factor import Factor
from eagle3_draft.model.rope import inverse_frequencies, rotate, rotation
from eagle3_draft.model.rows import Rows
from eagle3_draft.model.rowwise import add_rows

T = TypeVar("T")

#: Rows of a step, and tokens of a pack, are a multiple of this on a GPU: the block of its kernels.
GPU_MULTIPLE = 128


class FastDraft(Draft):
    """A draft that can also be unrolled fast."""

    def taught(
        self,
        features: Tensor,
        embeds: Tensor,
        rows: Rows,
        judge: Callable[[list[Tensor], Factor], T],
        factor: type[Factor] = Factor,
    ) -> T:
        """What ``judge`` makes of the unroll: of each step's states (alive_i, hidden), which ``lm_head`` multiplies,
        and of ``lm_head``'s weight (draft vocabulary, hidden).

        The judge is called in here because where parameters are sharded, they are whole inside a forward only.

        Args:
            features: (tokens, layers x target hidden).
            embeds: (tokens, hidden), the embedding of each token itself.
            rows: what is wanted of which documents.
            judge: must use the states of every step.
            factor: how the matrices of the steps multiply. What is multiplied once for all of them does so exactly.
        """
        return judge(unroll(self, features, embeds, rows, factor), factor(self.lm_head.weight))


def unroll(draft: Draft, features: Tensor, embeds: Tensor, rows: Rows, factor: type[Factor] = Factor) -> list[Tensor]:
    """Final-normed states of each step, (alive_i, hidden), in the order of ``rows``."""
    layer, attention = draft.midlayer, draft.midlayer.self_attn
    width, tokens = draft.config.hidden_size, len(features)
    heads, kv_heads = draft.config.heads, draft.config.kv_heads
    inputs = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    project = Reused(factor(torch.cat([weight[:, width:] for weight in inputs])))
    mix = Reused(factor(attention.o_proj.weight))
    widen = Reused(factor(torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])))
    narrow = Reused(factor(layer.mlp.down_proj.weight))

    of_token = Table(F.linear(layer.input_layernorm(embeds), torch.cat([weight[:, :width] for weight in inputs])))
    frequencies = inverse_frequencies(draft.config).to(features.device)
    everywhere = torch.arange(tokens, device=features.device)

    # The first step's keys and values are those of all rows
    reduced = draft.reduce(features)
    cosines, sines = rotation(frequencies, rows.positions)
    projected = project(layer.hidden_norm(reduced), plus=of_token.pick((everywhere + 1) % tokens))
    query, key, value = fused(split_and_turn, projected)(projected, cosines, sines, heads, kv_heads)
    causal = first_keys(key, value, rows)
    query, hidden = Table(query).pick(rows.rows), Table(reduced).pick(rows.rows)

    states: list[Tensor] = []
    chain = Chain(len(rows.alive) - 1, key, rows.alive[0])
    into = torch.empty(0)
    for step, alive in enumerate(rows.alive):
        if step:
            hidden, into = hidden[:alive], into[:alive]
            present = rows.rows[:alive]
            cosines, sines = rotation(frequencies, rows.positions[present] + step)
            projected = project(into, plus=of_token.pick((present + 1 + step) % tokens))
            query, key, value = fused(split_and_turn, projected)(projected, cosines, sines, heads, kv_heads)
            chain.append(key, value)
        attended = causal.attend(query, chain)
        mixed = mix(attended.flatten(1))
        hidden, inside = fused(add_and_norm, mixed)(
            hidden, mixed, layer.post_attention_layernorm.weight, draft.config.rms_norm_eps
        )
        out = narrow(gate(widen(inside)))
        hidden, into, state = fused(add_and_norm_twice, out)(
            hidden, out, layer.hidden_norm.weight, draft.norm.weight, draft.config.rms_norm_eps
        )
        states.append(state)
    return states


## What is between the matrix products ------------------------------------------------------------------------------


def split_and_turn(
    projected: Tensor, cosines: Tensor, sines: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys (both turned to their positions) and values out of one projection, (rows, heads, head_dim) each."""
    apart = projected.view(len(projected), heads + 2 * kv_heads, -1)
    query, key, value = torch.split(apart, [heads, kv_heads, kv_heads], 1)
    return rotate(query, cosines, sines), rotate(key, cosines, sines), value.contiguous()


def add_and_norm(hidden: Tensor, change: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream after a change, and its norm."""
    hidden = hidden + change
    return hidden, F.rms_norm(hidden, weight.shape, weight, eps)


def gated(wide: Tensor) -> Tensor:
    """``silu(gate) * up``: (rows, 2 intermediate) -> (rows, intermediate)."""
    first, second = wide.chunk(2, -1)
    return F.silu(first) * second


def gate(wide: Tensor) -> Tensor:
    """``gated``, whose gradient has a kernel on a GPU."""
    if not wide.is_cuda:
        return gated(wide)
    out: Tensor = _Gate.apply(wide)  # type: ignore[no-untyped-call]
    return out


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wide: Tensor) -> Tensor:
        ctx.save_for_backward(wide)
        return fused(gated, wide)(wide)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (wide,) = ctx.saved_tensors
        return elementwise_kernel.gate_backward(gradients[0], wide)


def add_and_norm_twice(
    hidden: Tensor, change: Tensor, weight: Tensor, final: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The residual stream after a change, its norm for the next step, and that for the head."""
    hidden = hidden + change
    return hidden, F.rms_norm(hidden, weight.shape, weight, eps), F.rms_norm(hidden, final.shape, final, eps)


def fused(function: Callable[..., T], where: Tensor) -> Callable[..., T]:
    """The function, compiled where its tensors are on a GPU."""
    return _compiled(function) if where.is_cuda else function


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function)
    return compiled


## Matrices and rows that several steps use --------------------------------------------------------------------------


class Reused:
    """A matrix (out, in) that multiplies several inputs in one forward.

    Its gradient is summed in place, product by product, instead of by additions of whole gradients afterwards. Only the
    last product of the backward hands the sum on, so the gradient of every product's result must be asked for.
    """

    def __init__(self, factor: Factor) -> None:
        self.factor = factor
        self.uses = 0
        self.sum: Tensor | None = None

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """``x @ weight.T + plus``: (rows, in) -> (rows, out). It takes the place of ``plus``."""
        out: Tensor = _Multiply.apply(x, self.factor.weight, plus, self)  # type: ignore[no-untyped-call]
        return out

    def add(self, gradient: Tensor, x: Tensor) -> Tensor | None:
        """Add one product's gradient; returns the sum when it is complete."""
        if self.sum is None:
            self.sum = gradient.T @ x
        else:
            self.sum.addmm_(gradient.T, x)
        self.uses -= 1
        return None if self.uses else self.sum


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, _weight: Tensor, plus: Tensor | None, reused: Reused) -> Tensor:
        ctx.save_for_backward(x)
        ctx.reused, ctx.plus = reused, plus is not None
        if ctx.needs_input_grad[1]:
            reused.uses += 1
        if plus is not None:
            ctx.mark_dirty(plus)
        return reused.factor.forward(x, plus)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        (gradient,) = gradients
        (x,) = ctx.saved_tensors
        of_x = ctx.reused.factor.backward(gradient)
        return of_x, ctx.reused.add(gradient, x), gradient if ctx.plus else None, None


class Table:
    """Rows (tokens, width) of which several steps pick some. Its gradient is summed in place, as ``Reused``'s is."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.uses = 0
        self.sum: Tensor | None = None

    def pick(self, rows: Tensor) -> Tensor:
        """``table[rows]``, none of them twice."""
        picked: Tensor = _Pick.apply(self.rows, rows, self)  # type: ignore[no-untyped-call]
        return picked

    def add(self, gradient: Tensor, rows: Tensor, like: tuple[int, ...]) -> Tensor | None:
        """Add the gradient of some rows; returns the sum when it is complete."""
        if self.sum is None:
            self.sum = gradient.new_zeros(like)
        add_rows(self.sum, rows, gradient)
        self.uses -= 1
        return None if self.uses else self.sum


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, from_rows: Tensor, rows: Tensor, table: Table) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.table, ctx.like = table, from_rows.shape
        if ctx.needs_input_grad[0]:
            table.uses += 1
        return from_rows.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (rows,) = ctx.saved_tensors
        return ctx.table.add(gradients[0], rows, ctx.like), None, None
