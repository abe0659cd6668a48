"""Matrices and rows that several steps of an unroll use: their gradients are summed where they are made."""

from typing import Any

import torch
from torch import Tensor

from eagle3_draft.model.factor import Factor
from eagle3_draft.model.rowwise import add_rows


class Reused:
    """A matrix (out, in) that multiplies several inputs in one forward.

    Its gradient is summed in place, product by product, instead of by additions of whole gradients afterwards. Only the
    last product of the backward hands the sum on, so the gradient of every product's result must be asked for.
    """

    def __init__(self, factor: Factor) -> None:
        self.factor = factor
        self.uses = 0
        self.sum: Tensor | None = None

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """``x @ weight.T + plus``: (rows, in) -> (rows, out). It takes the place of ``plus``."""
        out: Tensor = _Multiply.apply(x, self.factor.weight, plus, self)  # type: ignore[no-untyped-call]
        return out

    def add(self, gradient: Tensor, x: Tensor) -> Tensor | None:
        """Add one product's gradient; returns the sum when it is complete."""
        if self.sum is None:
            self.sum = gradient.T @ x
        else:
            self.sum.addmm_(gradient.T, x)
        self.uses -= 1
        return None if self.uses else self.sum


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, _weight: Tensor, plus: Tensor | None, reused: Reused) -> Tensor:
        ctx.save_for_backward(x)
        ctx.reused, ctx.plus = reused, plus is not None
        if ctx.needs_input_grad[1]:
            reused.uses += 1
        if plus is not None:
            ctx.mark_dirty(plus)
        return reused.factor.forward(x, plus)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        (gradient,) = gradients
        (x,) = ctx.saved_tensors
        of_x = ctx.reused.factor.backward(gradient)
        return of_x, ctx.reused.add(gradient, x), gradient if ctx.plus else None, None


class Table:
    """Rows (tokens, width) of which several steps pick some. Its gradient is summed in place, as ``Reused``'s is."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.uses = 0
        self.sum: Tensor | None = None

    def pick(self, rows: Tensor) -> Tensor:
        """``table[rows]``, none of them twice."""
        picked: Tensor = _Pick.apply(self.rows, rows, self)  # type: ignore[no-untyped-call]
        return picked

    def add(self, gradient: Tensor, rows: Tensor, like: tuple[int, ...]) -> Tensor | None:
        """Add the gradient of some rows; returns the sum when it is complete."""
        if self.sum is None:
            self.sum = gradient.new_zeros(like)
        add_rows(self.sum, rows, gradient)
        self.uses -= 1
        return None if self.uses else self.sum


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, from_rows: Tensor, rows: Tensor, table: Table) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.table, ctx.like = table, from_rows.shape
        if ctx.needs_input_grad[0]:
            table.uses += 1
        return from_rows.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (rows,) = ctx.saved_tensors
        return ctx.table.add(gradients[0], rows, ctx.like), None, None
