"""What only the weights' values show: numbers that no trained draft has."""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from eagle3_api.checkpoints.rules import Finding, Level, Rule
from eagle3_api.conditions import Reason

_EXPORT = "Export the draft again from where it was trained."

FINITE = Rule("finite", "every value is a number", "one that is none spreads to every proposal", _EXPORT)
HELD = Rule(
    "held",
    "every value fits the type of the target's states",
    "it would be infinite there, and spread to every proposal",
    "Serve the target with --dtype bfloat16 in serve.arguments where its kernels take that.",
)
FILLED = Rule("filled", "no matrix is constant", "it was never filled, and proposes nothing", _EXPORT)
TRAINED = Rule(
    "trained",
    "norms have moved from where training begins",
    "a layer that was never trained serves at accept length 1.0",
    "Take the checkpoint of the training's end.",
)

DISTINCT = Rule(
    "distinct",
    "rows of the head differ",
    "rows that repeat were cut out of a larger head by another map than the draft's own, and propose other words",
    "Cut the head by the tokens' ids: draft id plus d2t.",
)

#: Share of the head's rows that may be the one before once more: tokens that nobody uses. Cut by offsets it is most of them.
_REPEATED = 0.1

_FIRST = 16

#: Training begins with norms of one; weights that moved less than this did not move.
_MOVED = 1e-4


class Values:
    """The least and the greatest value of a tensor that comes in pieces; NaN if there is any.

    Args:
        width: of rows, where those are counted that are the one before once more.
    """

    def __init__(self, width: int | None = None) -> None:
        self.least = math.inf
        self.greatest = -math.inf
        self.rows = self.repeated = 0
        self._width = width
        self._seen: Tensor | None = None  # the last whole row and what came after it

    @classmethod
    def of(cls, name: str, shape: Sequence[int]) -> "Values":
        """For a tensor of this canonical name and shape."""
        return cls(shape[-1] if name == "lm_head.weight" and len(shape) == 2 else None)

    def add(self, piece: Tensor) -> None:
        """Look at one more piece."""
        if not piece.numel():
            return
        if self._width:
            self._count(piece, self._width)
        low, high = (bound.item() for bound in torch.aminmax(piece))
        if math.isnan(low) or math.isnan(high) or math.isnan(self.least):
            self.least = self.greatest = math.nan
            return
        self.least, self.greatest = min(self.least, low), max(self.greatest, high)

    def _count(self, piece: Tensor, width: int) -> None:
        known = piece if self._seen is None else torch.cat([self._seen, piece])
        whole = len(known) // width
        rows = known[: whole * width].view(whole, width)
        self.rows += whole - (self._seen is not None and len(self._seen) >= width)
        # Rows that differ do so among their first values; only what does not is looked at whole
        alike = (rows[1:, :_FIRST] == rows[:-1, :_FIRST]).all(-1).nonzero()[:, 0]
        self.repeated += int((rows[alike + 1] == rows[alike]).all(-1).sum())
        self._seen = known[max(0, whole - 1) * width :].clone()

    @property
    def finite(self) -> bool:
        """Whether all values are finite numbers."""
        return math.isfinite(self.least) and math.isfinite(self.greatest)


def judge(seen: Mapping[str, tuple[Values, int]], dtype: torch.dtype = torch.float32) -> Iterator[Finding]:
    """What is wrong with values.

    Args:
        seen: of each weight its values and the number of its dimensions.
        dtype: that they are written in.
    """
    bad = [name for name, (values, _) in sorted(seen.items()) if not values.finite]
    if bad:
        yield Finding(FINITE, Level.REFUSED, f"{', '.join(bad)}: values that are not finite numbers", Reason.NON_FINITE)
    most = torch.finfo(dtype).max
    for name, (values, _) in sorted(seen.items()):
        if values.finite and max(-values.least, values.greatest) > most:
            reached = max(-values.least, values.greatest)
            text = f"a value of {name} is {reached:g}, and the target's type, {str(dtype).removeprefix('torch.')}, ends at {most:g}"
            yield Finding(HELD, Level.REFUSED, text, Reason.NON_FINITE)
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
    for name, (values, _) in sorted(seen.items()):
        if values.repeated > _REPEATED * values.rows:
            yield Finding(
                DISTINCT,
                Level.REFUSED,
                f"{values.repeated} of {values.rows} rows of {name} are the row before once more: the head was cut out of a larger "
                "one by the offsets in d2t instead of the tokens' ids (TorchSpec's export of 2026 does that)",
                Reason.VOCABULARY_MAP,
            )
    fresh = [
        name
        for name, (values, dimensions) in sorted(seen.items())
        if dimensions == 1 and abs(values.least - 1) < _MOVED and abs(values.greatest - 1) < _MOVED
    ]
    if fresh:
        yield Finding(TRAINED, Level.WARNING, f"{', '.join(fresh)}: every value is 1, as before training")
