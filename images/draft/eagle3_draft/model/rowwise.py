"""In place: rows of one tensor into rows of another, and scaling. By kernels of our own on a GPU."""

from torch import Tensor

from eagle3_draft.model import elementwise_kernel


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
