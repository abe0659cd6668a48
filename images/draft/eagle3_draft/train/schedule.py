"""What happens when in a training: the learning rate, and the evaluations."""

import math
from collections.abc import Sequence

#: Share of the steps over which the rate rises to its peak.
WARM_UP = 0.015


def learning_rate(step: int, steps: int, peak: float) -> float:
    """The rate of a step (0-based) of ``steps``: a linear warm-up, then half a cosine down to 0."""
    warm_up = max(1, round(WARM_UP * steps))
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def evaluation_steps(steps: Sequence[int], per_epoch: int) -> frozenset[int]:
    """The steps (1-based, over all epochs) after which the draft is measured: the last of each epoch, and evenly before it.

    Args:
        steps: of each epoch.
        per_epoch: evaluations wanted; an epoch of fewer steps has one after each.
    """
    found: set[int] = set()
    start = 0
    for of_epoch in steps:
        found.update(start + math.ceil(of_epoch * part / per_epoch) for part in range(1, per_epoch + 1))
        start += of_epoch
    return frozenset(found)
