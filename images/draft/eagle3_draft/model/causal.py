"""Attention of some rows: over the first step's keys, causal within each document, and over their own chain."""

from functools import cache
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils.checkpoint import checkpoint

from eagle3_draft.model import diagonal_kernel
from eagle3_draft.model.diagonal import Chain
from eagle3_draft.model.rows import Rows
from eagle3_draft.model.rowwise import beginning, put_rows

#: Rows and keys of one block of the GPU's kernel.
BLOCK = 128

#: Queries that are scored together elsewhere: it bounds the score matrix.
QUERY_BLOCK = 1024


#: Cells of the grid per row of the pack, up to which the kernel for equal documents is worth its fillers.
SPARSEST_GRID = 1.5


class FirstKeys(Protocol):
    """Keys and values of the first step, for the queries of all steps."""

    def attend(self, query: Tensor, chain: Chain) -> Tensor:
        """What queries of the first rows, (alive, heads, head_dim), read there and from their own chain; as the queries."""


def first_keys(keys: Tensor, values: Tensor, rows: Rows) -> FirstKeys:
    """For keys and values of all rows of the pack, (tokens, kv_heads, head_dim), what attends to them best.

    cuDNN's attention is nearly twice as fast as the compiled one, but takes documents of one length, and all their rows.
    """
    lines, cells = rows.grid
    if _cudnn_takes(keys) and lines * cells <= SPARSEST_GRID * len(keys):
        return GridKeys(keys, values, rows)
    return PackedKeys(keys, values, rows)


def _cudnn_takes(keys: Tensor) -> bool:
    """Whether cuDNN has a fast kernel for them: on Hopper or newer, in half precision.

    Its backward adds up the queries' gradients as they come, so where torch is asked to be deterministic it is not taken:
    torch's own attention does not take it then either.
    """
    if torch.are_deterministic_algorithms_enabled():
        return False
    half, width = keys.dtype in (torch.bfloat16, torch.float16), keys.shape[-1]
    hopper = keys.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(keys.device) >= (9, 0)
    return hopper and half and width % 8 == 0 and width <= 128


class PackedKeys:
    """Any documents. On a GPU the kernel is ``flex_attention``, compiled: it skips blocks of keys that nobody sees."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Rows) -> None:
        self.keys = keys
        self.values = values
        self.first = rows.starts[rows.rows]
        self.last = rows.rows
        self._masks: dict[int, BlockMask] = {}

    def attend(self, query: Tensor, chain: Chain) -> Tensor:
        """As ``FirstKeys`` says."""
        return chain.merge(query, *self.causal(query))

    def causal(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """What is read of the first step alone, and the log-sum-exp of its scores, (alive, heads)."""
        alive = len(query)
        first, last = self.first[:alive], self.last[:alive]
        if not query.is_cuda:
            return attend_plainly(query, self.keys, self.values, first, last)
        if torch.are_deterministic_algorithms_enabled():
            _show_sizes(_Layout.of(query), _Layout.of(self.keys), _Layout.of(self.values), torch.is_grad_enabled())
        if alive not in self._masks:
            self._masks[alive] = block_mask(first, last, len(self.keys))
        return _attend_compiled(query, self.keys, self.values, self._masks[alive])


class GridKeys:
    """Documents of about one length, one a line of a grid, in half precision on a GPU."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Rows) -> None:
        self.grid = rows.grid
        self.cells = rows.cells[rows.rows]
        self.keys, self.values = (_Laid.apply(table, rows.cells, rows.grid) for table in (keys, values))  # type: ignore[no-untyped-call]

    def attend(self, query: Tensor, chain: Chain) -> Tensor:
        """As ``FirstKeys`` says."""
        alive = len(query)
        of_chain = [beginning(part, alive) for part in (*chain.keys, *chain.values)]
        out: Tensor = _GridAttention.apply(  # type: ignore[no-untyped-call]
            query, self.keys, self.values, self.cells[:alive], chain.stored, *of_chain
        )
        return out


class _Laid(torch.autograd.Function):
    """Rows (tokens, heads, head_dim) to (lines, cells, heads, head_dim), zeros between."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, cells: Tensor, grid: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(cells)
        return _lay(table, cells, grid)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (cells,) = ctx.saved_tensors
        return gradients[0].flatten(0, 1).index_select(0, cells), None, None


def _lay(table: Tensor, cells: Tensor, grid: tuple[int, int]) -> Tensor:
    laid = table.new_zeros(grid[0] * grid[1], *table.shape[1:])
    put_rows(laid, cells, table)
    return laid.view(*grid, *table.shape[1:])


class _GridAttention(torch.autograd.Function):
    """cuDNN's causal attention with the chain merged in.

    Its backward is given the merged output and the log-sum-exp of *all* scores: a causal key's share of the softmax is
    exp(score - that), and what the output says of a share's gradient holds for all of them. So its gradients are those of
    the causal part of the whole, and nothing of the causal part alone needs to be kept.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values: Tensor, cells: Tensor, stored: Tensor, *chain: Tensor
    ) -> Tensor:
        ctx.steps, ctx.grid = len(chain) // 2, tuple(keys.shape[:2])
        laid = _lay(query, cells, ctx.grid)
        causal, lse, *_, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            *(part.transpose(1, 2) for part in (laid, keys, values)), None, True, 0.0, True
        )
        out: Tensor = causal.transpose(1, 2).flatten(0, 1).index_select(0, cells)
        total = lse.squeeze(-1).transpose(1, 2).flatten(0, 1).index_select(0, cells)
        if ctx.steps:
            out, total = diagonal_kernel.merge(query, out, total, stored, ctx.steps)
        ctx.save_for_backward(query, keys, values, cells, out, total, seed, offset)
        ctx.stored = stored
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, cells, out, total, seed, offset = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        laid = [_lay(part, cells, ctx.grid).transpose(1, 2) for part in (gradient, query, out)]
        lse = _lay(total, cells, ctx.grid).transpose(1, 2).contiguous()[..., None]
        length = ctx.grid[1]
        of_laid, of_keys, of_values = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            laid[0],
            laid[1],
            keys.transpose(1, 2),
            values.transpose(1, 2),
            laid[2],
            lse,
            seed,
            offset,
            None,
            None,
            None,
            length,
            length,
            0.0,
            True,
        )
        of_query = of_laid.transpose(1, 2).flatten(0, 1).index_select(0, cells)
        of_chain: tuple[Tensor, ...] = ()
        if ctx.steps:
            from_chain, both = diagonal_kernel.merge_backward(gradient, query, out, total, ctx.stored, ctx.steps)
            of_query += from_chain
            of_chain = (*both[:, 0], *both[:, 1])
        return of_query, of_keys.transpose(1, 2), of_values.transpose(1, 2), None, None, *of_chain


def _attend_compiled(query: Tensor, keys: Tensor, values: Tensor, mask: BlockMask) -> tuple[Tensor, Tensor]:
    out, lse = _flex()(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        block_mask=mask,
        enable_gqa=query.shape[1] != keys.shape[1],
        return_lse=True,
    )
    return out[0].transpose(0, 1), lse[0].transpose(0, 1)


@cache
def _flex() -> Any:
    return torch.compile(flex_attention)


class _Layout(NamedTuple):
    """Of rows, but for their number: what the compiler makes a kernel for."""

    row: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    learns: bool

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        return cls(tuple(rows.shape[1:]), rows.stride(), rows.dtype, rows.device, rows.requires_grad)

    def zeros(self, count: int) -> Tensor:
        rows = torch.empty_strided((count, *self.row), self.stride, dtype=self.dtype, device=self.device).zero_()
        return rows.requires_grad_(self.learns)


@cache
def _show_sizes(query: _Layout, keys: _Layout, values: _Layout, learning: bool) -> None:
    """Have the compiled attention see two sizes before any of a training's own.

    The compiler makes a kernel for the first sizes that it meets, and one for all sizes when it meets the second: they may round
    otherwise. A training that goes on meets others first than the one that began, and would be another from there on.
    """
    # No two alike, and none 1: the compiler takes these for what they are
    for blocks, blocks_of_keys in ((2, 3), (3, 5)):
        count, all_keys = blocks * BLOCK, blocks_of_keys * BLOCK
        last = torch.arange(count, device=query.device)
        inputs = query.zeros(count), keys.zeros(all_keys), values.zeros(all_keys)
        out, lse = _attend_compiled(*inputs, mask=block_mask(torch.zeros_like(last), last, all_keys))
        if learnt := [one for one in inputs if learning and one.requires_grad]:
            torch.autograd.grad(out.sum() + lse.sum(), learnt)


def block_mask(first: Tensor, last: Tensor, keys: int) -> BlockMask:
    """Which keys each query sees, those from ``first`` to ``last``, and which blocks of them it sees in part or whole.

    Args:
        first, last: (queries,), a multiple of ``BLOCK``.
        keys: their number, a multiple of ``BLOCK``.
    """
    firsts, lasts = first.view(-1, BLOCK), last.view(-1, BLOCK)
    begins = torch.arange(0, keys, BLOCK, device=first.device)
    ends = begins + BLOCK - 1
    some = (ends >= firsts.amin(1)[:, None]) & (begins <= lasts.amax(1)[:, None])
    whole = (begins >= firsts.amax(1)[:, None]) & (ends <= lasts.amin(1)[:, None])

    def seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (first[query] <= key) & (key <= last[query])

    return BlockMask.from_kv_blocks(
        *_listed(some & ~whole),
        *_listed(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=seen,
        seq_lengths=(len(first), keys),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of (query blocks, key blocks) bool: the number of key blocks of each, and their numbers first."""
    counts = blocks.sum(1, dtype=torch.int32)
    order = blocks.to(torch.int8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], order[None, None]


def attend_plainly(query: Tensor, keys: Tensor, values: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The same by matrix products, document by document. Each query sees the keys from ``first`` to ``last``."""
    order = first.argsort(stable=True)
    _, counts = torch.unique_consecutive(first[order], return_counts=True)
    blocks = [block for document in torch.split(order, counts.tolist()) for block in torch.split(document, QUERY_BLOCK)]
    parts = [
        # Scores are computed again in backward, or those of all steps would have to be kept
        checkpoint(
            _attend_block,
            query.index_select(0, rows),
            keys,
            values,
            first[rows],
            last[rows],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for rows in blocks
    ]
    outs, lses = zip(*parts, strict=True)
    back = order.argsort()
    return torch.cat(outs).index_select(0, back), torch.cat(lses).index_select(0, back)


def _attend_block(query: Tensor, keys: Tensor, values: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    begin, end = int(first.min()), int(last.max()) + 1
    kv_heads, head_dim = keys.shape[1:]
    grouped = query.view(len(query), kv_heads, -1, head_dim)
    # q: query, s: key seen, k: kv head, g: query head of its group, d: number of the head
    scores = torch.einsum("qkgd,skd->qkgs", grouped, keys[begin:end]) * head_dim**-0.5
    place = torch.arange(begin, end, device=query.device)
    hidden = (place < first[:, None]) | (place > last[:, None])
    scores = scores.masked_fill(hidden[:, None, None, :], float("-inf"))
    lse = scores.logsumexp(-1)
    out = torch.einsum("qkgs,skd->qkgd", (scores - lse[..., None]).exp(), values[begin:end])
    return out.reshape(query.shape), lse.flatten(1)
