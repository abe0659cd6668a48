"""Matrix products whose operands are FP8 (E4M3), each row with a scale of its own.

A row is scaled so that its largest number lies in [128, 256), by a power of two: scaling itself rounds nothing, and what is
2^17 times smaller than the row's largest still has all its four bits. Elsewhere than on a GPU the numbers are rounded in
the same way and multiplied in their own type, so that what FP8 does to a training can be seen without one.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from eagle3_draft.model import fp8_kernel

FP8 = torch.float8_e4m3fn

#: Rows of nothing but zeros, and of numbers that no float32 scale could tell from it, are scaled as if this was there.
SMALLEST = 1e-30

#: The first NVIDIA architecture whose tensor cores multiply FP8: Ada. Hopper is (9, 0).
FIRST_CAPABILITY = (8, 9)

#: Of both sizes of a matrix, for the tensor cores.
MULTIPLE = 16


class Quantised(NamedTuple):
    """Rows in FP8: ``values * scales`` is what they stand for."""

    values: Tensor  # (rows, width) float8_e4m3fn
    scales: Tensor  # (rows, 1) float32, powers of two


def quantise(rows: Tensor) -> Quantised:
    """Round numbers, (rows, width), to FP8. Rows with an infinity or a NaN get a NaN."""
    if rows.is_cuda:
        return Quantised(*fp8_kernel.quantise(rows.contiguous(), SMALLEST))
    largest = rows.abs().amax(-1, keepdim=True).to(torch.float32).clamp(min=SMALLEST)
    _, exponent = torch.frexp(largest)  # largest is in [0.5, 1) * 2^exponent
    scales = torch.ldexp(torch.ones_like(largest), exponent - 8).where(largest.isfinite(), torch.nan)
    return Quantised((rows / scales).to(FP8), scales)


def restored(quantised: Quantised, kind: torch.dtype) -> Tensor:
    """What the rows stand for, as numbers of a type."""
    return quantised.values.to(kind) * quantised.scales.to(kind)


def multiply(one: Quantised, other: Quantised, kind: torch.dtype) -> Tensor:
    """``one @ other.T``: (rows, width), (columns, width) -> (rows, columns) of a type, bfloat16 on a GPU.

    On a GPU width and columns must be multiples of ``MULTIPLE``.
    """
    if not one.values.is_cuda:
        return restored(one, kind) @ restored(other, kind).T
    return torch._scaled_mm(
        one.values,
        other.values.T,
        scale_a=one.scales,
        scale_b=other.scales.T,
        out_dtype=kind,
        use_fast_accum=True,
    )


def refusal(name: str, capability: tuple[int, int], *, nvidia: bool = True) -> str | None:
    """Why a GPU cannot multiply FP8, None if it can.

    Args:
        name: of the GPU.
        capability: its compute capability.
        nvidia: whether it is NVIDIA's: the FP8 of other makers has other numbers.
    """
    if not nvidia:
        return f"{name} is not NVIDIA's"
    if capability < FIRST_CAPABILITY:
        return f"{name} has compute capability {capability[0]}.{capability[1]}, and FP8 begins with 8.9 (Ada, Hopper)"
    return None
