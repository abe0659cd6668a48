"""Rows: the first of a tensor; and in place, by kernels of our own on a GPU, those of one into another, and scaling."""

from torch import Tensor

from eagle3_draft.model import elementwise_kernel


def beginning(x: Tensor, rows: int) -> Tensor:
    """The first rows. All of them are the tensor itself: the gradient of a slice is a copy among zeros."""
    return x if len(x) == rows else x[:rows]


def add_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """``table[rows] += values``, where no row is named twice."""
    if table.is_cuda:
        elementwise_kernel.add_rows(table.flatten(1), rows, values.flatten(1))
    else:
        table.index_add_(0, rows, values)


def put_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """``table[rows] = values``, where no row is named twice."""
    if table.is_cuda:
        elementwise_kernel.set_rows(table.flatten(1), rows, values.flatten(1))
    else:
        table.index_copy_(0, rows, values)


def scale(x: Tensor, by: Tensor) -> None:
    """``x *= by``, a number on the same device."""
    if x.is_cuda:
        elementwise_kernel.scale(x, by)
    else:
        x.mul_(by)
