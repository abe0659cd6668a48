"""Numbers that are not finite end a training, with what is to blame for them."""

from collections.abc import Sequence

import torch.distributed as dist

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.features import Samples
from eagle3_draft.stage import StageError

#: Conversations that a message names.
NAMED = 8


def refusal(where: str, split: str, samples: Samples, mine: Sequence[int]) -> StageError:
    """The end of a training, with the conversations if it is their features that are not finite. All ranks call it together.

    Args:
        where: in the training, and what was found there.
        split: what people call the samples.
        samples: that were computed.
        mine: numbers of those that this rank computed.
    """
    bad = _not_finite(samples, mine)
    why = (
        f"the features of {split} conversation {bad} are not finite: extract them again"
        if bad
        else f"the features of the {split} conversations that made it are finite: lower train.learningRate"
    )
    return StageError(ExitCode.NON_FINITE, Reason.NON_FINITE, f"{where}; {why}")


def _not_finite(samples: Samples, mine: Sequence[int]) -> str:
    """Which conversations have features that are not finite, on any rank, and where they lie."""
    found = [(number, samples.place(number)) for number in mine if not samples[number].is_finite()]
    of_all: list[list[tuple[int, str]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_all, found)
    named = sorted({one for some in of_all for one in some})
    return ", ".join(f"{number} ({place})" for number, place in named[:NAMED])
