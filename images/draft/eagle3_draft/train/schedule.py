"""The learning rate over a training."""

import math

#: Share of the steps over which the rate rises to its peak.
WARM_UP = 0.015


def learning_rate(step: int, steps: int, peak: float) -> float:
    """The rate of a step (0-based) of ``steps``: a linear warm-up, then half a cosine down to 0."""
    warm_up = max(1, round(WARM_UP * steps))
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))
