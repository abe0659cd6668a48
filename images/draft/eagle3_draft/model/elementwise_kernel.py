# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""GPU kernels, in Triton, for what the compiler makes less well: the gate's gradient, rows by number, scaling in place."""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU
    triton = tl = None

#: Numbers of a program.
BLOCK = 2048


def gate_backward(gradient: Tensor, wide: Tensor) -> Tensor:
    """Gradient of ``silu(gate) * up`` by (gate, up) side by side: (rows, intermediate), (rows, 2 intermediate) -> as the latter."""
    rows, width = gradient.shape
    out = torch.empty_like(wide)
    grid = (rows, triton.cdiv(width, BLOCK))
    _gate_backward_kernel[grid](gradient.contiguous(), wide, out, width, BLOCK=BLOCK)
    return out


def add_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """``table[rows] += values`` in place, where no row is named twice: (tokens, width), (rows,), (rows, width)."""
    count, width = values.shape
    grid = (count, triton.cdiv(width, BLOCK))
    _add_rows_kernel[grid](table, rows, values.contiguous(), width, BLOCK=BLOCK)


def set_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """``table[rows] = values`` in place, as ``add_rows``."""
    count, width = values.shape
    grid = (count, triton.cdiv(width, BLOCK))
    _set_rows_kernel[grid](table, rows, values.contiguous(), width, BLOCK=BLOCK)


def scale(x: Tensor, by: Tensor) -> None:
    """Multiply a tensor in place by a number that lies on the GPU. By one, which is usual, it moves nothing."""
    _scale_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, by, x.numel(), BLOCK=BLOCK)


if triton is not None:

    @triton.jit
    def _gate_backward_kernel(gradient_at, wide_at, out_at, width, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        there = number < width
        gradient = tl.load(gradient_at + row * width + number, mask=there, other=0.0).to(tl.float32)
        gate = tl.load(wide_at + 2 * row * width + number, mask=there, other=0.0).to(tl.float32)
        up = tl.load(wide_at + (2 * row + 1) * width + number, mask=there, other=0.0).to(tl.float32)
        share = 1 / (1 + tl.exp(-gate))
        of_gate = gradient * up * share * (1 + gate * (1 - share))
        element = out_at.dtype.element_ty
        tl.store(out_at + 2 * row * width + number, of_gate.to(element), mask=there)
        tl.store(out_at + (2 * row + 1) * width + number, (gradient * gate * share).to(element), mask=there)

    @triton.jit
    def _add_rows_kernel(table_at, rows_at, values_at, width, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        there = number < width
        table_at += tl.load(rows_at + row) * width
        value = tl.load(values_at + row * width + number, mask=there, other=0.0).to(tl.float32)
        before = tl.load(table_at + number, mask=there, other=0.0).to(tl.float32)
        tl.store(table_at + number, (before + value).to(table_at.dtype.element_ty), mask=there)

    @triton.jit
    def _set_rows_kernel(table_at, rows_at, values_at, width, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        there = number < width
        table_at += tl.load(rows_at + row) * width
        tl.store(table_at + number, tl.load(values_at + row * width + number, mask=there, other=0.0), mask=there)

    @triton.jit
    def _scale_kernel(x_at, by_at, numbers, BLOCK: tl.constexpr):
        by = tl.load(by_at).to(tl.float32)
        if by != 1.0:
            number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            there = number < numbers
            x = tl.load(x_at + number, mask=there, other=0.0).to(tl.float32) * by
            tl.store(x_at + number, x.to(x_at.dtype.element_ty), mask=there)
