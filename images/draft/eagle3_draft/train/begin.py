"""What a training begins with: the draft's vocabulary, its sizes and its weights, fresh or those of an existing draft."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eagle3_api.artifacts import CONFIG, VOCABULARY
from eagle3_api.checkpoints import Form
from eagle3_api.checkpoints.vocabulary import read_map
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, TrainConfig
from eagle3_draft.data.tokenizer_files import own_template, special_tokens
from eagle3_draft.errors import StageError
from eagle3_draft.features import Features, Samples, Text
from eagle3_draft.files import write_atomic
from eagle3_draft.inspect.checkpoint import check_trainable, checkpoint_digest, read_checkpoint
from eagle3_draft.model.config import DraftConfig, config_of, draft_config
from eagle3_draft.model.target import Target
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.tensors import EMBEDDING, sources_of, whole
from eagle3_draft.train.checks import check_sizes
from eagle3_draft.train.vocabulary import USAGE_FILE, Usage, Vocabulary, choose, required

#: The field of the object that names an existing draft.
FIELD = "draft.initFrom"


@dataclass(frozen=True)
class Beginning:
    """A draft before its first step."""

    config: DraftConfig
    vocabulary: Vocabulary


def prepare(config: TrainConfig, features: Features, target: Target) -> None:
    """Write the draft's vocabulary and sizes, and the usage of tokens, where the ranks read them, once.

    A vocabulary that an earlier try chose stays: its checkpoints have learnt it, and another, as a newer version of this
    code might choose it, would make other words of the rows of their head.

    Raises:
        StageError: NoUsableData where no token is to be learned; InvalidConfiguration where FP8 does not take the sizes;
            what ``begin`` raises.
    """
    folder = Path(config.folder)
    usage = _usage(folder / USAGE_FILE, features)
    if config.init_from is None and (folder / CONFIG).exists():  # which is written last
        return
    if not usage.supervised.any():
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.NO_USABLE_DATA,
            "no token of the train conversations is the assistant's, so there is nothing to learn: the chat template marks "
            "none, or the conversations contain no answers",
        )
    if config.init_from is not None:  # somebody else's trainer may have left what Inspect has not seen
        longest = max(int(samples.lengths.max()) for samples in (features.train, features.held_out) if len(samples))
        said = f"The longest conversation has {longest:,} tokens"
        check_trainable(read_checkpoint(Path(config.init_from), FIELD), FIELD, longest, said)
    beginning = begin(config, usage, target)
    check_sizes(config, beginning.config)
    beginning.vocabulary.save(folder / VOCABULARY)
    write_atomic(folder / CONFIG, json.dumps(beginning.config.to_json(), indent=1).encode())


def _usage(path: Path, features: Features) -> Usage:
    """That of the conversations to learn from, counted unless an earlier try did: an object store is downloaded for it."""
    if not path.exists():
        Usage.of(_told(features.train), features.header.vocabulary_size).save(path)
    return Usage.load(path)


def _told(samples: Samples) -> Iterator[Text]:
    """What conversations say, with progress lines: of the training nothing is done yet."""
    progress = ProgressReporter(1, "of the training")
    for number, text in enumerate(samples.texts()):
        progress.update(0, f"{number:,} of {len(samples):,} conversations read for the vocabulary")
        yield text


def begin(config: TrainConfig, usage: Usage, target: Target) -> Beginning:
    """A draft's vocabulary and sizes.

    Args:
        config: of the stage.
        usage: of the target's tokens in the conversations to learn from.
        target: the target.

    Raises:
        StageError: the target does not say a size (TargetUnsupported); its special tokens alone are more than the
            vocabulary (InvalidConfiguration); the existing draft cannot be read, or is another one than was inspected
            (CheckpointUnreadable).
    """
    if config.init_from is not None:
        return _existing(_inspected(config, Path(config.init_from)), config, len(usage.supervised))
    vocabulary = _chosen(config, usage, target)
    sizes = draft_config(
        target.config,
        layers=config.layers,
        draft_vocabulary_size=len(vocabulary.ids),
        context_length=config.context_length,
        depth=config.depth,
        newer=config.variant == "EAGLE-3.1",
        latent=config.attention == "Latent",
    )
    return Beginning(sizes, vocabulary)


def _chosen(config: TrainConfig, usage: Usage, target: Target) -> Vocabulary:
    """The most frequent tokens, the special ones among them."""
    special = special_tokens(target.folder)
    always = required(special, own_template(target.folder) or "", usage) | set(target.framing_tokens())
    try:
        return choose(usage.supervised, config.vocabulary_size, always)
    except ValueError as error:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"draft.vocabularySize: {error}",
        ) from None


def first_weights(config: TrainConfig, target: Target) -> dict[str, Tensor] | None:
    """An existing draft's weights by the names of ``Draft``, float32; None where a training begins with fresh ones. What it embeds
    with is ``own_embedding``."""
    if config.init_from is None:
        return None
    form = read_checkpoint(Path(config.init_from), FIELD)
    weights = {}
    for name, source in sources_of(form, target).items():
        if name in ("d2t", "t2d", EMBEDDING):
            continue
        weights[name] = whole(source).to(torch.float32)
    return weights


def own_embedding(config: TrainConfig) -> Tensor | None:
    """The table, (vocabulary, hidden), as stored, of an existing draft whose states are not as wide as its target's: it cannot embed
    with the target's. None for all others.

    It stays as it is, as the target's does, and as the trainers of such drafts leave it unless they are told otherwise.
    """
    if config.init_from is None:
        return None
    form = read_checkpoint(Path(config.init_from), FIELD)
    return whole(form.tensors[EMBEDDING]) if form.own_embedding else None


def _inspected(config: TrainConfig, folder: Path) -> Form:
    """The draft that Inspect found to be fit."""
    form = read_checkpoint(folder, FIELD)
    if checkpoint_digest(folder, FIELD) != config.init_digest:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.CHECKPOINT_UNREADABLE,
            f"{FIELD}: {folder} has changed since it was inspected and must be inspected again",
        )
    return form


def _existing(form: Form, config: TrainConfig, target_size: int) -> Beginning:
    """Its own vocabulary, in the order of its head's rows: another would make other words of what it has learnt."""
    reading = read_map(form, target_size)
    ids = torch.arange(target_size) if reading is None else torch.tensor(reading.ids, dtype=torch.int64)
    return Beginning(config_of(form, config.layers), Vocabulary(ids, target_size))
