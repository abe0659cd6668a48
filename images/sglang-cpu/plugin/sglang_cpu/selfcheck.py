"""Compare every replacement with the original in Triton's interpreter, on small inputs.

    python -m sglang_cpu.selfcheck      prints one JSON object: for each case "same", or what differs

The inputs come from SGLang's own functions where it has some, so that they are such as occur in serving.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from sglang_cpu import dispatch, slots
from sglang_cpu.attention import LAUNCHERS

CASES: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Register a case; it raises AssertionError where the two differ."""
    CASES.append(function)
    return function


class Requests:
    """Three requests of 5, 9 and 2 tokens in the rows 4, 0 and 2 of a request table whose slots are in disorder."""

    rows = torch.tensor([4, 0, 2])
    lengths = torch.tensor([5, 9, 2])

    def __init__(self) -> None:
        self.table = torch.randperm(6 * 32).view(6, 32).to(torch.int32)


@case
def write_to_the_request_table() -> None:
    from sglang.kernels.ops.memory.common import write_req_to_token_pool_triton

    requests, prefixes = Requests(), torch.tensor([2, 0, 1])
    cached = [torch.arange(100, 100 + n) for n in prefixes.tolist()]
    addresses = torch.tensor([tensor.data_ptr() for tensor in cached], dtype=torch.uint64)
    new = requests.lengths - prefixes
    write_req_to_token_pool_triton[(3,)](
        requests.table, requests.rows, addresses, prefixes, requests.lengths, new, torch.arange(int(new.sum())), 32
    )


@case
def number_positions() -> None:
    from sglang.kernels.ops.attention.position import compute_position_triton

    compute_position_triton(torch.tensor([2, 0, 7]), torch.tensor([3, 9, 1]), 13)
    compute_position_triton(torch.tensor([]), torch.tensor([3, 9, 1]), 13)


@case
def assign_slots() -> None:
    from sglang.kernels.ops.speculative.cache_locs import (
        assign_draft_cache_locs_contiguous,
        assign_extend_cache_locs,
        assign_extend_cache_locs_uniform,
    )
    from sglang.srt.mem_cache.allocation import assign_req_to_token_pool

    requests = Requests()
    ends, out = requests.lengths + 4, torch.zeros(12, dtype=torch.int64)
    taken = (requests.rows, requests.table, requests.lengths)
    assign_req_to_token_pool[(3,)](*taken, ends, torch.arange(500, 512), 32, 4)
    assign_extend_cache_locs[(3,)](*taken, ends, out, 32, 4)
    assign_extend_cache_locs_uniform[(3,)](*taken, out, 32, 4)
    assign_draft_cache_locs_contiguous[(3,)](*taken, out, 32, 2, 2)


@case
def list_the_cached_slots() -> None:
    from sglang.kernels.ops.kvcache.kv_indices import create_flashinfer_kv_indices_triton

    requests = Requests()
    begin = torch.nn.functional.pad(requests.lengths.cumsum(0), (1, 0)).to(torch.int32)
    for starts in (None, torch.tensor([1, 0, 3])):
        out = torch.zeros(16, dtype=torch.int64)
        create_flashinfer_kv_indices_triton[(3,)](
            requests.table, requests.rows, requests.lengths, begin, starts, out, 32
        )


@case
def list_the_slots_of_each_draft_step() -> None:
    from sglang.kernels.ops.speculative.cache_locs import generate_draft_decode_kv_indices

    requests = Requests()
    for steps, topk in ((3, 1), (3, 2)):
        positions = requests.lengths.repeat_interleave(topk)
        width = (16 + 3 * steps) * topk
        out = torch.zeros(steps, width, dtype=torch.int64)
        begin = torch.zeros(steps, 3 * topk + 1, dtype=torch.int32)
        generate_draft_decode_kv_indices[(steps, 3, topk)](
            requests.rows,
            requests.table,
            requests.lengths,
            out,
            begin,
            positions,
            32,
            width,
            3 * topk + 1,
            4,
            4,
            8,
            1,
            0,
            0,
        )


@case
def move_slots_of_the_cache() -> None:
    """The kernel writes through addresses, so the two are given caches of their own."""
    from sglang.kernels.ops.kvcache.cache_move import copy_all_layer_kv_cache_tiled as kernel
    from triton.runtime.interpreter import GridExecutor

    caches = [torch.randn(16, 8) for _ in range(2)]
    theirs = [cache.clone() for cache in caches]
    rest = {
        "strides": torch.tensor([32, 32]),
        "tgt_loc_ptr": torch.tensor([3, 4, 9]),
        "src_loc_ptr": torch.tensor([5, 3, 11]),
        "num_locs": 3,
        "num_locs_upper": 4,
        "BYTES_PER_TILE": 32,
    }

    def addresses(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)

    slots.copy_all_layer_kv_cache_tiled((2, 1), addresses(caches), **rest)
    GridExecutor(kernel.rewrite(), kernel.arg_names, (2, 1), [])(addresses(theirs), **rest)
    torch.testing.assert_close(caches, theirs, rtol=0, atol=0)


@case
def build_and_verify_the_draft_tree() -> None:
    from sglang.srt.speculative import eagle_utils

    for topk, steps, tokens in ((1, 3, 4), (2, 3, 6), (3, 4, 12)):
        parents, selected, drafted = draft(topk, steps, tokens)
        for mode in (eagle_utils.TreeMaskMode.FULL_MASK, eagle_utils.TreeMaskMode.QLEN_ONLY):
            *_, index, child, sibling, candidates = eagle_utils.build_tree_kernel_efficient(
                torch.randint(3, (3,)), parents, selected, drafted, Requests.lengths, 16, topk, steps, tokens, mode
            )
        for _ in range(4):  # of three different tokens, so that some are accepted
            accepted = torch.full((3, steps + 1), -1, dtype=torch.int32)
            lengths, predicts = torch.zeros(3, dtype=torch.int32), torch.zeros(3 * tokens, dtype=torch.int32)
            predicted = torch.randint(3, (3, tokens))
            eagle_utils.verify_tree_greedy_func(
                predicts, accepted, lengths, candidates.view(3, tokens), index, child, sibling, predicted, topk
            )


def draft(topk: int, steps: int, tokens: int) -> Any:
    """Parents, selected candidates and tokens of a random draft for three requests, by SGLang's own selection."""
    from sglang.srt.speculative.eagle_utils import organize_draft_results
    from sglang.srt.speculative.spec_utils import select_top_k_tokens

    scores: Any = None
    hidden = torch.zeros(3, 8)
    collected: list[Any] = []
    for step in range(steps):
        rows = 3 if step == 0 else 3 * topk
        probability, token = torch.rand(rows, topk).sort(descending=True).values, torch.randint(3, (rows, topk))
        _, hidden, scores, tree = select_top_k_tokens(step, probability, token, hidden, scores, topk)
        collected.append(tree)
    return organize_draft_results(*(list(part) for part in zip(*collected, strict=True)), tokens)


@case
def gather_what_was_accepted() -> None:
    from sglang.kernels.ops.speculative.eagle import fill_accept_out_cache_loc, fill_bonus_tokens

    fill_bonus_tokens[(3,)](
        torch.randint(900, (3, 4)), torch.tensor([1, 4, 2]), torch.zeros(3, dtype=torch.int64), accept_stride=4
    )
    index = torch.tensor([0, -1, -1, 3, 4, 5, -1, 7])
    fill_accept_out_cache_loc[(8,)](index, torch.arange(40, 48), torch.zeros(8, dtype=torch.int64), 8)


class Cache:
    """Keys and values of two heads for 64 slots, and the slots of the three requests.

    With ``latent`` those of latent attention, in sizes that the original's tiles take.
    """

    def __init__(self, *, latent: bool = False) -> None:
        self.keys, self.values = torch.randn(64, 2, 16), torch.randn(64, 2, 16)
        if latent:
            self.keys = torch.randn(64, 1, 288)
            self.values = self.keys[..., :256]
        self.slots = torch.randperm(64)[:16]
        self.begin = torch.tensor([0, 5, 14, 16], dtype=torch.int32)


@case
def attend_in_extend() -> None:
    from sglang.kernels.ops.attention import extend_attention

    cache, begin = Cache(), torch.tensor([0, 4, 8, 12], dtype=torch.int32)
    q, k, v = torch.randn(12, 4, 16), torch.randn(12, 2, 16), torch.randn(12, 2, 16)
    sizes = 4 * (Requests.lengths + 4)
    mask_begin = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    tree = torch.rand(int(sizes.sum())) < 0.7
    for i, length in enumerate(Requests.lengths.tolist()):  # a token always sees itself
        own = tree[mask_begin[i] : mask_begin[i + 1]].view(4, length + 4)
        own[:, length:].fill_diagonal_(True)
    for mask, starts, whole in ((None, None, True), (tree, mask_begin, True), (tree, mask_begin, False)):
        extend_attention.extend_attention_fwd(
            *(q, k, v, torch.zeros(12, 4, 16), cache.keys, cache.values, begin, cache.begin, cache.slots),
            *(mask, True, starts, 4, 1.0, 1.0, 0.25),
            skip_prefix_custom_mask=whole,
        )


@case
def attend_in_decode() -> None:
    from sglang.kernels.ops.attention import decode_attention

    cache = Cache()
    decode_attention.decode_attention_fwd(
        *(torch.randn(3, 4, 16), cache.keys, cache.values, torch.zeros(3, 4, 16), cache.begin, cache.slots),
        *(torch.zeros(3, 4, 8, 16), torch.zeros(3, 4, 8), torch.full((3,), 2, dtype=torch.int32), 8, 0.25, 1.0, 1.0),
    )


@case
def attend_to_latent_keys() -> None:
    from sglang.kernels.ops.attention import decode_attention, extend_attention

    cache, begin = Cache(latent=True), torch.tensor([0, 4, 8, 12], dtype=torch.int32)
    q, new = torch.randn(12, 4, 288), torch.randn(12, 1, 288)
    extend_attention.extend_attention_fwd(
        *(q, new, new[..., :256], torch.zeros(12, 4, 256), cache.keys, cache.values, begin, cache.begin, cache.slots),
        *(None, True, None, 4, 1.0, 1.0, 0.06),
    )
    decode_attention.decode_attention_fwd(
        *(q[:3], cache.keys, cache.values, torch.zeros(3, 4, 256), cache.begin, cache.slots),
        *(torch.zeros(3, 4, 8, 256), torch.zeros(3, 4, 8), torch.full((3,), 2, dtype=torch.int32), 8, 0.06, 1.0, 1.0),
        has_mla=True,
    )


@case
def attend_to_a_prompt_with_more_heads_than_the_cache_has() -> None:
    from sglang.kernels.ops.attention import extend_attention

    cache, begin = Cache(latent=True), torch.tensor([0, 4, 8, 12], dtype=torch.int32)
    q, k, v = torch.randn(12, 4, 48), torch.randn(12, 4, 48), torch.randn(12, 4, 32)
    nothing = torch.zeros(4, dtype=torch.int32)
    extend_attention.extend_attention_fwd(
        *(q, k, v, torch.zeros(12, 4, 32), cache.keys, cache.values, begin, nothing, cache.slots[:0]),
        *(None, True, None, 4, 1.0, 1.0, 0.14),
    )


@case
def notice_a_wrong_replacement() -> None:
    """The comparison itself: a replacement that is off by one does not pass."""
    from sglang.kernels.ops.speculative.eagle import fill_bonus_tokens

    def wrong(
        grid: dispatch.Grid, accept_tokens: Any, accept_lens: Any, bonus_tokens_ptr: Any, accept_stride: int
    ) -> None:
        bonus_tokens_ptr[: grid[0]] = accept_tokens.flatten()[: grid[0]]

    arguments = {
        "accept_tokens": torch.arange(12),
        "accept_lens": torch.tensor([1, 4, 2]),
        "bonus_tokens_ptr": torch.zeros(3, dtype=torch.int64),
        "accept_stride": 4,
    }
    try:
        dispatch.run_or_interpret(
            dispatch.Replacement(wrong),
            {"grid": (3,), **arguments},
            lambda values: fill_bonus_tokens[(3,)](**{k: v for k, v in values.items() if k != "grid"}),
            "fill_bonus_tokens",
        )
    except AssertionError:
        return
    raise AssertionError("a wrong replacement was taken for the same")


def main() -> int:
    """Run all cases."""
    from sglang.srt.plugins import load_plugins

    dispatch.CHECK = True
    load_plugins()
    torch.manual_seed(0)
    results: dict[str, str] = {}
    for function in CASES:
        try:
            function()
            results[function.__name__] = "same"
        except AssertionError as error:
            results[function.__name__] = str(error)
    compared, known = (
        sorted(dispatch.COMPARED),
        sorted([*dispatch.KERNELS, *(r.name for r in LAUNCHERS.values())]),
    )
    json.dump({"cases": results, "compared": compared, "replacements": known}, sys.stdout, indent=2)
    return int(any(result != "same" for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
