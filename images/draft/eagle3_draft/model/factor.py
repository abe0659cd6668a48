"""A matrix that many inputs are multiplied with, and gradients with its transpose: exactly, or in FP8."""

import torch
from torch import Tensor

from eagle3_draft.model import fp8


class Factor:
    """A matrix (out, in) that multiplies in its own type."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """``x @ weight.T + plus``: (rows, in) -> (rows, out). It takes the place of ``plus``."""
        return x @ self.weight.T if plus is None else plus.addmm_(x, self.weight.T)

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient of ``x``: (rows, out) -> (rows, in)."""
        return gradient @ self.weight


class Fp8Factor(Factor):
    """A matrix that multiplies in FP8 both ways.

    It is rounded once for all its uses: by rows for the forward, by columns for the backward, so that the scales of both
    operands stand outside of the sum. The matrix's own gradient is the caller's, and left to wider numbers: that sum is
    over rows of data, errors in it stay in the weights, and rounding its operands would take a transposing pass over each
    (the same choice as torchao's recipe "rowwise_with_gw_hp").
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        with torch.no_grad():
            self._rows = fp8.quantise(weight)
            self._columns = fp8.quantise(weight.T)

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """As ``Factor`` says."""
        product = fp8.multiply(fp8.quantise(x), self._rows, x.dtype)
        return product if plus is None else plus.add_(product)

    def backward(self, gradient: Tensor) -> Tensor:
        """As ``Factor`` says."""
        return fp8.multiply(fp8.quantise(gradient), self._columns, gradient.dtype)


#: By what ``train.precision`` calls them.
FACTORS: dict[str, type[Factor]] = {"bf16": Factor, "fp8": Fp8Factor}
