"""The converted draft against the trained one: the same sizes, the same words, and the same weights to the bit.

A draft is its configuration, its vocabulary and its weights. Where these are the same, every forward is; where one number is
another, a comparison of two forwards may still call it rounding. So the numbers are compared, and no forward is run, which for
a draft of billions of parameters would be two of them in memory. What it says is measured by ``accuracy``, of one draft.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from eagle3_api.artifacts import CONFIG, VOCABULARY, WEIGHTS
from eagle3_api.checkpoints import read_folder, read_form
from eagle3_api.checkpoints.files import StoredTensor
from eagle3_draft.convert.trained import stored
from eagle3_draft.model.config import DraftConfig, config_of
from eagle3_draft.model.fast import FastDraft
from eagle3_draft.model.target import Target
from eagle3_draft.tensors import EMBEDDING, pieces, type_of
from eagle3_draft.train.vocabulary import Vocabulary

T = TypeVar("T")

#: Numbers that are compared at once: what a processor's cache holds.
_PIECE = 256 * 1024


@dataclass(frozen=True)
class Parity:
    """How far the converted draft is from the trained one.

    Attributes:
        error: the largest difference of two weights: what rounding took, where they are rounded.
        different: what is not the trained draft's, in words; nothing in a conversion that is right.
        weights: numbers that were compared.
    """

    error: float
    different: list[str]
    weights: int


def compare(trained: Path, converted: Path, layers: Sequence[int]) -> Parity:
    """Hold a draft as the trainer left it against one as SGLang reads it: from its own config.json, by SGLang's names and with
    its own vocabulary map. Both are read some megabytes at a time.

    Args:
        trained: Train's artifact.
        converted: the folder for SGLang.
        layers: the auxiliary layers.
    """
    different = [*_other_sizes(trained, converted, layers), *_other_words(trained, converted)]
    ours = stored(trained / WEIGHTS)
    theirs = dict(_as_sglang_reads(read_folder(converted).tensors))
    added = {name for name in theirs if name.endswith("o_proj.bias")} - ours.keys()
    different += [f"{name} is missing" for name in sorted(ours.keys() - theirs.keys())]
    different += [f"{name} is new" for name in sorted(theirs.keys() - ours.keys() - added)]
    different += [f"{name} is not zero" for name in sorted(added) if any(p.any() for p in pieces(theirs[name]))]
    error, weights = 0.0, 0
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name].shape != theirs[name].shape:
            different.append(f"{name} has another shape")
            continue
        same, apart = _same(ours[name], theirs[name])
        error, weights = max(error, apart), weights + ours[name].elements
        if not same:
            different.append(f"{name} has other values, up to {apart:.3g} apart")
    return Parity(error, different, weights)


def _same(one: StoredTensor, other: StoredTensor) -> tuple[bool, float]:
    """Whether the second tensor is the first in its own type, and how far its numbers are from the first's."""
    dtype, same, apart = type_of(other), True, 0.0
    for ours, theirs in zip(pieces(one, _PIECE), pieces(other, _PIECE), strict=True):
        same = same and torch.equal(ours.to(dtype), theirs)
        least, most = torch.aminmax(theirs.to(ours.dtype, copy=True).sub_(ours))
        apart = max(apart, -least.item(), most.item())
    return same, apart


def _other_sizes(trained: Path, converted: Path, layers: Sequence[int]) -> Iterator[str]:
    """What of the configuration SGLang reads otherwise, but for what conversion adds on purpose."""
    ours = json.loads((trained / CONFIG).read_bytes())
    theirs = config_of(read_form(read_folder(converted)), layers)
    expected = DraftConfig.model_validate(ours).model_copy(
        update={"max_position_embeddings": theirs.max_position_embeddings}  # at least the served context
    )
    if expected.fc_bias and expected.latent is None:  # SGLang makes both biases or none
        expected = expected.model_copy(update={"output_bias": True})
    told, read = expected.model_dump(), theirs.model_dump()
    yield from (f"{name} is {read[name]}, not {told[name]}" for name in told if read[name] != told[name])


def _other_words(trained: Path, converted: Path) -> Iterator[str]:
    ours, maps = Vocabulary.load(trained / VOCABULARY), load_file(converted / WEIGHTS)
    if not (torch.equal(ours.offsets, maps["d2t"]) and torch.equal(ours.members, maps["t2d"])):
        yield "its rows stand for other words"


def read_converted(folder: Path, layers: Sequence[int]) -> tuple[FastDraft, Tensor]:
    """A converted draft as SGLang reads it, and the target's ids of the tokens that it knows, (draft vocabulary,).

    Its parameters are the file itself, mapped, in the type in which they are served: they take no memory that the kernel
    could not have back.
    """
    form = read_form(read_folder(folder))
    tensors = load_file(folder / WEIGHTS)
    tensors.pop(EMBEDDING, None)  # of ``embedding_of``
    with torch.device("meta"):
        draft = FastDraft(config_of(form, layers))
    draft.load_state_dict(dict(_as_sglang_reads(tensors)), assign=True)
    offsets = tensors.get("d2t", torch.zeros(draft.config.draft_vocabulary_size, dtype=torch.int64))
    return draft, offsets + torch.arange(len(offsets))


def embedding_of(folder: Path, target: Target) -> Tensor:
    """The table that a server embeds with for a converted draft, (vocabulary, hidden): the draft's own where it has one, and the
    target's where conversion left it out."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        own: Tensor | None = file.get_tensor(EMBEDDING) if EMBEDDING in file.keys() else None  # noqa: SIM118
    return target.embedding() if own is None else own


def _as_sglang_reads(tensors: Mapping[str, T]) -> Iterator[tuple[str, T]]:
    """SGLang's own steps from a checkpoint's name to a parameter, and from there to this product's name of it."""
    for name, tensor in tensors.items():
        if name in ("d2t", "t2d"):
            continue
        parameter = name.replace("midlayer", "layers.0")
        if not parameter.startswith("lm_head."):
            parameter = f"model.{parameter}"
        yield parameter.removeprefix("model.").replace("layers.0.", "midlayer."), tensor
