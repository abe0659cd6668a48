"""Whether states that were computed in another way differ by rounding alone, in every channel and every row.

How far two ways of adding up in bf16 lie apart depends on the target, its layer and the channel. So nothing is bounded by a
number of anybody's choice: both are compared with the same states in fp32, and where one is further from these than the
other is, by more than a factor, it is something else than rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Channels are judged by how far they are off in all rows but one in so many: those of a first token are hundreds of times
#: larger in some channels, and its rounding is that of one number.
SPARED = 20

#: Two ways in bf16 were never further apart than 1.7 on a real target (SmolLM2-135M on a CPU, scores in bf16 against fp32); a
#: channel with its neighbour's numbers is 50 and more.
ROUNDING = 3.0

#: Stands for an error of zero: where others make none, as in an embedding, no other is small.
_NOTHING = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Distance:
    """How many times as far as others some states are from the exact ones.

    Attributes:
        channel: in the channel where that is most.
        row: at the worst row of theirs, against the worst of the others'.
    """

    channel: float
    row: float

    @property
    def is_rounding(self) -> bool:
        """Whether no channel and no row is further off than rounding goes."""
        return max(self.channel, self.row) < ROUNDING


def distances(states: Tensor, others: Tensor, exact: Tensor, widths: Sequence[int]) -> list[Distance]:
    """Of each part of the channels, in their order.

    Args:
        states: (rows, channels), that are judged.
        others: the same, as far from the exact ones as rounding goes.
        exact: the same, computed in fp32.
        widths: channels of each part.
    """
    every = zip(*(torch.split(tensor.float(), list(widths), -1) for tensor in (states, others, exact)), strict=True)
    return [_distance(mine - precise, other - precise) for mine, other, precise in every]


def _distance(mine: Tensor, other: Tensor) -> Distance:
    channels = _usual(mine) / _usual(other)
    rows = mine.norm(dim=-1).max() / other.norm(dim=-1).max().clamp(min=_NOTHING)
    return Distance(float(channels.max()), float(rows))


def _usual(errors: Tensor) -> Tensor:
    """Of each channel, an error that few rows exceed; above zero."""
    rows = errors.shape[0]
    return errors.abs().kthvalue(rows - rows // SPARED, dim=0).values.clamp(min=_NOTHING)
