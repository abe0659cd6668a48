"""When a training has learned what there is to learn."""

from collections.abc import Sequence


def has_plateaued(lengths: Sequence[float], *, patience: int, min_improvement: float) -> bool:
    """Whether the last ``patience`` evaluations brought nothing.

    Args:
        lengths: the expected accept length at each evaluation so far.
        patience: evaluations in a row that may pass without an improvement.
        min_improvement: what counts as one: so much above the last that counted. Many small steps that add up to it do.
    """
    reached, since = float("-inf"), 0
    for length in lengths:
        if length >= reached + min_improvement:
            reached, since = length, 0
        else:
            since += 1
    return since >= patience
