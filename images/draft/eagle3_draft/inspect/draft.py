"""The draft that is wanted: what the object says of it, what one that it brings along says, and what holds otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eagle3_api.checkpoints import Served, report, resolve_layers
from eagle3_api.conditions import Reason
from eagle3_api.draft_size import DEFAULT_VOCABULARY
from eagle3_api.jobs import ExitCode, InspectConfig
from eagle3_api.sglang import LATENT_ATTENTION, Version, default_layers
from eagle3_api.spec.draft import Attention
from eagle3_draft.errors import StageError
from eagle3_draft.inspect.checkpoint import check_checkpoint, check_trainable, checkpoint_digest, read_checkpoint
from eagle3_draft.inspect.target import TargetFacts, read_language
from eagle3_draft.model.config import draft_config


@dataclass(frozen=True)
class DraftFacts:
    """What is known of the draft before there is one.

    Attributes:
        layers: whose outputs it reads.
        capture_ids: the same, as the serving SGLang calls them.
        vocabulary_size: tokens that it proposes.
        attention: its kind.
        checkpoint_digest: of a draft that is adopted.
        init_digest: of a draft from whose weights the training begins.
        warnings: of a draft that the object brings along, or of how far one that is trained will have seen.
    """

    layers: list[int]
    capture_ids: list[int]
    vocabulary_size: int | None
    attention: Attention
    checkpoint_digest: str | None = None
    init_digest: str | None = None
    warnings: list[str] = field(default_factory=list)


def read_draft(config: InspectConfig, target: TargetFacts, version: Version, context_length: int) -> DraftFacts:
    """Look at what the object says of its draft, and at the one that it brings along.

    Args:
        config: of the stage.
        target: that it is for.
        version: of the SGLang that serves.
        context_length: that is served.

    Raises:
        StageError: the first thing that is wrong.
    """
    for name, path in (("draft.initFrom", config.init_from), ("draft.checkpoint", config.checkpoint)):
        if path:
            return _brought(config, name, Path(path), target, version, context_length)
    layers = _required(config.auxiliary_layers or default_layers(target.num_layers), target)
    attention = _attention(config, target)
    vocabulary_size = _vocabulary(config, target)
    # As the training will, hours later
    draft_config(
        read_language(Path(config.target)),
        layers=layers,
        draft_vocabulary_size=vocabulary_size,
        context_length=context_length,
        latent=attention == "Latent",
    )
    warnings = _beyond_training(config, context_length)
    return DraftFacts(layers, target.capture_ids(layers, version), vocabulary_size, attention, warnings=warnings)


def _brought(
    config: InspectConfig, name: str, folder: Path, target: TargetFacts, version: Version, context_length: int
) -> DraftFacts:
    """A draft in a folder, which this field of the object names."""
    form = read_checkpoint(folder, name)
    layers = _required(config.auxiliary_layers or resolve_layers(form, Served(version, target.of_draft)), target)
    findings = check_checkpoint(form, Served(version, target.of_draft, tuple(layers), context_length), name)
    if config.init_from is not None:
        longest = config.data.max_length if config.data is not None else 0
        check_trainable(form, name, longest, f"data.maxLength is {longest:,}")
    ids = target.capture_ids(layers, version)
    digest = checkpoint_digest(folder, name)
    return DraftFacts(
        layers,
        ids,
        form.draft_vocabulary_size,
        "Latent" if form.latent is not None else "Heads",
        checkpoint_digest=digest if config.checkpoint is not None else None,
        init_digest=digest if config.init_from is not None else None,
        warnings=[*report.warnings(findings), *_beyond_training(config, context_length)],
    )


def _beyond_training(config: InspectConfig, context_length: int) -> list[str]:
    """That servers take longer conversations than a draft is trained on here."""
    if config.checkpoint is not None or config.data is None or config.data.max_length >= context_length:
        return []
    said = (
        f"servers take {context_length:,} tokens of a conversation, and the draft is trained on the first {config.data.max_length:,} "
        "(data.maxLength): beyond what it was trained on, a draft is accepted less. Raise data.maxLength to what your requests have, "
        "or set serve.contextLength"
    )
    return [said]


def _required(layers: Sequence[int] | None, target: TargetFacts) -> list[int]:
    if not layers:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.LAYERS_REQUIRED,
            f"draft.auxiliaryLayers: there are no defaults for a target of {target.num_layers} layers; name three from 0 to "
            f"{target.num_layers - 2}, whose outputs the draft reads",
        )
    return list(layers)


def _attention(config: InspectConfig, target: TargetFacts) -> Attention:
    if config.attention == "Latent" and target.architecture not in LATENT_ATTENTION:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"draft.attention: Latent is for targets with latent attention ({', '.join(sorted(LATENT_ATTENTION))}), and "
            f"{target.architecture} has none; set it to Heads",
        )
    return config.attention


def _vocabulary(config: InspectConfig, target: TargetFacts) -> int:
    if config.vocabulary_size is None:
        most = min(DEFAULT_VOCABULARY, target.vocabulary_size)
        return most // 64 * 64 or most
    if config.vocabulary_size > target.vocabulary_size:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"draft.vocabularySize: {config.vocabulary_size} is more than the target's {target.vocabulary_size}",
        )
    return config.vocabulary_size
