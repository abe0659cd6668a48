"""What a training begins with: the draft's vocabulary, its sizes and its weights, fresh or those of an existing draft."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eagle3_api.checkpoints import Form
from eagle3_api.checkpoints.vocabulary import read_map
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, TrainConfig
from eagle3_draft.convert.emit import sources_of
from eagle3_draft.convert.weights import pieces
from eagle3_draft.inspect.checkpoint import checkpoint_digest, read_checkpoint
from eagle3_draft.model import DraftConfig
from eagle3_draft.model.config import config_of, draft_config
from eagle3_draft.model.target import Target
from eagle3_draft.stage import StageError
from eagle3_draft.train.vocabulary import Vocabulary, choose

#: The field of the object that names an existing draft.
FIELD = "draft.initFrom"


@dataclass(frozen=True)
class Beginning:
    """A draft before its first step."""

    config: DraftConfig
    vocabulary: Vocabulary


def begin(config: TrainConfig, counts: Tensor, target: Target) -> Beginning:
    """A draft's vocabulary and sizes.

    Args:
        config: of the stage.
        counts: how often each token is the assistant's, (target vocabulary,).
        target: the target.

    Raises:
        StageError: the target does not say a size (TargetUnsupported); the existing draft cannot be read, or is another one
            than was inspected (CheckpointUnreadable).
    """
    if config.init_from is not None:
        return _existing(_inspected(config, Path(config.init_from)), config, len(counts))
    vocabulary = choose(counts, config.vocabulary_size, target.framing_tokens())
    try:
        sizes = draft_config(
            target.config,
            layers=config.layers,
            draft_vocabulary_size=len(vocabulary.ids),
            depth=config.depth,
            newer=config.variant == "EAGLE-3.1",
            latent=config.attention == "Latent",
        )
    except KeyError as error:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNSUPPORTED,
            f"{config.target}/config.json says no {error.args[0]}, from which the draft's sizes follow",
        ) from None
    return Beginning(sizes, vocabulary)


def first_weights(config: TrainConfig, target: Target) -> dict[str, Tensor] | None:
    """An existing draft's weights by the names of ``Draft``, float32; None where a training begins with fresh ones."""
    if config.init_from is None:
        return None
    form = read_checkpoint(Path(config.init_from), FIELD)
    weights = {}
    for name, source in sources_of(form, target).items():
        if name in ("d2t", "t2d"):
            continue
        weights[name] = torch.cat([piece.to(torch.float32, copy=True) for piece in pieces(source)]).view(source.shape)
    return weights


def _inspected(config: TrainConfig, folder: Path) -> Form:
    """The draft that Inspect found to be fit."""
    form = read_checkpoint(folder, FIELD)
    if checkpoint_digest(folder, FIELD) != config.init_digest:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.CHECKPOINT_UNREADABLE,
            f"{FIELD}: {folder} was changed since it was inspected; set eagle3.dev/retry to inspect it anew",
        )
    return form


def _existing(form: Form, config: TrainConfig, target_size: int) -> Beginning:
    """Its own vocabulary, in the order of its head's rows: another would make other words of what it has learnt."""
    reading = read_map(form, target_size)
    ids = torch.arange(target_size) if reading is None else torch.tensor(reading.ids, dtype=torch.int64)
    return Beginning(config_of(form, config.layers), Vocabulary(ids, target_size))
