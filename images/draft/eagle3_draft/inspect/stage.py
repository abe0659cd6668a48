"""The stage Inspect: facts in the order in which a wrong one can be told."""

from pathlib import Path, PurePosixPath

from eagle3_api.artifacts import DRAFTS_ROOT, FEATURES_ROOT, folder
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, Facts, InspectConfig, StageName
from eagle3_api.sglang import OLDEST, Version, convention
from eagle3_draft.data.inputs import extraction_inputs, inherited
from eagle3_draft.errors import StageError
from eagle3_draft.inspect.data import DataFacts, read_data
from eagle3_draft.inspect.draft import read_draft
from eagle3_draft.inspect.storage import Wanted, check_space, free_bytes, is_made_from, of_former_specs
from eagle3_draft.inspect.target import TargetFacts, longest_context, target_facts
from eagle3_draft.storage.places import place

#: As many as the report has room for.
_WARNINGS = 4


def run(config: InspectConfig, *, features_root: Path | None = None, drafts_root: Path | None = None) -> Facts:
    """Look at everything that the object names.

    Args:
        config: of the stage.
        features_root, drafts_root: where the volumes are mounted; elsewhere in tests.

    Raises:
        StageError: the first thing that is wrong, with what to do about it.
    """
    version = _version(config.sglang_version)
    target = target_facts(Path(config.target), " ".join(config.engine or ()).split())
    context_length = _context_length(config, target)
    draft = read_draft(config, target, version, context_length)
    data = None
    if config.data is not None:
        learned = config.checkpoint is None
        data = read_data(config.data, Path(config.target), config.engine or (), learned=learned)
    features = None
    if data is not None and config.checkpoint is None:
        roots = features_root or Path(FEATURES_ROOT), drafts_root or Path(DRAFTS_ROOT)
        features = _features(config, data, target, draft.layers, *roots)
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
        auxiliary_layers=draft.layers,
        draft_vocabulary_size=draft.vocabulary_size,
        draft_attention=draft.attention,
        sglang_version=str(version),
        layer_convention=convention(target.architecture, version),
        capture_ids=draft.capture_ids,
        conversations=data.conversations if data else None,
        held_out=data.held_out if data else None,
        data_digest=data.digest if data else None,
        expected_tokens=data.expected_tokens if data else None,
        feature_bytes=features.bytes if features else None,
        chat_template_digest=data.template_digest if data else None,
        end_tokens=data.end_tokens if data else None,
        sampling_defaults=data.sampling_defaults if data else None,
        checkpoint_digest=draft.checkpoint_digest,
        init_digest=draft.init_digest,
        fetched=config.fetched,
        warnings=[*_warnings(config, target), *(data.warnings if data else ()), *draft.warnings][:_WARNINGS],
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


def _context_length(config: InspectConfig, target: TargetFacts) -> int:
    length = config.context_length or target.context_length
    if length is None:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            "serve.contextLength: the target's config.json does not say how long its context is, so set it here",
        )
    most = None if config.longer_context else longest_context(Path(config.target))
    if most is not None and length > most:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"serve.contextLength: {length} is beyond the {most} positions of the target, and SGLang does not start with it. Lower it, or "
            "make SGLang accept it with SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 in placement.env",
        )
    return length


def _features(
    config: InspectConfig, data: DataFacts, target: TargetFacts, layers: list[int], features: Path, drafts: Path
) -> Wanted:
    """What extraction is to make, which fits, or which a draft was trained from already."""
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
        template_day=data.template_day,
        layers=layers,
        dtype=dtype,
        end_tokens=data.end_tokens or (),
        sampling_defaults=data.sampling_defaults,
        teacher=teacher,
        engine=config.engine or (),
    )
    wanted = Wanted(data.expected_tokens, data.conversations, len(layers), target.hidden_size, dtype, teacher)
    if config.object_store is not None or any(is_made_from(path, inherited(made_from)) for path in trainings.glob("*")):
        return wanted  # no volume has to hold them
    free = config.features_capacity
    if not config.features_gone:
        free = free_bytes(features, config.features_capacity, extractions, made_from)
    if free is not None:
        check_space(wanted, free, of_former_specs(extractions, made_from))
    return wanted


def _warnings(config: InspectConfig, target: TargetFacts) -> list[str]:
    found = []
    if not (Path(config.target) / "tokenizer.json").is_file():
        found.append("the target has no fast tokenizer (tokenizer.json): rendering takes longer and drops more")
    if target.context_length is not None and (config.context_length or 0) > target.context_length:
        found.append(
            f"serve.contextLength {config.context_length} is beyond the {target.context_length} positions of the target"
        )
    if (target.weights_dtype, target.dtype) == ("bfloat16", "float16"):
        found.append(
            "the target's weights are bfloat16, and SGLang serves it in float16, whose numbers end at 65,504: for bfloat16 give --dtype bfloat16 "
            "in serve.arguments, or name it in config.json (dtype)"
        )
    if target.own_code and not config.trust_remote_code:
        found.append(
            "the target's config.json names code of its own; set target.trustRemoteCode if it cannot be loaded"
        )
    return found
