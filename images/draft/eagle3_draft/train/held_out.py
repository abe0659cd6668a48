"""The held-out sample that travels with Train's artifact, so that conversion can ask where the trainer asked.

It has the beginnings of a few held-out conversations, laid out as a shard is, and what the draft proposed at each of their
positions when its weights were measured. A proposal depends on nothing that comes after it, so that of a beginning is that of
the whole conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3_api.artifacts import HELD_OUT
from eagle3_api.jobs import StageName
from eagle3_draft.features import Sample, sample_of
from eagle3_draft.files import noticing_a_full_volume
from eagle3_draft.storage import artifacts
from eagle3_draft.train.batches import Batch

#: Bounds of the sample: conversations, and tokens of each.
CONVERSATIONS, TOKENS = 64, 256

#: Where nothing is proposed: no label follows.
NONE = -1

_COLUMNS = frozenset({"input_ids", "loss_mask", "hidden", "top_tokens", "top_log_probabilities", "offsets"})


@dataclass(frozen=True)
class HeldOut:
    """The sample.

    Attributes:
        samples: beginnings of conversations; of what the target says, its most likely token alone.
        proposals: of each sample (tokens, steps) int32, the target's ids of what the draft proposed at each position in each unroll
            step, or ``NONE``. None where the trainer was of a version that kept none.
    """

    samples: list[Sample]
    proposals: list[Tensor] | None = None


class Recorder:
    """Takes down what a draft proposes on the sample while it is measured on all held-out conversations.

    Args:
        lengths: tokens of each held-out conversation.
        steps: unroll steps that are taken down.
    """

    def __init__(self, lengths: Sequence[int], steps: int) -> None:
        self._starts = [0, *accumulate(min(length, TOKENS) for length in lengths[:CONVERSATIONS])]
        self._table = torch.full((self._starts[-1], steps), NONE, dtype=torch.int32)

    def add(self, chosen: Sequence[int], batch: Batch, proposed: Sequence[Tensor]) -> None:
        """Of a batch that was packed of these conversations: per step (wanted_i,), the target's ids of its proposals."""
        sampled = len(self._starts) - 1
        if min(chosen) >= sampled:
            return
        table = batch.table(proposed, missing=NONE)[:, : self._table.shape[1]].to(torch.int32)
        documents = zip(chosen, accumulate(batch.documents, initial=0), strict=False)  # the last may be a filler
        for conversation, start in documents:
            if conversation < sampled:
                first, end = self._starts[conversation : conversation + 2]
                self._table[first:end] = table[start : start + end - first]

    def gathered(self) -> Tensor:
        """(tokens of the sample, steps) int32 of all ranks, which call it together."""
        dist.all_reduce(self._table, dist.ReduceOp.MAX)
        return self._table


def save(path: Path, samples: Sequence[Sample], dtype: torch.dtype, proposals: Tensor | None = None) -> None:
    """Write the sample: what a draft reads, the target's most likely tokens, and what the draft proposed.

    Args:
        path: of the file.
        samples: the held-out conversations; of the first ones the beginnings are kept.
        dtype: in which states are kept.
        proposals: of ``Recorder``; None where nobody recorded them.
    """
    cut = [one.rows(slice(TOKENS)) for one in samples[:CONVERSATIONS]]
    with noticing_a_full_volume(path.parent):
        save_file(
            {
                "input_ids": torch.cat([one.input_ids for one in cut]),
                "loss_mask": torch.cat([one.loss_mask for one in cut]),
                "top_tokens": torch.cat([one.teaching.greedy for one in cut])[:, None].contiguous(),
                "top_log_probabilities": torch.zeros(sum(map(len, cut)), 1, dtype=torch.float16),
                "hidden": torch.cat([one.states(dtype) for one in cut]),
                "offsets": torch.tensor([0, *accumulate(map(len, cut))]),
            }
            | ({} if proposals is None else {"proposals": proposals}),
            path,
        )


def read(trained: Path) -> HeldOut:
    """The sample of Train's artifact.

    Raises:
        StageError: it is not what was published, or another version published it otherwise (CorruptArtifact).
    """
    columns = load_file(artifacts.verified(trained, HELD_OUT))
    if missing := _COLUMNS - columns.keys():
        what = f"{HELD_OUT} has no {', '.join(sorted(missing))}"
        raise artifacts.outdated(trained, StageName.TRAIN, what)
    bounds = list(pairwise(columns.pop("offsets").tolist()))
    proposals = columns.pop("proposals", None)
    return HeldOut(
        [sample_of({name: rows[start:end] for name, rows in columns.items()}) for start, end in bounds],
        None if proposals is None else [proposals[start:end] for start, end in bounds],
    )
