"""Numbers that are not finite end a training, with what is to blame for them."""

from collections.abc import Sequence

import torch.distributed as dist

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.features import Samples

#: Conversations that a message names.
NAMED = 8


def refusal(where: str, split: str, samples: Samples, mine: Sequence[int]) -> StageError:
    """The end of a training, with the conversations to blame: those whose features are not finite, else all that were
    computed, because a single one can make a draft diverge. All ranks call it together.

    Args:
        where: in the training, and what was found there.
        split: what people call the samples.
        samples: that were computed.
        mine: numbers of those that this rank computed.
    """
    bad = _of_all_ranks([number for number in mine if not samples[number].is_finite()])
    why = (
        f"the features of {split} conversation {_named(bad, samples)} are not finite: extract them again"
        if bad
        else f"the features of the {split} conversations that made it are finite: lower train.learningRate. They are "
        + _named(_of_all_ranks(mine), samples)
    )
    return StageError(ExitCode.NON_FINITE, Reason.NON_FINITE, f"{where}; {why}")


def _of_all_ranks(mine: Sequence[int]) -> list[int]:
    """The numbers that any rank names, ascending."""
    of_all: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_all, list(mine))
    return sorted({number for some in of_all for number in some})


def _named(numbers: Sequence[int], samples: Samples) -> str:
    """The first conversations of these, and where they lie."""
    first = ", ".join(f"{number} ({samples.place(number)})" for number in numbers[:NAMED])
    return f"{first} and {more} more" if (more := len(numbers) - NAMED) > 0 else first
