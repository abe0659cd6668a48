"""The converted draft against the trained one, on held-out features: same forward, same proposals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle3_api.artifacts import CONFIG, HELD_OUT, VOCABULARY, WEIGHTS
from eagle3_api.checkpoints import read_folder, read_form
from eagle3_api.jobs import StageName
from eagle3_draft import artifacts
from eagle3_draft.features import Sample, sample_of
from eagle3_draft.model import Draft, DraftConfig
from eagle3_draft.model.config import config_of
from eagle3_draft.train.batches import pack
from eagle3_draft.train.vocabulary import Vocabulary

#: Of the held-out sample.
_COLUMNS = frozenset({"input_ids", "loss_mask", "hidden", "top_tokens", "top_log_probabilities", "offsets"})

#: Unroll steps that are compared: the first reads the target's states, the others the draft's own.
STEPS = 3


@dataclass(frozen=True)
class Parity:
    """How far the converted draft is from the trained one.

    Args:
        error: the largest difference of two logits.
        scale: root mean square of the trained draft's logits.
        agreement: share of rows with the same most likely token of the target's vocabulary.
        rows: that were compared.
    """

    error: float
    scale: float
    agreement: float
    rows: int


@torch.no_grad()
def compare(
    trained: Path, converted: Path, layers: Sequence[int], embedding: Tensor, held_out: Sequence[Sample]
) -> Parity:
    """Run both drafts, in float32, over the same features.

    The trained one is loaded as the trainer left it; the converted one as SGLang reads it, from its own config.json, by
    SGLang's names and with its own vocabulary map.

    Args:
        trained: Train's artifact.
        converted: the folder for SGLang.
        layers: the auxiliary layers.
        embedding: the target's.
        held_out: what to run them on.
    """
    ours, our_ids = read_trained(trained)
    theirs, their_ids = read_converted(converted, layers)
    error = squares = 0.0
    agreed = rows = values = 0
    for sample in held_out:
        batch = pack([replace(sample, loss_mask=torch.ones_like(sample.loss_mask))], STEPS)
        features, embeds = batch.features.float(), embedding[batch.input_ids].float()
        for one, other in zip(
            ours(features, embeds, batch.documents, batch.wanted),
            theirs(features, embeds, batch.documents, batch.wanted),
            strict=True,
        ):
            error = max(error, (one - other).abs().max().item() if one.numel() else 0.0)
            squares += one.square().sum().item()
            values += one.numel()
            agreed += int((our_ids[one.argmax(-1)] == their_ids[other.argmax(-1)]).sum())
            rows += len(one)
    return Parity(
        error=error,
        scale=(squares / values) ** 0.5 if values else 0.0,
        agreement=agreed / rows if rows else 1.0,
        rows=rows,
    )


def read_held_out(trained: Path) -> list[Sample]:
    """The held-out features that travel with Train's artifact; of what the target says, its most likely token alone.

    Raises:
        StageError: they are not what was published, or another version published them otherwise (CorruptArtifact).
    """
    columns = load_file(artifacts.verified(trained, HELD_OUT))
    if missing := _COLUMNS - columns.keys():
        what = f"{HELD_OUT} has no {', '.join(sorted(missing))}"
        raise artifacts.outdated(trained, StageName.TRAIN, what)
    bounds = columns.pop("offsets").tolist()
    return [sample_of({name: rows[start:end] for name, rows in columns.items()}) for start, end in pairwise(bounds)]


def read_trained(folder: Path) -> tuple[Draft, Tensor]:
    """A draft as the trainer left it, and the target's ids of the tokens that it knows, (draft vocabulary,)."""
    draft = Draft(DraftConfig.model_validate_json((folder / CONFIG).read_bytes()))
    draft.load_state_dict(load_file(folder / WEIGHTS))
    return draft, Vocabulary.load(folder / VOCABULARY).ids


def read_converted(folder: Path, layers: Sequence[int]) -> tuple[Draft, Tensor]:
    """A converted draft in float32 as SGLang reads it, and the target's ids of the tokens that it knows, (draft vocabulary,)."""
    form = read_form(read_folder(folder))
    tensors = load_file(folder / WEIGHTS)
    draft = Draft(config_of(form, layers))
    draft.load_state_dict({name: tensor.float() for name, tensor in _as_sglang_reads(tensors)})
    offsets = tensors.get("d2t", torch.zeros(draft.config.draft_vocabulary_size, dtype=torch.int64))
    return draft, offsets + torch.arange(len(offsets))


def _as_sglang_reads(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """SGLang's own steps from a checkpoint's name to a parameter, and from there to this product's name of it."""
    for name, tensor in tensors.items():
        if name in ("d2t", "t2d"):
            continue
        parameter = name.replace("midlayer", "layers.0")
        if not parameter.startswith("lm_head."):
            parameter = f"model.{parameter}"
        yield parameter.removeprefix("model.").replace("layers.0.", "midlayer."), tensor
