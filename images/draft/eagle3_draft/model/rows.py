"""Which rows of a pack each unroll step needs.

A row of the pack is one position. Its later steps are seen by no other row: only the first step's keys and values are
shared. So row p is computed at step i if and only if a loss counts its proposal at step i or a later one; of every other
row, the first step's key and value are all that is needed. Leaving the rest out changes no loss and no gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The rows that are unrolled, those that are needed longest first: step i computes the first ``alive[i]``.

    ``alive`` is rounded up, so that matrices keep shapes that a GPU likes. Rows that fill up are computed for nothing.
    """

    positions: Tensor  # (tokens,) int64, of each row of the pack in its document
    starts: Tensor  # (tokens,) int64, the row at which its document begins
    cells: Tensor  # (tokens,) int64, its place in a grid of one document a line
    grid: tuple[int, int]  # lines, and the cells of each
    rows: Tensor  # (alive[0],) int64, rows of the pack, none twice
    alive: tuple[int, ...]  # per step, never rising
    spots: list[Tensor]  # per step (wanted_i,) int64, where in ``rows`` the wanted rows are

    def to(self, device: torch.device) -> "Rows":
        """The same rows on a device."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        return Rows(
            positions=moved(self.positions),
            starts=moved(self.starts),
            cells=moved(self.cells),
            grid=self.grid,
            rows=moved(self.rows),
            alive=self.alive,
            spots=[moved(spot) for spot in self.spots],
        )


def needed(documents: Sequence[int], wanted: Sequence[Tensor], multiple: int = 1) -> Rows:
    """The rows that the wanted proposals need.

    Args:
        documents: tokens of each document; their sum must be a multiple of ``multiple``.
        wanted: for each step, the rows (wanted_i,) whose proposal counts.
        multiple: of which each step's number of rows is one. No step has none.
    """
    lengths = torch.tensor(documents)
    begins = lengths.cumsum(0) - lengths
    starts = begins.repeat_interleave(lengths)
    tokens = len(starts)
    if tokens % multiple:
        raise ValueError(f"{tokens} rows are not a multiple of {multiple}")
    last = torch.full((tokens,), -1)  # the last step that each row is needed in
    for step, rows in enumerate(wanted):
        last[rows] = step
    order = last.argsort(descending=True, stable=True)
    counts = [max(1, int((last >= step).sum())) for step in range(len(wanted))]
    alive = tuple(-(-count // multiple) * multiple for count in counts)
    rows = order[: alive[0]]
    spot = torch.empty(tokens, dtype=torch.int64)
    spot[rows] = torch.arange(len(rows))
    positions = torch.arange(tokens) - starts
    line = -(-max(documents) // multiple) * multiple
    return Rows(
        positions=positions,
        starts=starts,
        cells=torch.arange(len(documents)).repeat_interleave(lengths) * line + positions,
        grid=(len(documents), line),
        rows=rows,
        alive=alive,
        spots=[spot[rows] for rows in wanted],
    )
