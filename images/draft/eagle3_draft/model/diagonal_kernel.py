# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The GPU kernels of ``diagonal``, in Triton. One program has some rows of one kv head, with all query heads of its group."""

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU
    triton = tl = None

#: Rows of a program.
ROWS = 4


def merge(query: Tensor, causal: Tensor, lse: Tensor, stored: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The merged attention, as the query, and the log-sum-exp of all its scores, (alive, heads) float32.

    Args:
        query, causal: (alive, heads, head_dim).
        lse: (alive, heads) float32.
        stored: (steps or more, 2, alive or more rows, kv_heads, head_dim): keys and values of the chain.
        steps: of the chain.
    """
    query, causal, lse = query.contiguous(), causal.contiguous(), lse.contiguous()
    out, total = torch.empty_like(query), torch.empty_like(lse)
    grid, sizes = _sizes(query, stored)
    _merge_kernel[grid](query, causal, lse, stored, out, total, len(query), stored.shape[2], STEPS=steps, **sizes)
    return out, total


def merge_backward(
    gradient: Tensor,
    query: Tensor,
    out: Tensor,
    total: Tensor,
    stored: Tensor,
    steps: int,
    causal: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of the query through the chain, and of the chain, (steps, 2, alive, kv_heads, head_dim).

    Args:
        gradient: of the merged attention.
        query, stored, steps: as of ``merge``.
        out, total: what it returned.
        causal: the causal part and its log-sum-exp, and where the gradients of both go, all contiguous. None leaves them
            to the causal part's own backward.
    """
    gradient, query = gradient.contiguous(), query.contiguous()
    of_query = torch.empty_like(query)
    of_chain = stored.new_empty(steps, 2, len(query), *stored.shape[3:])
    grid, sizes = _sizes(query, stored)
    _merge_backward_kernel[grid](
        gradient,
        query,
        out,
        total,
        stored,
        of_query,
        of_chain,
        *(causal or (None, None, None, None)),
        len(query),
        stored.shape[2],
        STEPS=steps,
        **sizes,
    )
    return of_query, of_chain


def _sizes(query: Tensor, stored: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    alive, heads, head_dim = query.shape
    kv_heads = stored.shape[3]
    group = heads // kv_heads
    return (triton.cdiv(alive, ROWS), kv_heads), {
        "SCALE": head_dim**-0.5,
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "GROUP_BLOCK": triton.next_power_of_2(group),
        "WIDTH": head_dim,
        "WIDTH_BLOCK": triton.next_power_of_2(head_dim),
        "ROWS": ROWS,
        "num_warps": 4,
    }


if triton is not None:

    @triton.jit
    def _places(alive, stored_rows, KV_HEADS, GROUP, GROUP_BLOCK, WIDTH, WIDTH_BLOCK, ROWS):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None, None]
        kv = tl.program_id(1)
        member = tl.arange(0, GROUP_BLOCK)[None, :, None]
        number = tl.arange(0, WIDTH_BLOCK)[None, None, :]
        head = row * (KV_HEADS * GROUP) + kv * GROUP + member
        heads_there = (row < alive) & (member < GROUP)
        key = (row * KV_HEADS + kv).to(tl.int64) * WIDTH + number
        return (
            head,
            heads_there,
            head.to(tl.int64) * WIDTH + number,
            heads_there & (number < WIDTH),
            key,
            (row < alive) & (number < WIDTH),
        )

    @triton.jit
    def _of_step(stored_at, step, stored_rows, at, there, KV_HEADS, WIDTH):
        """A step's keys and values."""
        half = stored_rows.to(tl.int64) * KV_HEADS * WIDTH
        key = tl.load(stored_at + 2 * step * half + at, mask=there, other=0.0).to(tl.float32)
        value = tl.load(stored_at + (2 * step + 1) * half + at, mask=there, other=0.0).to(tl.float32)
        return key, value

    @triton.jit
    def _merge_kernel(
        query_at,
        causal_at,
        lse_at,
        stored_at,
        out_at,
        total_at,
        alive,
        stored_rows,
        SCALE: tl.constexpr,
        STEPS: tl.constexpr,
        KV_HEADS: tl.constexpr,
        GROUP: tl.constexpr,
        GROUP_BLOCK: tl.constexpr,
        WIDTH: tl.constexpr,
        WIDTH_BLOCK: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        head, head_there, at, there, key, key_there = _places(
            alive, stored_rows, KV_HEADS, GROUP, GROUP_BLOCK, WIDTH, WIDTH_BLOCK, ROWS
        )
        query = tl.load(query_at + at, mask=there, other=0.0).to(tl.float32)
        mixed = tl.load(causal_at + at, mask=there, other=0.0).to(tl.float32)
        highest = tl.load(lse_at + head, mask=head_there, other=0.0)
        weight = tl.full(highest.shape, 1.0, tl.float32)
        for step in tl.static_range(STEPS):
            one, value = _of_step(stored_at, step, stored_rows, key, key_there, KV_HEADS, WIDTH)
            score = tl.sum(query * one, 2, keep_dims=True) * SCALE
            higher = tl.maximum(highest, score)
            before, here = tl.exp(highest - higher), tl.exp(score - higher)
            mixed = mixed * before + here * value
            weight = weight * before + here
            highest = higher
        tl.store(out_at + at, (mixed / weight).to(out_at.dtype.element_ty), mask=there)
        tl.store(total_at + head, highest + tl.log(weight), mask=head_there)

    @triton.jit
    def _merge_backward_kernel(
        gradient_at,
        query_at,
        out_at,
        total_at,
        stored_at,
        of_query_at,
        of_chain_at,
        causal_at,
        lse_at,
        of_causal_at,
        of_lse_at,
        alive,
        stored_rows,
        SCALE: tl.constexpr,
        STEPS: tl.constexpr,
        KV_HEADS: tl.constexpr,
        GROUP: tl.constexpr,
        GROUP_BLOCK: tl.constexpr,
        WIDTH: tl.constexpr,
        WIDTH_BLOCK: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        head, head_there, at, there, key, key_there = _places(
            alive, stored_rows, KV_HEADS, GROUP, GROUP_BLOCK, WIDTH, WIDTH_BLOCK, ROWS
        )
        of_half = alive.to(tl.int64) * KV_HEADS * WIDTH
        gradient = tl.load(gradient_at + at, mask=there, other=0.0).to(tl.float32)
        query = tl.load(query_at + at, mask=there, other=0.0).to(tl.float32)
        out = tl.load(out_at + at, mask=there, other=0.0).to(tl.float32)
        total = tl.load(total_at + head, mask=head_there, other=0.0)
        mean = tl.sum(gradient * out, 2, keep_dims=True)
        if causal_at is not None:
            causal = tl.load(causal_at + at, mask=there, other=0.0).to(tl.float32)
            weight = tl.exp(tl.load(lse_at + head, mask=head_there, other=0.0) - total)
            tl.store(of_causal_at + at, (weight * gradient).to(of_causal_at.dtype.element_ty), mask=there)
            of_lse = weight * (tl.sum(gradient * causal, 2, keep_dims=True) - mean)
            tl.store(of_lse_at + head, of_lse, mask=head_there)
        of_query = tl.zeros(query.shape, tl.float32)
        for step in tl.static_range(STEPS):
            one, value = _of_step(stored_at, step, stored_rows, key, key_there, KV_HEADS, WIDTH)
            share = tl.exp(tl.sum(query * one, 2, keep_dims=True) * SCALE - total)
            of_score = share * (tl.sum(gradient * value, 2, keep_dims=True) - mean) * SCALE
            of_query += of_score * one
            of_key = tl.sum(of_score * query, 1, keep_dims=True)
            of_value = tl.sum(share * gradient, 1, keep_dims=True)
            element = of_chain_at.dtype.element_ty
            tl.store(of_chain_at + 2 * step * of_half + key, of_key.to(element), mask=key_there)
            tl.store(of_chain_at + (2 * step + 1) * of_half + key, of_value.to(element), mask=key_there)
        tl.store(of_query_at + at, of_query.to(of_query_at.dtype.element_ty), mask=there)
