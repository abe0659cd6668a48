"""The attention of training-time test: what a drafting server's key-value cache would hold, for every position at once.

A server at position p has in the draft's cache the keys of the first step at all positions up to p, computed from the
target's own hidden states, and those of its own chain: step 1, 2, ... from p, computed from the draft's. So the query of
step i at p sees the first step's keys up to p, and of each later step the one key of its own position.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Queries that are scored together. It bounds the score matrix: heads x block x document, of which one is alive at a time.
QUERY_BLOCK = 1024


@dataclass
class Cache:
    """What a layer keeps of each step so far: keys and values, (tokens, kv_heads, head_dim)."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


def attend(query: Tensor, keys: list[Tensor], values: list[Tensor], documents: list[int]) -> Tensor:
    """Attention of one unroll step over packed documents.

    Args:
        query: (tokens, heads, head_dim), rotated.
        keys: of each step so far, the present one last, (tokens, kv_heads, head_dim), rotated.
        values: as the keys, their last size may be another.
        documents: tokens of each document; nothing is seen across their borders.

    Returns:
        (tokens, heads, last size of the values).
    """
    parts = []
    end = 0
    for length in documents:
        start, end = end, end + length
        for first in range(start, end, QUERY_BLOCK):
            last = min(first + QUERY_BLOCK, end)
            parts.append(
                # The scores are computed again in backward, or those of all steps would have to be kept
                checkpoint(
                    _attend_block,
                    query[first:last],
                    keys[0][start:last],
                    values[0][start:last],
                    [key[first:last] for key in keys[1:]],
                    [value[first:last] for value in values[1:]],
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            )
    return torch.cat(parts)


def _attend_block(
    query: Tensor, keys: Tensor, values: Tensor, chain_keys: list[Tensor], chain_values: list[Tensor]
) -> Tensor:
    """The last ``len(query)`` positions of a document's beginning: keys (seen, kv_heads, head_dim), chain like query."""
    block, heads, head_dim = query.shape
    seen, kv_heads, _ = keys.shape
    grouped = query.view(block, kv_heads, heads // kv_heads, head_dim)
    # q: query, s: key seen, k: kv head, g: query head of its group, d: number of the head
    scores = torch.einsum("qkgd,skd->kgqs", grouped, keys)
    causal = torch.ones(block, seen, dtype=torch.bool, device=query.device).tril(seen - block)
    scores = scores.masked_fill(~causal, float("-inf"))
    chain = [torch.einsum("qkgd,qkd->kgq", grouped, key)[..., None] for key in chain_keys]
    wide = torch.promote_types(query.dtype, torch.float32)
    weights = (torch.cat([scores, *chain], -1).to(wide) * head_dim**-0.5).softmax(-1).to(query.dtype)
    out = torch.einsum("kgqs,skd->qkgd", weights[..., :seen], values)
    for step, value in enumerate(chain_values):
        out = out + torch.einsum("kgq,qkd->qkgd", weights[..., seen + step], value)
    return out.reshape(block, heads, -1)
