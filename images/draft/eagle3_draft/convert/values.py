"""What only the weights' values show: numbers that no trained draft has."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from eagle3_api.checkpoints.rules import Finding, Level, Rule
from eagle3_api.conditions import Reason

_EXPORT = "Export the draft again from where it was trained."

FINITE = Rule("finite", "every value is a number", "one that is none spreads to every proposal", _EXPORT)
FILLED = Rule("filled", "no matrix is constant", "it was never filled, and proposes nothing", _EXPORT)
TRAINED = Rule(
    "trained",
    "norms have moved from where training begins",
    "a layer that was never trained serves at accept length 1.0",
    "Take the checkpoint of the training's end.",
)

#: Training begins with norms of one; weights that moved less than this did not move.
_MOVED = 1e-4


class Values:
    """The least and the greatest value of a tensor that comes in pieces; NaN if there is any."""

    def __init__(self) -> None:
        self.least = math.inf
        self.greatest = -math.inf

    def add(self, piece: Tensor) -> None:
        """Look at one more piece."""
        if not piece.numel():
            return
        low, high = (bound.item() for bound in torch.aminmax(piece))
        if math.isnan(low) or math.isnan(high) or math.isnan(self.least):
            self.least = self.greatest = math.nan
            return
        self.least, self.greatest = min(self.least, low), max(self.greatest, high)

    @property
    def finite(self) -> bool:
        """Whether all values are finite numbers."""
        return math.isfinite(self.least) and math.isfinite(self.greatest)


def judge(seen: Mapping[str, tuple[Values, int]]) -> Iterator[Finding]:
    """What is wrong with values.

    Args:
        seen: of each weight its values and the number of its dimensions.
    """
    bad = [name for name, (values, _) in sorted(seen.items()) if not values.finite]
    if bad:
        yield Finding(FINITE, Level.REFUSED, f"{', '.join(bad)}: values that are not finite numbers", Reason.NON_FINITE)
    constant = [
        name
        for name, (values, dimensions) in sorted(seen.items())
        if dimensions > 1 and values.finite and values.least == values.greatest
    ]
    for name in constant:
        value = seen[name][0].least
        yield Finding(
            FILLED,
            Level.REFUSED,
            f"every value of {name} is {value:g}: it was never filled",
            Reason.CHECKPOINT_INCOMPLETE,
        )
    fresh = [
        name
        for name, (values, dimensions) in sorted(seen.items())
        if dimensions == 1 and abs(values.least - 1) < _MOVED and abs(values.greatest - 1) < _MOVED
    ]
    if fresh:
        yield Finding(TRAINED, Level.WARNING, f"{', '.join(fresh)}: every value is 1, as before training")
