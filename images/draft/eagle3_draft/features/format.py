"""Names, types and values that the writer and the reader of features share."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import torch
from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.features import TOP_K, FeatureDtype, TeacherKind
from eagle3_draft.features import teaching
from eagle3_draft.features.pieces import merged
from eagle3_draft.features.scaled import FP8, quantised, restored
from eagle3_draft.features.teaching import Teaching

LENGTHS = "lengths.safetensors"

#: Of SHA-256.
DIGEST_BYTES = 32

#: What is hashed together with its neighbours: for each larger piece Python goes to another thread, and waits to have its turn again.
HASHED_TOGETHER = 16 * 1024

#: In which an engine hands states over. FP8 is stored with scales and made of bf16.
TORCH_DTYPES = {"fp8": torch.bfloat16, "bf16": torch.bfloat16, "fp32": torch.float32}

#: What ``fp8`` stores scaled, of what there is of it.
STATES = frozenset({"hidden", "last"})


#: The tensors of a conversation that hold what it says; the others hold what was computed over it. Each group has a digest of
#: its own, so that who counts words reads a thousandth of the bytes.
TEXT_TENSORS = ("input_ids", "loss_mask")


class Split(StrEnum):
    """Which conversations: those that are learned from, and those that measure the draft and probe servers."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Text:
    """What a conversation says.

    Attributes:
        input_ids: int32 (tokens,).
        loss_mask: uint8 (tokens,), 1 where the token is the assistant's.
    """

    input_ids: torch.Tensor
    loss_mask: torch.Tensor

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class Sample(Text):
    """One conversation: what it says, and what the target computed over it.

    Attributes:
        hidden: (tokens, layers x hidden), outputs of the layers side by side, in increasing order of the layers.
        teaching: what the target says after each token.
        hidden_scale: (tokens, layers) float32, where ``hidden`` is stored in FP8.
    """

    hidden: torch.Tensor
    teaching: Teaching
    hidden_scale: torch.Tensor | None = None

    def states(self, dtype: torch.dtype) -> torch.Tensor:
        """(tokens, layers x hidden), the layers' outputs as numbers of this type."""
        return restored(self.hidden, self.hidden_scale, dtype)

    def rows(self, which: slice) -> "Sample":
        """Some of its tokens."""
        return sample_of({name: tensor[which] for name, tensor in tensors(self).items()})

    def is_finite(self) -> bool:
        """Whether all its numbers are."""
        return all_finite([self])


@dataclass(frozen=True)
class Digests:
    """By which a conversation's bytes are told from others: SHA-256 each.

    Attributes:
        text: of the tensors of ``TEXT_TENSORS``.
        computed: of the others, in the header's order.
    """

    text: bytes
    computed: bytes

    @classmethod
    def of(cls, columns: Mapping[str, memoryview], header: "Header") -> "Digests":
        """Of a conversation's bytes in each tensor, as they are stored."""
        return cls(digest_of(columns, TEXT_TENSORS), digest_of(columns, header.computed()))


class Header(Model):
    """What the states in a store are: numbers of its manifest.

    Attributes:
        layers: whose outputs ``hidden`` holds; 0-based, -1 is the embedding.
        hidden_size: of the target.
        dtype: of the stored states.
        teacher: in which form the target's answers are stored.
        last_norm: ``final``: the answers were made after the final norm. Engines differ in it, and a draft trained on the
            other kind loses a third of its acceptance, so it is written down and checked.
        vocabulary_size: of the target.
        tokenizer_digest: of the tokenizer's files.
        chat_template_digest: of the template that rendered the conversations.
    """

    layers: list[int]
    hidden_size: int
    dtype: FeatureDtype
    teacher: TeacherKind
    last_norm: str = "final"
    vocabulary_size: int
    tokenizer_digest: str
    chat_template_digest: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type in which an engine hands the states over."""
        return TORCH_DTYPES[self.dtype]

    def columns(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """The tensors of a conversation as an engine computed it, with one row a token: types and shapes of a row."""
        always: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "input_ids": (torch.int32, ()),
            "loss_mask": (torch.uint8, ()),
            "hidden": (self.torch_dtype, (len(self.layers) * self.hidden_size,)),
        }
        if self.teacher == "TopK":
            kept = (min(TOP_K, self.vocabulary_size),)
            return always | {"top_tokens": (torch.int32, kept), "top_log_probabilities": (torch.float16, kept)}
        return always | {
            "last": (self.torch_dtype, (self.hidden_size,)),
            "greedy": (torch.int32, ()),
            "log_normaliser": (torch.float32, ()),
        }

    def stored(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """The same as they lie in a shard: with ``fp8`` states have scales beside them."""
        columns = self.columns()
        if self.dtype == "fp8":
            for name in [name for name in columns if name in STATES]:
                (width,) = columns[name][1]
                columns[name] = (FP8, (width,))
                columns[f"{name}_scale"] = (torch.float32, (width // self.hidden_size,))
        return columns

    def computed(self) -> list[str]:
        """The names of the stored tensors that hold what was computed, in their order."""
        return [name for name in self.stored() if name not in TEXT_TENSORS]


class ShardEntry(Model):
    """A shard as the manifest's numbers list it, by split, in order.

    Attributes:
        file: relative to the artifact's folder.
        conversations: in it.
    """

    file: str
    conversations: int = Field(ge=0)


def tensors(sample: Sample) -> dict[str, torch.Tensor]:
    """A conversation's tensors by their names in a shard."""
    own = {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask, "hidden": sample.hidden}
    if sample.hidden_scale is not None:
        own["hidden_scale"] = sample.hidden_scale
    return own | teaching.tensors(sample.teaching)


def all_finite(samples: Sequence[Sample]) -> bool:
    """Whether all numbers of these conversations are."""
    every = [tensors(sample) for sample in samples]
    names = {
        name
        for columns in every
        for name, tensor in columns.items()
        if tensor.is_floating_point() and tensor.dtype != FP8
    }
    # The extremes of numbers of which one is none are none either; looking at each costs thirty times as much
    return all(
        bool(bound.isfinite())
        for name in names
        for tensor in merged(columns[name] for columns in every)
        for bound in tensor.aminmax()
    )


def as_stored(columns: Mapping[str, torch.Tensor], dtype: FeatureDtype, hidden_size: int) -> dict[str, torch.Tensor]:
    """Columns as an engine computed them in the form in which they are stored, on the device where they are.

    Args:
        columns: (tokens, ...) by name; those of ``STATES`` in any type.
        dtype: of the stored states; ``fp8`` puts their scales beside them.
        hidden_size: of the target.
    """
    kept = {
        name: of_type(column, TORCH_DTYPES[dtype]) if name in STATES else column for name, column in columns.items()
    }
    if dtype == "fp8":
        for name in STATES & columns.keys():
            kept[name], kept[f"{name}_scale"] = quantised(kept[name], hidden_size)
    return kept


def of_type(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor itself where it is of this type: torch gives up its thread's turn even to find that there is nothing to do."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def sample_of(columns: Mapping[str, torch.Tensor]) -> Sample:
    """The conversation of these tensors: the inverse of ``tensors``."""
    told = teaching.teaching_of(columns)
    return Sample(columns["input_ids"], columns["loss_mask"], columns["hidden"], told, columns.get("hidden_scale"))


def digest_of(columns: Mapping[str, memoryview], names: Iterable[str]) -> bytes:
    """SHA-256 over a conversation's rows in some tensors, one tensor after the other."""
    digest = hashlib.sha256()
    for small, run in groupby((columns[name] for name in names), lambda column: len(column) <= HASHED_TOGETHER):
        for piece in [b"".join(run)] if small else run:
            digest.update(piece)
    return digest.digest()


def digests_name(split: Split) -> str:
    """In ``LENGTHS``, the digests of a split's conversations: uint8 (conversations, 2, 32), ``Digests`` each."""
    return f"{split}.digests"


def shard_name(split: Split, number: int) -> str:
    """The file of a shard."""
    return f"{split}-{number:05d}.safetensors"
