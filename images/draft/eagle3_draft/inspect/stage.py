"""The stage Inspect: facts in the order in which a wrong one can be told."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from eagle3_api.artifacts import DRAFTS_ROOT, FEATURES_ROOT, folder
from eagle3_api.checkpoints import Form, Served, report, resolve_layers
from eagle3_api.conditions import Reason
from eagle3_api.jobs import DataConfig, ExitCode, Facts, InspectConfig, StageName
from eagle3_api.sglang import (
    LATENT_ATTENTION,
    OLDEST,
    UnsupportedLayersError,
    Version,
    capture_ids,
    convention,
    default_layers,
)
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.data.inputs import extraction_inputs, inherited
from eagle3_draft.data.tokenizer_files import chat_template, template_digest
from eagle3_draft.inspect.checkpoint import check_checkpoint, check_trainable, checkpoint_digest, read_checkpoint
from eagle3_draft.inspect.storage import check_space, free_bytes, is_made_from, of_former_specs
from eagle3_draft.inspect.target import TargetFacts, end_tokens, read_target
from eagle3_draft.places import place
from eagle3_draft.stage import StageError

#: Tokens that a draft proposes unless the object says otherwise: nearly all that a model says, at a quarter of the head.
DEFAULT_VOCABULARY = 32000

#: As many as the report has room for.
_WARNINGS = 4


@dataclass(frozen=True)
class _Data:
    config: DataConfig
    conversations: int
    held_out: int
    digest: str
    template_digest: str
    expected_tokens: int
    end_tokens: list[int] | None


def run(config: InspectConfig, *, features_root: Path | None = None, drafts_root: Path | None = None) -> Facts:
    """Look at everything that the object names.

    Args:
        config: of the stage.
        features_root, drafts_root: where the volumes are mounted; elsewhere in tests.

    Raises:
        StageError: the first thing that is wrong, with what to do about it.
    """
    version = _version(config.sglang_version)
    target = read_target(Path(config.target))
    field, path = ("draft.initFrom", config.init_from) if config.init_from else ("draft.checkpoint", config.checkpoint)
    brought = Path(path) if path is not None else None
    existing = read_checkpoint(brought, field) if brought is not None else None
    layers = _layers(config, target, existing, version)
    latent = _is_latent(config, target, existing)
    context_length = _context_length(config, target)
    warnings = _warnings(config, target)
    if existing is not None:
        served = Served(version, target.of_draft, tuple(layers), context_length)
        warnings += report.warnings(check_checkpoint(existing, served, field))
        vocabulary = existing.draft_vocabulary_size
        if config.init_from is not None:
            check_trainable(existing, field)
    else:
        vocabulary = _vocabulary(config, target)
    ids = _capture_ids(layers, target, version)
    digest = checkpoint_digest(brought, field) if brought is not None else None
    data = _data(config.data, Path(config.target)) if config.data is not None else None
    per_token, size = None, None
    if data is not None and config.checkpoint is None:
        per_token, size = _space(
            config, data, target, layers, features_root or Path(FEATURES_ROOT), drafts_root or Path(DRAFTS_ROOT)
        )
    return Facts(
        architecture=target.architecture,
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        vocabulary_size=target.vocabulary_size,
        target_dtype=target.dtype,
        weight_bytes=target.weight_bytes,
        active_parameters=target.active_parameters,
        context_length=context_length,
        target_digest=target.digest,
        auxiliary_layers=layers,
        draft_vocabulary_size=vocabulary,
        draft_attention="Latent" if latent else "Heads",
        sglang_version=str(version),
        layer_convention=convention(target.architecture, version),
        capture_ids=ids,
        conversations=data.conversations if data else None,
        held_out=data.held_out if data else None,
        data_digest=data.digest if data else None,
        expected_tokens=data.expected_tokens if data else None,
        feature_bytes=size,
        bytes_per_token=per_token,
        chat_template_digest=data.template_digest if data else None,
        end_tokens=data.end_tokens if data else None,
        checkpoint_digest=digest if config.checkpoint is not None else None,
        init_digest=digest if config.init_from is not None else None,
        fetched=config.fetched,
        warnings=warnings[:_WARNINGS],
    )


def _version(text: str) -> Version:
    try:
        version = Version.parse(text)
    except ValueError as error:
        raise StageError(ExitCode.BAD_CONFIGURATION, Reason.VERSION_UNSUPPORTED, f"sglangVersion: {error}") from None
    if version < OLDEST:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.VERSION_UNSUPPORTED,
            f"image: SGLang {version} is older than {OLDEST}, the first with the counters that drafts are judged by",
        )
    return version


def _layers(config: InspectConfig, target: TargetFacts, existing: Form | None, version: Version) -> list[int]:
    """The object's word, else that of an existing draft, else the default."""
    layers = config.auxiliary_layers or default_layers(target.num_layers)
    if existing is not None and config.auxiliary_layers is None:
        layers = list(resolve_layers(existing, Served(version, target.of_draft)) or ()) or None
    if layers is None:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.LAYERS_REQUIRED,
            f"draft.auxiliaryLayers: a target of {target.num_layers} layers has no default ones; name three of 0 to "
            f"{target.num_layers - 2}, whose outputs the draft reads",
        )
    return layers


def _is_latent(config: InspectConfig, target: TargetFacts, existing: Form | None) -> bool:
    """Whether the draft's attention is latent, which its target's must be then."""
    if existing is not None:
        return existing.latent is not None
    if config.attention == "Latent" and target.architecture not in LATENT_ATTENTION:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"draft.attention: Latent is for targets with latent attention ({', '.join(sorted(LATENT_ATTENTION))}), and "
            f"{target.architecture} has none; set it to Heads",
        )
    return config.attention == "Latent"


def _capture_ids(layers: list[int], target: TargetFacts, version: Version) -> list[int]:
    try:
        return capture_ids(layers, target.architecture, target.num_layers, version)
    except UnsupportedLayersError as error:
        raise StageError(
            ExitCode.BAD_CONFIGURATION, Reason.LAYER_CONVENTION, f"draft.auxiliaryLayers: {error}"
        ) from None


def _context_length(config: InspectConfig, target: TargetFacts) -> int:
    length = config.context_length or target.context_length
    if length is None:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            "serve.contextLength: the target's config.json does not say how long its context is; set it",
        )
    return length


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


def _data(config: DataConfig, target: Path) -> _Data:
    override = Path(config.chat_template) if config.chat_template else None
    template = template_digest(chat_template(target, override))
    found = Conversations.of(config)
    held_out = sum(found.held_out(config.holdout))
    if held_out == len(found):
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.NO_USABLE_DATA,
            f"{found.reading.field}: {found.path} has {len(found)} distinct conversations, of which {held_out} are held out; "
            "nothing is left to learn from",
        )
    answering = config.regenerate
    return _Data(
        config,
        len(found),
        held_out,
        found.sha256,
        template,
        config.expected_tokens or found.expected_tokens(config.max_length, answering.max_tokens if answering else 0),
        end_tokens(target) if answering else None,
    )


def _space(
    config: InspectConfig, data: _Data, target: TargetFacts, layers: list[int], features: Path, drafts: Path
) -> tuple[int, int]:
    """Bytes of a token's features and of all, which fit, or which a draft was trained from already."""
    owner, dtype, teacher = config.owner, config.feature_dtype, config.feature_teacher
    extractions = Path(folder(PurePosixPath(features), owner.namespace, owner.name, StageName.EXTRACT, ""))
    trainings = Path(folder(PurePosixPath(drafts), owner.namespace, owner.name, StageName.TRAIN, ""))
    if config.object_store is not None:
        place(config.object_store, features).check(extractions)
    made_from = extraction_inputs(
        data.config,
        target_digest=target.digest,
        data_digest=data.digest,
        chat_template_digest=data.template_digest,
        layers=layers,
        dtype=dtype,
        end_tokens=data.end_tokens or (),
        teacher=teacher,
        engine=config.engine or (),
    )
    free: int | None
    if config.object_store is not None or any(is_made_from(path, inherited(made_from)) for path in trainings.glob("*")):
        free = None
    elif config.features_gone:
        free = config.features_capacity
    else:
        free = free_bytes(features, config.features_capacity, extractions, made_from)
    return check_space(
        tokens=data.expected_tokens,
        conversations=data.conversations,
        layers=len(layers),
        hidden_size=target.hidden_size,
        dtype=dtype,
        teacher=teacher,
        free=free,
        former=of_former_specs(extractions, made_from),
    )


def _warnings(config: InspectConfig, target: TargetFacts) -> list[str]:
    found = []
    if not (Path(config.target) / "tokenizer.json").is_file():
        found.append("the target has no fast tokenizer (tokenizer.json): rendering takes longer and drops more")
    if target.context_length is not None and (config.context_length or 0) > target.context_length:
        found.append(
            f"serve.contextLength {config.context_length} is beyond the {target.context_length} positions of the target"
        )
    if target.own_code and not config.trust_remote_code:
        found.append(
            "the target's config.json names code of its own; set target.trustRemoteCode if it cannot be loaded"
        )
    return found
