# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,attr-defined"
"""Of each row of logits the most likely token and the log-sum-exp, in one read.

While states are extracted this follows every forward of the target, whose process is busy with launching kernels: torch's own
functions would be some ten launches and four times the memory's traffic.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU
    triton = tl = None

#: Logits that a program has at a time.
BLOCK = 4096


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely token, (rows,) int32, and the log-sum-exp, (rows,) float32, of (rows, vocabulary)."""
    if not logits.is_cuda:
        wide = logits.float()
        return wide.argmax(-1).to(torch.int32), wide.logsumexp(-1)
    return _by_kernel(logits.contiguous())


def _by_kernel(logits: Tensor) -> tuple[Tensor, Tensor]:
    token = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    normaliser = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        _likeliest_kernel[(len(logits),)](logits, token, normaliser, logits.shape[1], BLOCK=BLOCK, num_warps=8)
    return token, normaliser


if triton is not None:

    @triton.jit
    def _likeliest_kernel(logits_at, token_at, normaliser_at, vocabulary, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        logits_at += row.to(tl.int64) * vocabulary
        highest = -float("inf")
        total = 0.0
        best = 0
        for start in range(0, vocabulary, BLOCK):
            number = start + tl.arange(0, BLOCK)
            logits = tl.load(logits_at + number, mask=number < vocabulary, other=-float("inf")).to(tl.float32)
            block_highest, block_best = tl.max(logits, 0, return_indices=True)
            best = tl.where(block_highest > highest, start + block_best, best)
            higher = tl.maximum(highest, block_highest)
            total = total * tl.exp(highest - higher) + tl.sum(tl.exp(logits - higher), 0)
            highest = higher
        tl.store(token_at + row, best.to(tl.int32))
        tl.store(normaliser_at + row, highest + tl.log(total))
