# ruff: noqa: N803 (the names of the arguments are those of the kernels)
"""The request table, positions and the slots of the KV cache.

``req_to_token`` (requests, context) holds, for each request (row) and position (column), the slot of the KV cache that
keeps the position's keys and values.  Sizes, lengths and indices count tokens.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from sglang_cpu.dispatch import Grid, replaces, replaces_uncomparable


def tensor_at(address: int, count: int, dtype: torch.dtype) -> Tensor:
    """The tensor of ``count`` elements that begins at a raw address; SGLang passes some kernels addresses, not tensors."""
    return torch.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype=dtype)


@replaces
def write_req_to_token_pool_triton(
    grid: Grid,
    req_to_token_ptr: Tensor,
    req_pool_indices: Tensor,
    prefix_tensors: Tensor,
    pre_lens: Tensor,
    seq_lens: Tensor,
    extend_lens: Tensor,
    out_cache_loc: Tensor,
    req_to_token_ptr_stride: int,
) -> None:
    """Write each request's cached prefix and its new slots into the table."""
    taken = 0
    for i, row in enumerate(req_pool_indices.tolist()):
        prefix, length = int(pre_lens[i]), int(seq_lens[i])
        if prefix:
            slots = tensor_at(int(prefix_tensors[i]), prefix, torch.int64)
            req_to_token_ptr[row, :prefix] = slots.to(req_to_token_ptr.dtype)
        new = out_cache_loc[taken : taken + length - prefix]
        req_to_token_ptr[row, prefix:length] = new.to(req_to_token_ptr.dtype)
        taken += int(extend_lens[i])


@replaces
def compute_position_kernel(
    grid: Grid,
    positions: Tensor,
    extend_start_loc: Tensor,
    extend_prefix_lens: Tensor,
    extend_seq_lens: Tensor,
    has_prefix: bool,
) -> None:
    """Number each request's new tokens from the end of its prefix."""
    start = 0
    for i, count in enumerate(extend_seq_lens.tolist()):
        prefix = int(extend_prefix_lens[i]) if has_prefix else 0
        positions[start : start + count] = torch.arange(prefix, prefix + count)
        extend_start_loc[i] = start
        start += count


@replaces
def assign_req_to_token_pool(
    grid: Grid,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    bs_upper: int,
) -> None:
    """Write newly allocated slots into the table."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=False):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


@replaces
def assign_extend_cache_locs(
    grid: Grid,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    bs_upper: int,
) -> None:
    """Read the slots of each request's new tokens from the table."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=False):
        out_cache_loc[taken : taken + end - start] = req_to_token[row, start:end]
        taken += end - start


@replaces
def assign_extend_cache_locs_uniform(
    grid: Grid,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    draft_token_num: int,
) -> None:
    """As assign_extend_cache_locs, with the same number of new tokens in each request."""
    _read_slots(req_pool_indices, req_to_token, start_offset, out_cache_loc, draft_token_num)


@replaces
def assign_draft_cache_locs_contiguous(
    grid: Grid,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Read the slots that a draft may use behind each request's last token."""
    _read_slots(req_pool_indices, req_to_token, seq_lens, out_cache_loc, topk * speculative_num_steps)


def _read_slots(requests: Tensor, req_to_token: Tensor, starts: Tensor, out: Tensor, count: int) -> None:
    for i, (row, start) in enumerate(zip(requests.tolist(), starts.tolist(), strict=False)):
        out[i * count : (i + 1) * count] = req_to_token[row, start : start + count]


@replaces
def create_flashinfer_kv_indices_triton(
    grid: Grid,
    req_to_token_ptr: Tensor,
    req_pool_indices_ptr: Tensor,
    page_kernel_lens_ptr: Tensor,
    kv_indptr: Tensor,
    kv_start_idx: Tensor | None,
    kv_indices_ptr: Tensor,
    req_to_token_ptr_stride: int,
    ENTRY_PAGE_SIZE: int,
    TOKEN_BLOCK_PARALLEL: bool,
) -> Any:
    """Join the slots of all requests in one list, request ``i`` from ``kv_indptr[i]`` on."""
    if ENTRY_PAGE_SIZE != 1:
        return NotImplemented
    requests = req_pool_indices_ptr.tolist()[: grid[0]]
    starts = [0] * len(requests) if kv_start_idx is None else kv_start_idx.tolist()
    for row, count, start, out in zip(
        requests, page_kernel_lens_ptr.tolist(), starts, kv_indptr.tolist(), strict=False
    ):
        kv_indices_ptr[out : out + count] = req_to_token_ptr[row, start : start + count]
    return None


@replaces
def generate_draft_decode_kv_indices(
    grid: Grid,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    paged_kernel_lens: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    positions: Tensor,
    pool_len: int,
    kv_indices_stride: int,
    kv_indptr_stride: int,
    bs_upper: int,
    iter_upper: int,
    num_tokens_upper: int,
    page_size: int,
    window_size: int,
    sink_size: int,
    NUM_STEPS: int,
) -> Any:
    """The slots that each branch of the draft sees in each of its steps: the sequence, then the branch so far."""
    steps, requests, topk = grid
    if window_size or NUM_STEPS or (page_size > 1 and topk > 1):
        return NotImplemented
    rows, lengths = req_pool_indices.tolist(), paged_kernel_lens.tolist()
    for step in range(steps):
        drafted, done = step + 1, 0
        for row, length in zip(rows[:requests], lengths, strict=False):
            slots = req_to_token[row]
            for branch in range(topk):
                own = length + branch * steps
                kv_indices[step, done : done + length] = slots[:length]
                kv_indices[step, done + length : done + length + drafted] = slots[own : own + drafted]
                done += length + drafted
        for z in range(1, requests * topk + 1):
            kv_indptr[step, z] = int(positions[:z].sum()) + z * drafted
    return None


@replaces_uncomparable
def copy_all_layer_kv_cache_tiled(
    grid: Grid,
    data_ptrs: Tensor,
    strides: Tensor,
    tgt_loc_ptr: Tensor,
    src_loc_ptr: Tensor,
    num_locs: int,
    num_locs_upper: int,
    BYTES_PER_TILE: int,
) -> None:
    """Move slots in the KV cache of every layer; ``data_ptrs`` are addresses, ``strides`` bytes a slot."""
    source, target = src_loc_ptr[:num_locs].long(), tgt_loc_ptr[:num_locs].long()
    slots = int(max(source.max(), target.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        cache = tensor_at(address, slots * stride, torch.uint8).view(slots, stride)
        cache[target] = cache[source]
