"""What each row sees of its own later steps, one key a step, merged into what it sees causally."""

from typing import Any

import torch
from torch import Tensor

from eagle3_draft.model import diagonal_kernel
from eagle3_draft.model.rowwise import beginning


class Chain:
    """Keys and values of the later steps so far.

    Args:
        steps: that there will be.
        like: a key, (rows, kv_heads, head_dim), for type and shape.
        rows: of the first of them.
    """

    def __init__(self, steps: int, like: Tensor, rows: int) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        # The kernel reads all steps from one place
        shape = (steps if like.is_cuda else 0, 2, rows, *like.shape[1:])
        self.stored = like.new_empty(shape)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Add a step's keys and values, (alive, kv_heads, head_dim)."""
        if key.is_cuda:
            place = self.stored[len(self.keys)]
            place[0, : len(key)] = key.detach()
            place[1, : len(key)] = value.detach()
        self.keys.append(key)
        self.values.append(value)

    def merge(self, query: Tensor, causal: Tensor, lse: Tensor) -> Tensor:
        """Attention over the causal part and the chain together.

        Args:
            query: (alive, heads, head_dim).
            causal: as the query, what it reads of the first step's values.
            lse: (alive, heads), the log-sum-exp of its scores there.
        """
        if not self.keys:
            return causal
        alive = len(query)
        keys, values = ([beginning(part, alive) for part in parts] for parts in (self.keys, self.values))
        if not query.is_cuda:
            return merge_plainly(query, causal, lse, torch.stack(keys), torch.stack(values))
        merged: Tensor = _Merge.apply(query, causal, lse, self.stored, *keys, *values)  # type: ignore[no-untyped-call]
        return merged


def merge_plainly(query: Tensor, causal: Tensor, lse: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The formula: a softmax over the causal part's log-sum-exp and one score a step.

    Args:
        keys, values: (steps, alive, kv_heads, head_dim).
    """
    heads, head_dim = query.shape[1:]
    group = heads // keys.shape[2]
    keys, values = keys.repeat_interleave(group, 2), values.repeat_interleave(group, 2)
    scores = (query * keys).sum(-1) * head_dim**-0.5  # (steps, alive, heads)
    weights = torch.cat([lse[None], scores]).softmax(0)[..., None].to(query.dtype)
    return weights[0] * causal + (weights[1:] * values).sum(0)


class _Merge(torch.autograd.Function):
    """``merge_plainly`` in one kernel each way. Keys and values are read from ``stored``, and given for their gradient."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, causal: Tensor, lse: Tensor, stored: Tensor, *chain: Tensor) -> Tensor:
        ctx.steps = len(chain) // 2
        causal, lse = causal.contiguous(), lse.contiguous()
        out, total = diagonal_kernel.merge(query, causal, lse, stored, ctx.steps)
        ctx.save_for_backward(query, causal, lse, out, total)
        ctx.stored = stored  # rows of these steps are not written again
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, causal, lse, out, total = ctx.saved_tensors
        of_causal, of_lse = torch.empty_like(causal), torch.empty_like(lse)
        of_query, of_chain = diagonal_kernel.merge_backward(
            gradients[0], query, out, total, ctx.stored, ctx.steps, (causal, lse, of_causal, of_lse)
        )
        return of_query, of_causal, of_lse, None, *of_chain[:, 0], *of_chain[:, 1]
