"""Names, types and values that the writer and the reader of features share."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import torch
from pydantic import Field

from eagle3_api.base import Model

LENGTHS = "lengths.safetensors"

#: In which readers get the states. FP8 is stored with scales and read as bf16.
TORCH_DTYPES = {"fp8": torch.bfloat16, "bf16": torch.bfloat16, "fp32": torch.float32}

FP8 = torch.float8_e4m3fn


class Split(StrEnum):
    """Which conversations: those that are learned from, and those that measure the draft and probe servers."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Sample:
    """One conversation.

    Attributes:
        input_ids: int32 (tokens,).
        loss_mask: uint8 (tokens,), 1 where the token is the assistant's.
        hidden: (tokens, layers x hidden), outputs of the layers side by side, in increasing order of the layers.
        last: (tokens, hidden), the last layer's output after the final norm.
    """

    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    hidden: torch.Tensor
    last: torch.Tensor

    def __len__(self) -> int:
        return len(self.input_ids)


class Header(Model):
    """What the states in a store are: numbers of its manifest.

    Attributes:
        layers: whose outputs ``hidden`` holds; 0-based, -1 is the embedding.
        hidden_size: of the target.
        dtype: of the stored states, ``fp8``, ``bf16`` or ``fp32``.
        last_norm: ``final``: the final norm is applied to ``last``. Engines differ in it, and a draft trained on the
            other kind loses a third of its acceptance, so it is written down and checked.
        vocabulary_size: of the target.
        tokenizer_digest: of the tokenizer's files.
        chat_template_digest: of the template that rendered the conversations.
    """

    layers: list[int]
    hidden_size: int
    dtype: Literal["fp8", "bf16", "fp32"]
    last_norm: str = "final"
    vocabulary_size: int
    tokenizer_digest: str
    chat_template_digest: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type in which readers get the states."""
        return TORCH_DTYPES[self.dtype]


class ShardEntry(Model):
    """A shard as the manifest's numbers list it, by split, in order.

    Attributes:
        file: relative to the artifact's folder.
        conversations: in it.
    """

    file: str
    conversations: int = Field(ge=0)


def quantised(states: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """States in FP8 (E4M3), each row of each layer scaled to the whole range of the type.

    Args:
        states: (tokens, layers x width), finite.
        width: hidden size.

    Returns:
        (tokens, layers x width) in FP8 and (tokens, layers) fp32: stored x scale is the state.
    """
    rows = states.float().reshape(len(states), states.shape[-1] // width, width)
    scale = rows.abs().amax(-1) / torch.finfo(FP8).max
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (rows / scale[..., None]).to(FP8).flatten(-2), scale


def restored(stored: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The inverse of ``quantised``, up to its rounding."""
    layers = scale.shape[-1]
    rows = stored.float().reshape(len(stored), layers, stored.shape[-1] // layers)
    return (rows * scale[..., None]).flatten(-2).to(dtype)


def shard_name(split: Split, number: int) -> str:
    """The file of a shard."""
    return f"{split}-{number:05d}.safetensors"
