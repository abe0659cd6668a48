"""The draft's vocabulary: the target's tokens that the assistant uses most."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3_draft.features import Sample

#: SGLang pads a draft's head to a multiple of this, and fails to capture graphs where the head is not one.
MULTIPLE = 64


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that a draft can propose.

    Args:
        ids: (draft vocabulary,) int64, their ids in the target, each once; ascending where it was chosen here. A draft id is
            an index of it.
        target_size: of the target's vocabulary.
    """

    ids: Tensor
    target_size: int

    @property
    def offsets(self) -> Tensor:
        """d2t, (draft vocabulary,) int64: target id minus draft id."""
        return self.ids - torch.arange(len(self.ids))

    @property
    def members(self) -> Tensor:
        """t2d, (target vocabulary,) bool: whether the draft knows a token."""
        inside = torch.zeros(self.target_size, dtype=torch.bool)
        inside[self.ids] = True
        return inside

    def save(self, path: Path) -> None:
        """Write d2t and t2d."""
        save_file({"d2t": self.offsets, "t2d": self.members}, path)

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read d2t and t2d."""
        tensors = load_file(path)
        offsets = tensors["d2t"]
        return cls(ids=offsets + torch.arange(len(offsets)), target_size=len(tensors["t2d"]))


def count_supervised(samples: Iterable[Sample], target_size: int) -> Tensor:
    """How often each token of the target's vocabulary is the assistant's: (target vocabulary,) int64."""
    counts = torch.zeros(target_size, dtype=torch.int64)
    for sample in samples:
        counts += torch.bincount(sample.input_ids[sample.loss_mask.bool()].long(), minlength=target_size)
    return counts


def choose(counts: Tensor, size: int, always: Sequence[int]) -> Vocabulary:
    """The most frequent tokens; of equally frequent ones the lower id.

    Args:
        counts: of each token, (target vocabulary,).
        size: tokens wanted, a multiple of 64; at most the target's vocabulary, rounded down to one.
        always: ids that are in whatever their count (a draft that cannot propose the end of a turn runs past it).
    """
    size = min(size, len(counts) // MULTIPLE * MULTIPLE)
    ranks = counts.clone()
    ranks[[token for token in always if token < len(counts)]] = torch.iinfo(ranks.dtype).max
    order = torch.sort(ranks, descending=True, stable=True).indices
    return Vocabulary(ids=order[:size].sort().values, target_size=len(counts))


def coverage(vocabulary: Vocabulary, counts: Tensor) -> float:
    """Share of the assistant's tokens that the draft can propose."""
    total = int(counts.sum())
    return int(counts[vocabulary.ids].sum()) / total if total else 0.0
