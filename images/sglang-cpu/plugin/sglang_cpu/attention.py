# ruff: noqa: N803 (the names of the arguments are those of the kernels)
"""The two attention launchers of the Triton backend, on torch's scaled dot product attention.

Queries, keys and values are (tokens, heads, head dimension); the KV cache has one row a slot.  Requests are joined along
the tokens: request ``i`` owns the rows from ``indptr[i]`` to ``indptr[i + 1]``.  Latent attention is attention with one head
of keys in the cache, whose beginning is the value; a prompt with nothing before it is computed with all heads instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sglang_cpu.dispatch import Replacement


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Attention of one request; ``mask`` is (queries, keys), True where a query sees a key."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)[0].transpose(0, 1)


def extend_attention_fwd(
    q_extend: Tensor,
    k_extend: Tensor,
    v_extend: Tensor,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    custom_mask: Tensor | None,
    is_causal: bool,
    mask_indptr: Tensor | None,
    max_len_extend: int,
    k_scale: float,
    v_scale: float,
    sm_scale: float | None,
    logit_cap: float,
    skip_prefix_custom_mask: bool,
    sliding_window_size: int,
    sinks: Tensor | None,
    window_kv_offsets: Tensor | None,
    xai_temperature_len: int,
    lse_extend: Tensor | None,
    skip_prefix: bool,
    skip_extend: bool,
    page_size: int,
    score_mod: Any,
    aux_tensors: Any,
    extend_seq_lens_cpu: Any,
    identity_kv_indices: bool,
) -> Any:
    """New tokens attend to the cached prefix and, causally or by the draft tree's mask, to each other.

    Prefill, draft extend and target verify.
    """
    plain = (k_scale, v_scale) == (1.0, 1.0) and not logit_cap and sinks is None and xai_temperature_len <= 0
    whole = lse_extend is None and not (skip_prefix or skip_extend or identity_kv_indices)
    if not plain or not whole or sliding_window_size > 0 or page_size != 1 or score_mod is not None:
        return NotImplemented
    rows, prefixes = qo_indptr.tolist(), kv_indptr.tolist()
    for i in range(len(rows) - 1):
        new, cached = slice(rows[i], rows[i + 1]), kv_indices[prefixes[i] : prefixes[i + 1]]
        m, n = rows[i + 1] - rows[i], len(cached)
        if m == 0:
            continue
        mask = torch.ones(m, n + m, dtype=torch.bool)
        if custom_mask is not None and mask_indptr is not None:
            start, first = int(mask_indptr[i]), n if skip_prefix_custom_mask else 0
            tree = custom_mask[start : start + m * (n + m)].view(m, n + m).bool()
            mask[:, first:] = tree[:, first:]
        elif is_causal:
            mask = mask.tril(n)
        keys, values = k_extend[new], v_extend[new]
        if n > 0:  # else the cache may have other heads than these
            keys, values = torch.cat([k_buffer[cached], keys]), torch.cat([v_buffer[cached], values])
        o_extend[new] = _attend(q_extend[new], keys, values, mask, sm_scale)
    return None


def decode_attention_fwd(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    attn_logits: Tensor,
    attn_lse: Tensor,
    num_kv_splits: Tensor,
    max_kv_splits: int,
    sm_scale: float,
    k_scale: float,
    v_scale: float,
    logit_cap: float,
    sinks: Tensor | None,
    xai_temperature_len: int,
    has_mla: bool,
    use_pdl: bool,
    page_size: int,
    score_mod: Any,
    aux_tensors: Any,
    enable_lean: Any,
    lean_Mp: Any,
    lean_Lp: Any,
    lean_Op: Any,
    lean_locks: Any,
) -> Any:
    """One query a request: decode, and the draft's steps after its first."""
    plain = (k_scale, v_scale) == (1.0, 1.0) and not logit_cap and sinks is None and xai_temperature_len <= 0
    if not plain or page_size != 1 or score_mod is not None:
        return NotImplemented
    rows = kv_indptr.tolist()
    for i in range(q.shape[0]):
        slots = kv_indices[rows[i] : rows[i + 1]]
        o[i : i + 1] = _attend(q[i : i + 1], k_buffer[slots], v_buffer[slots], None, sm_scale)
    return None


# Attention sums in another order than the kernels, which split the keys.
LAUNCHERS = {
    "sglang.kernels.ops.attention.extend_attention.extend_attention_fwd": Replacement(
        extend_attention_fwd, written=("o_extend",), rtol=1e-3, atol=1e-4
    ),
    "sglang.kernels.ops.attention.decode_attention.decode_attention_fwd": Replacement(
        decode_attention_fwd, written=("o",), rtol=1e-3, atol=1e-4
    ),
}
