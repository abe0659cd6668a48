"""The draft tree and its greedy verification.

A tree has ``num_draft_tokens`` nodes a request; node 0 is the token that the target chose last.  It is stored as two
lists of indices, first child and next sibling, in which -1 means none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_cpu.dispatch import Grid, replaces

_FULL_MASK = 0  # SGLang's TreeMaskMode: every row of the mask also covers the sequence before the tree


@replaces
def sgl_build_tree_kernel_efficient_triton(
    grid: Grid,
    parent_list_ptr: Tensor,
    selected_index_ptr: Tensor,
    verified_seq_len_ptr: Tensor,
    seq_len_prefix_sum_ptr: Tensor,
    tree_mask_ptr: Tensor,
    positions_ptr: Tensor,
    retrieve_index_ptr: Tensor,
    retrieve_next_token_ptr: Tensor,
    retrieve_next_sibling_ptr: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
    batch_size: int,
    parent_list_stride: int,
    selected_index_stride: int,
) -> None:
    """From the drafted tokens that were selected, the tree's links, positions and attention mask."""
    n = draft_token_num
    for b in range(grid[0]):
        length, before = int(verified_seq_len_ptr[b]), int(seq_len_prefix_sum_ptr[b])
        parents = _parents(selected_index_ptr[b].tolist(), parent_list_ptr[b].tolist(), topk)
        child, sibling = retrieve_next_token_ptr[b].tolist(), retrieve_next_sibling_ptr[b].tolist()
        for node in range(n - 1, 0, -1):
            parent = parents[node]
            if parent is not None:
                if child[parent] != -1:
                    sibling[node] = child[parent]
                child[parent] = node

        mask, positions = torch.zeros(n, n, dtype=torch.bool), [length] * n
        mask[:, 0] = True
        for leaf in range(1, n):
            node, level = leaf, 0
            while node and level < depth:
                mask[leaf, node] = True
                node, level = parents[node] or 0, level + 1
            positions[leaf] = length + level

        retrieve_index_ptr[b] = torch.arange(b * n, (b + 1) * n)
        retrieve_next_token_ptr[b] = torch.tensor(child)
        retrieve_next_sibling_ptr[b] = torch.tensor(sibling)
        positions_ptr[b * n : (b + 1) * n] = torch.tensor(positions)
        if tree_mask_mode == _FULL_MASK:
            start = n * n * b + before * n
            tree_mask_ptr[start : start + n * (length + n)].view(n, length + n)[:, length:] = mask
        else:
            tree_mask_ptr[n * n * b : n * n * (b + 1)] = mask.flatten()


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int | None]:
    """Each node's parent as a node; None where the parent itself was not selected (and for node 0)."""
    parents: list[int | None] = [None]
    for index in selected:
        level = index // topk
        drafted = parent_list[level] if level else None
        if drafted is None:
            parents.append(0)
        else:
            parents.append(selected.index(drafted) + 1 if drafted in selected else None)
    return parents


@replaces
def verify_tree_greedy_kernel_triton(
    grid: Grid,
    predicts_ptr: Tensor,
    accept_index_ptr: Tensor,
    accept_token_num_ptr: Tensor,
    candidates_ptr: Tensor,
    retrieve_index_ptr: Tensor,
    retrieve_next_token_ptr: Tensor,
    retrieve_next_sibling_ptr: Tensor,
    target_predict_ptr: Tensor,
    batch_size: int,
    num_speculative_tokens: int,
    num_draft_tokens: int,
) -> None:
    """Walk each tree as long as a child is the token that the target would have chosen."""
    predict = target_predict_ptr.flatten().tolist()
    for b in range(grid[0]):
        index, token = retrieve_index_ptr[b].tolist(), candidates_ptr[b].tolist()
        child, sibling = retrieve_next_token_ptr[b].tolist(), retrieve_next_sibling_ptr[b].tolist()
        last, node, accepted = index[0], 0, [index[0]]
        while len(accepted) < num_speculative_tokens:
            node = child[node]
            while node != -1 and token[node] != predict[last]:
                node = sibling[node]
            if node == -1:
                break
            predicts_ptr[last] = predict[last]
            last = index[node]
            accepted.append(last)
        predicts_ptr[last] = predict[last]
        accept_index_ptr[b, : len(accepted)] = torch.tensor(accepted).to(accept_index_ptr.dtype)
        accept_token_num_ptr[b] = len(accepted) - 1


@replaces
def fill_bonus_tokens(
    grid: Grid,
    accept_tokens: Tensor,
    accept_lens: Tensor,
    bonus_tokens_ptr: Tensor,
    accept_stride: int,
) -> None:
    """The last accepted token of each request: the target's own choice, which the next draft starts from."""
    rows = torch.arange(grid[0])
    bonus_tokens_ptr[: grid[0]] = accept_tokens.flatten()[rows * accept_stride + accept_lens[: grid[0]] - 1]


@replaces
def fill_accept_out_cache_loc(
    grid: Grid,
    accept_index: Tensor,
    out_cache_loc: Tensor,
    accept_out_cache_loc: Tensor,
    size_upper: int,
) -> None:
    """The slots of the accepted tokens, closed up; -1 marks what was not accepted."""
    index = accept_index.flatten()[: grid[0]]
    slots = out_cache_loc[index[index > -1].long()]
    accept_out_cache_loc[: len(slots)] = slots
