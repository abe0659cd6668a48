# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The GPU kernel of ``fp8.quantise``, in Triton: one program has one row."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU
    triton = tl = None

#: Numbers of a row that a program has at a time.
BLOCK = 4096


def quantise(rows: Tensor, smallest: float) -> tuple[Tensor, Tensor]:
    """(rows, width) -> the same in float8_e4m3fn, and (rows, 1) float32 scales."""
    count, width = rows.shape
    values = torch.empty_like(rows, dtype=torch.float8_e4m3fn)
    scales = torch.empty(count, 1, dtype=torch.float32, device=rows.device)
    _quantise_kernel[(count,)](rows, values, scales, width, smallest, BLOCK=BLOCK, num_warps=8)
    return values, scales


if triton is not None:

    @triton.jit
    def _quantise_kernel(rows_at, values_at, scales_at, width, smallest, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        rows_at += row * width
        values_at += row * width
        most = tl.zeros([BLOCK], tl.float32)
        for start in range(0, width, BLOCK):
            number = start + tl.arange(0, BLOCK)
            most = tl.maximum(most, tl.abs(tl.load(rows_at + number, mask=number < width, other=0.0).to(tl.float32)))
        largest = tl.maximum(tl.max(most, 0), smallest)
        # The exponent's bits alone are the power of two below it
        power = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        tl.store(scales_at + row, power / 128)
        for start in range(0, width, BLOCK):
            number = start + tl.arange(0, BLOCK)
            there = number < width
            x = tl.load(rows_at + number, mask=there, other=0.0).to(tl.float32)
            tl.store(values_at + number, (x * (128 / power)).to(tl.float8e4nv), mask=there)
