"""The draft's vocabulary: the target's tokens that the assistant uses most, and those that frame what it says."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from eagle3_draft.data.tokenizer_files import SpecialTokens
from eagle3_draft.features import Text
from eagle3_draft.files import write_atomic

#: A working file of Train's: the usage of tokens, which takes a reading of the whole store to count.
USAGE_FILE = ".usage.safetensors"

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
        write_atomic(path, save({"d2t": self.offsets, "t2d": self.members}))

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read d2t and t2d."""
        tensors = load_file(path)
        offsets = tensors["d2t"]
        return cls(ids=offsets + torch.arange(len(offsets)), target_size=len(tensors["t2d"]))


@dataclass(frozen=True)
class Usage:
    """How often each token of the target's vocabulary occurs in the conversations to learn from.

    Args:
        supervised: (target vocabulary,) int64, where it is the assistant's.
        overall: (target vocabulary,) int64, whoever's it is.
    """

    supervised: Tensor
    overall: Tensor

    @classmethod
    def of(cls, samples: Iterable[Text], target_size: int) -> "Usage":
        """Count the tokens of conversations."""
        supervised = torch.zeros(target_size, dtype=torch.int64)
        overall = supervised.clone()
        for sample in samples:
            ids = sample.input_ids.long()
            supervised += torch.bincount(ids[sample.loss_mask.bool()], minlength=target_size)
            overall += torch.bincount(ids, minlength=target_size)
        return cls(supervised, overall)

    def save(self, path: Path) -> None:
        """Write both."""
        write_atomic(path, save({"supervised": self.supervised, "overall": self.overall}))

    @classmethod
    def load(cls, path: Path) -> "Usage":
        """Read both."""
        return cls(**load_file(path))


def required(special: SpecialTokens, template: str, usage: Usage) -> frozenset[int]:
    """The special tokens that are in whatever their count: a draft that cannot propose the end of a turn runs past it.

    Those that begin, end or pad a text, those that the chat template writes, and those that the conversations have, in
    any role. Tokenizers also name hundreds that nothing writes (Llama 3 reserves some 250 of its 256), whose place
    a word can have.

    Args:
        special: of the target's tokenizer.
        template: Jinja text, of its chat template.
        usage: in the conversations.
    """
    return special.framing | {
        token for token, text in special.texts.items() if text in template or _occurs(token, usage)
    }


def choose(counts: Tensor, size: int, always: Collection[int]) -> Vocabulary:
    """The most frequent tokens; of equally frequent ones the lower id.

    Args:
        counts: of each token, (target vocabulary,).
        size: tokens wanted, a multiple of 64; at most the target's vocabulary, rounded down to one.
        always: ids that are in whatever their count; those that are no tokens of the target are left out.

    Raises:
        ValueError: the size is not a multiple of 64, or more are to be in than there is room for.
    """
    if size < MULTIPLE or size % MULTIPLE:
        raise ValueError(f"a vocabulary of {size} cannot be served: it must be a multiple of {MULTIPLE}")
    size = min(size, len(counts) // MULTIPLE * MULTIPLE)
    known = sorted(token for token in always if token < len(counts))
    if len(known) > size:
        raise ValueError(
            "the special tokens of the target's chat template and of the data are always in, and "
            f"{len(known)} tokens cannot all be in a vocabulary of {size}"
        )
    ranks = counts.clone()
    ranks[known] = torch.iinfo(ranks.dtype).max
    order = torch.sort(ranks, descending=True, stable=True).indices
    return Vocabulary(ids=order[:size].sort().values, target_size=len(counts))


def coverage(vocabulary: Vocabulary, usage: Usage) -> float:
    """Share of the assistant's tokens that the draft can propose."""
    total = int(usage.supervised.sum())
    return int(usage.supervised[vocabulary.ids].sum()) / total if total else 0.0


def _occurs(token: int, usage: Usage) -> bool:
    return token < len(usage.overall) and bool(usage.overall[token])
