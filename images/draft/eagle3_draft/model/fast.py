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
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor, nn

from eagle3_draft.model import elementwise_kernel
from eagle3_draft.model.causal import first_keys
from eagle3_draft.model.config import DraftConfig, Latent
from eagle3_draft.model.diagonal import Chain
from eagle3_draft.model.draft import Draft, HeadAttention, Layer
from eagle3_draft.model.factor import Factor
from eagle3_draft.model.latent import LatentAttention, heads_of, padded
from eagle3_draft.model.reused import Reused, Table
from eagle3_draft.model.rope import Rotary, rotate
from eagle3_draft.model.rows import Rows
from eagle3_draft.model.rowwise import beginning

T = TypeVar("T")

#: Rows of a step, and tokens of a pack, are a multiple of this on a GPU: the block of its kernels.
GPU_MULTIPLE = 128

#: Cosines and sines, as ``Rotary.at`` gives them.
Turn = tuple[Tensor, Tensor]


class Head(nn.Linear):
    """The matrix that makes logits of states. What it is entered by is a method, so that it can be sharded by itself."""

    def loss(self, states: list[Tensor], criterion: Callable[[list[Tensor], Factor], T], factor: type[Factor]) -> T:
        """What a criterion makes of states and of the matrix."""
        return criterion(states, factor(self.weight))


class FastDraft(Draft):
    """A draft that can also be unrolled fast."""

    lm_head: Head
    head_type = Head

    def __init__(self, config: DraftConfig) -> None:
        super().__init__(config)
        self._rotary: Rotary | None = None

    def rotary(self, device: torch.device) -> Rotary:
        """Its rotary embedding, made once: a step that copies numbers to a GPU waits until the one before is done."""
        if self._rotary is None or self._rotary.device != device:
            self._rotary = Rotary(self.config, device)
        return self._rotary

    def loss(
        self,
        features: Tensor,
        embeds: Tensor,
        rows: Rows,
        criterion: Callable[[list[Tensor], Factor], T],
        factor: type[Factor] = Factor,
    ) -> T:
        """What a criterion makes of the unroll: of each step's states (alive_i, hidden), which ``lm_head`` multiplies,
        and of ``lm_head``'s weight (draft vocabulary, hidden).

        It is called in here because where parameters are sharded, they are whole inside a forward only.

        Args:
            features: (tokens, layers x target hidden).
            embeds: (tokens, hidden), the embedding of each token itself.
            rows: what is wanted of which documents.
            criterion: must use the states of every step.
            factor: how the matrices of the steps multiply. What is multiplied once for all of them does so exactly.
        """
        return self.lm_head.loss(unroll(self, features, embeds, rows, factor), criterion, factor)


def unroll(
    draft: FastDraft, features: Tensor, embeds: Tensor, rows: Rows, factor: type[Factor] = Factor
) -> list[Tensor]:
    """Final-normed states of each step, (alive_i, hidden), in the order of ``rows``."""
    layers = [FastLayer(layer, draft.config, factor) for layer in draft.decoder_layers]
    first, last = layers[0], layers[-1]
    of_token = first.of_token(embeds)
    rotary = draft.rotary(features.device)

    # The first step's keys and values are those of all rows, and so is what one layer hands to the next there
    hidden = draft.reduce(features)
    into, turn = first.layer.hidden_norm(hidden), rotary.at(rows.positions)
    everywhere = torch.arange(len(features), device=features.device)
    plus: Tensor | None = of_token.pick((everywhere + 1) % len(features))
    for layer, following in pairwise(layers):
        hidden, into = layer.pass_on(hidden, layer.attend_everywhere(layer.begin(into, plus, turn, rows)), following)
        plus = None
    query = last.begin(into, plus, turn, rows)
    query, hidden = Table(query).pick(rows.rows), Table(hidden).pick(rows.rows)

    states: list[Tensor] = []
    for step, alive in enumerate(rows.alive):
        if step:
            hidden, into = beginning(hidden, alive), beginning(into, alive)
            present = rows.rows[:alive]
            turn = rotary.at(rows.positions[present] + step)
            plus = of_token.pick((present + 1 + step) % len(features))
            for layer, following in pairwise(layers):
                hidden, into = layer.pass_on(hidden, layer.attend(layer.go_on(into, plus, turn)), following)
                plus = None
            query = last.go_on(into, plus, turn)
        hidden, into, state = last.end(hidden, last.attend(query), first, draft)
        states.append(state)
    return states


class FastLayer:
    """A decoder layer in one unroll: its matrices, and its keys and values of the steps so far."""

    def __init__(self, layer: Layer, config: DraftConfig, factor: type[Factor]) -> None:
        self.layer = layer
        self.eps = config.rms_norm_eps
        attention = layer.self_attn
        self.heads: Heads | LatentHeads = (
            LatentHeads(attention, config, factor)
            if isinstance(attention, LatentAttention)
            else Heads(attention, config, factor)
        )
        self.mix = Reused(factor(layer.self_attn.o_proj.weight))
        self.widen = Reused(factor(torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])))
        self.narrow = Reused(factor(layer.mlp.down_proj.weight))

    def of_token(self, embeds: Tensor) -> Table:
        """Of each token, what its embedding adds to the projections of the first layer."""
        assert self.layer.input_layernorm is not None  # noqa: S101  it is the first
        return self.heads.of_token(self.layer.input_layernorm(embeds))

    def begin(self, into: Tensor, plus: Tensor | None, turn: Turn, rows: Rows) -> Tensor:
        """The first step, for all rows of the pack: keeps their keys and values, returns their queries.

        Args:
            into: (tokens, hidden), normed.
            plus: of the tokens' embeddings, of the first layer alone.
            turn: of the rows' positions.
            rows: that the steps are for.
        """
        query, key, value = self.heads(into, plus, turn)
        self.everyone = replace(rows, rows=torch.arange(len(key), device=key.device))
        self.keys, self.values = key, value
        self.causal = first_keys(key, value, rows)
        self.chain = Chain(len(rows.alive) - 1, key, rows.alive[0])
        return query

    def go_on(self, into: Tensor, plus: Tensor | None, turn: Turn) -> Tensor:
        """A later step, for the rows that are alive: as ``begin``."""
        query, key, value = self.heads(into, plus, turn)
        self.chain.append(key, value)
        return query

    def attend(self, query: Tensor) -> Tensor:
        """What rows that are alive read: (alive, heads, head_dim)."""
        return self.causal.attend(query, self.chain)

    def attend_everywhere(self, query: Tensor) -> Tensor:
        """What all rows read in the first step: (tokens, heads, head_dim)."""
        return first_keys(self.keys, self.values, self.everyone).attend(query, Chain(0, self.keys, 0))

    def pass_on(self, hidden: Tensor, attended: Tensor, following: "FastLayer") -> tuple[Tensor, Tensor]:
        """The residual stream after this layer, and its norm for the following one."""
        hidden, out = self._change(hidden, attended)
        return fused(add_and_norm, out)(hidden, out, following.layer.hidden_norm.weight, self.eps)

    def end(self, hidden: Tensor, attended: Tensor, first: "FastLayer", draft: Draft) -> tuple[Tensor, Tensor, Tensor]:
        """After the last layer: what the next step's residual stream begins with, its norm, and the state for the head."""
        hidden, out = self._change(hidden, attended)
        finish = add_and_norm_in_turn if draft.config.norm_output else add_and_norm_twice
        return fused(finish, out)(hidden, out, first.layer.hidden_norm.weight, draft.norm.weight, self.eps)

    def _change(self, hidden: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream after attention, and what the feed-forward network adds to it."""
        mixed = self.mix(attended[..., : self.heads.value_width].flatten(1))
        if self.layer.self_attn.o_proj.bias is not None:
            mixed = mixed + self.layer.self_attn.o_proj.bias
        hidden, inside = fused(add_and_norm, mixed)(hidden, mixed, self.layer.post_attention_layernorm.weight, self.eps)
        return hidden, self.narrow(gate(self.widen(inside)))


class Heads:
    """Queries, keys and values of ``HeadAttention``, by one product."""

    def __init__(self, attention: HeadAttention, config: DraftConfig, factor: type[Factor]) -> None:
        self.sizes = config.heads, config.kv_heads
        self.value_width = config.head_dim
        self.inputs = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        # Of the first layer's input the state is the second half
        self.project = Reused(factor(torch.cat([weight[:, -config.hidden_size :] for weight in self.inputs])))

    def of_token(self, embeds: Tensor) -> Table:
        """The first layer's projection of the first half of its input: (tokens, hidden), normed."""
        return Table(F.linear(embeds, torch.cat([weight[:, : embeds.shape[1]] for weight in self.inputs])))

    def __call__(self, into: Tensor, plus: Tensor | None, turn: Turn) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, hidden) -> each (rows, heads, head_dim), queries and keys turned. ``plus`` is used up."""
        projected = self.project(into, plus=plus)
        return fused(split_and_turn, projected)(projected, *turn, *self.sizes)


class LatentHeads:
    """Queries, keys and values of ``LatentAttention``: the short vectors by one product, what comes out of each by another.

    All get zeros up to one width, a power of two, which is what attention's kernels take.
    """

    def __init__(self, attention: LatentAttention, config: DraftConfig, factor: type[Factor]) -> None:
        self.attention = attention
        self.eps = config.rms_norm_eps
        self.value_width = attention.sizes.v_head_dim
        self.width = 1 << (max(config.head_dim, self.value_width) - 1).bit_length()
        # The kernels divide scores by the root of this width
        self.factor = attention.factor * (self.width / config.head_dim) ** 0.5
        self.inputs = [attention.q_a_proj.weight, attention.kv_a_proj_with_mqa.weight]
        self.project = Reused(factor(torch.cat([weight[:, -config.hidden_size :] for weight in self.inputs])))
        self.queries = Reused(factor(attention.q_b_proj.weight))
        self.both = Reused(factor(attention.kv_b_proj.weight))

    def of_token(self, embeds: Tensor) -> Table:
        """As ``Heads`` says."""
        return Table(F.linear(embeds, torch.cat([weight[:, : embeds.shape[1]] for weight in self.inputs])))

    def __call__(self, into: Tensor, plus: Tensor | None, turn: Turn) -> tuple[Tensor, Tensor, Tensor]:
        """As ``Heads`` says."""
        projected = self.project(into, plus=plus)
        of_queries, of_both, turned = fused(split_and_norm, projected)(
            projected, self.attention.q_a_layernorm.weight, self.attention.kv_a_layernorm.weight, self.eps
        )
        queries, both = self.queries(of_queries), self.both(of_both)
        return fused(turn_and_pad, queries)(queries, both, turned, *turn, self.attention.sizes, self.factor, self.width)


## What is between the matrix products ------------------------------------------------------------------------------


def split_and_turn(
    projected: Tensor, cosines: Tensor, sines: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys (both turned to their positions) and values out of one projection, (rows, heads, head_dim) each."""
    apart = projected.view(len(projected), heads + 2 * kv_heads, -1)
    query, key, value = torch.split(apart, [heads, kv_heads, kv_heads], 1)
    return rotate(query, cosines, sines), rotate(key, cosines, sines), value.contiguous()


def split_and_norm(projected: Tensor, of_queries: Tensor, of_both: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Latent attention's short vectors, normed with these weights, and what is rotated of the keys."""
    ranks = [len(of_queries), len(of_both)]
    queries, both, turned = torch.split(projected, [*ranks, projected.shape[1] - sum(ranks)], 1)
    return (
        F.rms_norm(queries, of_queries.shape, of_queries, eps),
        F.rms_norm(both, of_both.shape, of_both, eps),
        turned,
    )


def turn_and_pad(
    queries: Tensor,
    both: Tensor,
    turned: Tensor,
    cosines: Tensor,
    sines: Tensor,
    sizes: Latent,
    factor: float,
    width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``heads_of``, with zeros up to a width."""
    query, key, value = heads_of(queries, both, turned, cosines, sines, sizes, factor)
    return padded(query, width), padded(key, width), padded(value, width)


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


def add_and_norm_in_turn(
    hidden: Tensor, change: Tensor, weight: Tensor, final: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same where the next step goes on from the state for the head: that, its norm, and once more that."""
    state = F.rms_norm(hidden + change, final.shape, final, eps)
    return state, F.rms_norm(state, weight.shape, weight, eps), state


def fused(function: Callable[..., T], where: Tensor) -> Callable[..., T]:
    """The function, compiled where its tensors are on a GPU.

    But not where torch is asked to be deterministic: the compiler makes its kernels, and so the order of their sums, for the shapes
    that a process meets first, and a training that goes on meets others first than the one that began.
    """
    return _compiled(function) if where.is_cuda and not torch.are_deterministic_algorithms_enabled() else function


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function)
    return compiled
