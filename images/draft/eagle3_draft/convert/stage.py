"""What is converted, and in which order."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any

import torch

from eagle3_api.artifacts import CONFIG, PROMPTS, REPORT, VOCABULARY, WEIGHTS
from eagle3_api.checkpoint_rules import Target as ServedTarget
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertConfig, ConvertResult, ExitCode, TrainResult
from eagle3_api.sglang import UnsupportedLayersError, Version, capture_ids, log_ids
from eagle3_draft import artifacts
from eagle3_draft.convert import parity, prompts, weights
from eagle3_draft.convert.refusal import check, refused
from eagle3_draft.convert.sglang_config import checkpoint_config, with_both_ropes, with_dtype
from eagle3_draft.convert.weights import Source
from eagle3_draft.inspect.checkpoint import checkpoint_digest
from eagle3_draft.inspect.target import TargetFacts, read_target
from eagle3_draft.model import DraftConfig
from eagle3_draft.model.config import text_config
from eagle3_draft.model.target import Target
from eagle3_draft.progress import Progress
from eagle3_draft.stage import StageError

#: How far logits may be apart, as a share of their root mean square, and how many proposals must be the same. Rounding
#: weights to bfloat16 moves logits by a few hundredths; a wrong tensor moves them by about their own size.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25}
AGREEMENT = {torch.float32: 1.0, torch.bfloat16: 0.9}


def run(config: ConvertConfig) -> ConvertResult:
    """Convert a draft, check it and publish it.

    Raises:
        StageError: the draft is refused (the reasons of ``checkpoint_rules``, FeatureMismatch, LayerConvention, NonFinite,
            ParityMismatch), or something cannot be read.
    """
    folder = Path(config.folder)
    if (manifest := artifacts.finished(folder, config.key)) is not None:
        return ConvertResult.model_validate(manifest.numbers)
    started = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    facts = read_target(Path(config.target))
    if facts.digest != config.target_digest:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"target.model: {config.target} was changed since it was inspected; set eagle3.dev/retry to inspect it anew",
        )
    ids = _capture_ids(config, facts)
    dtype = torch.float32 if facts.dtype == "float32" else torch.bfloat16
    name = str(dtype).removeprefix("torch.")
    if config.trained is not None:
        where, source, draft_config = _trained(config, Path(config.trained), ids, name)
    else:
        where, source, draft_config = _adopted(config, ids, facts, name)
    served = ServedTarget(facts.hidden_size, facts.vocabulary_size, tuple(ids), config.context_length)
    check(draft_config, source, served, where)

    progress = Progress(len(source.files) + 1, "tensors")
    for number, _ in enumerate(weights.convert(source, folder / WEIGHTS, dtype), 1):
        progress.update(number)
    artifacts.write_atomic(folder / CONFIG, json.dumps(draft_config, indent=1).encode())
    same = _compare(config, folder, dtype) if config.trained is not None else None
    progress.update(len(source.files) + 1)
    return _publish(config, source, ids, same, started)


def _capture_ids(config: ConvertConfig, facts: TargetFacts) -> list[int]:
    """The layers as the serving version of SGLang calls them."""
    try:
        version = Version.parse(config.sglang_version)
        return capture_ids(config.layers, facts.architecture, facts.num_layers, version)
    except UnsupportedLayersError as error:
        raise refused(Reason.LAYER_CONVENTION, f"draft.auxiliaryLayers: {error}") from None


def _trained(
    config: ConvertConfig, trained: Path, ids: list[int], dtype: str
) -> tuple[Path, Source, Mapping[str, Any]]:
    """A draft of ours: where it lies, its tensors, and the configuration to serve it with."""
    manifest = artifacts.read(trained)
    draft = DraftConfig.model_validate_json(artifacts.verified(trained, CONFIG).read_bytes())
    if draft.layers != config.layers:
        raise refused(
            Reason.FEATURE_MISMATCH,
            f"the draft was trained on the outputs of layers {draft.layers}; its eagle_config would make SGLang "
            f"{config.sglang_version} capture {ids} ({', '.join(map(str, log_ids(config.layers)))} in its log). Such a draft "
            "serves at accept length 1.0. Retrain, or set draft.auxiliaryLayers to what it was trained on",
        )
    for what, found, expected in (
        ("key", manifest.key, config.trained_key),
        ("target digest", manifest.made_from.get("target"), config.target_digest),
    ):
        if found != expected:
            raise refused(
                Reason.FEATURE_MISMATCH,
                f"the draft in {trained} is another one's: its {what} is {found}, expected {expected}. Retrain it",
            )
    source = Source.open(artifacts.verified(trained, WEIGHTS), artifacts.verified(trained, VOCABULARY))
    text = text_config(Target(Path(config.target)).config)
    return (
        trained,
        source,
        checkpoint_config(
            draft,
            capture_ids=ids,
            context_length=config.context_length,
            dtype=dtype,
            tokens={name: text.get(name) for name in ("bos_token_id", "eos_token_id")},
        ),
    )


def _adopted(
    config: ConvertConfig, ids: list[int], facts: TargetFacts, dtype: str
) -> tuple[Path, Source, Mapping[str, Any]]:
    """A draft from elsewhere, as its folder has it; it is refused before anything is mended."""
    if config.checkpoint is None:
        raise StageError(
            ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION, "there is neither a trained nor an adopted draft"
        )
    checkpoint = Path(config.checkpoint)
    if config.checkpoint_digest not in (None, digest := checkpoint_digest(checkpoint)):
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.CHECKPOINT_UNREADABLE,
            f"draft.checkpoint: {checkpoint} was changed since it was inspected (digest {digest[:12]}…); set "
            "eagle3.dev/retry to inspect it anew",
        )
    given = _read_config(checkpoint)
    source = Source.open(*sorted(checkpoint.glob("*.safetensors")))
    served = ServedTarget(facts.hidden_size, facts.vocabulary_size, tuple(ids), config.context_length)
    check(given, source, served, checkpoint)
    return checkpoint, source, with_dtype(with_both_ropes(_without_nulls(given)), dtype)


def _read_config(checkpoint: Path) -> dict[str, Any]:
    try:
        config = json.loads((checkpoint / CONFIG).read_bytes())
    except (OSError, ValueError) as error:
        raise StageError(
            ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE, f"draft.checkpoint: {checkpoint / CONFIG}: {error}"
        ) from None
    if not isinstance(config, dict):
        raise refused(Reason.CONFIG_INVALID, f"draft.checkpoint: {checkpoint / CONFIG} is no JSON object")
    return config


def _without_nulls(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value is not None}


def _compare(config: ConvertConfig, folder: Path, dtype: torch.dtype) -> parity.Parity:
    """The converted draft must propose what the trained one does."""
    assert config.trained is not None  # noqa: S101  the caller's condition
    trained = Path(config.trained)
    same = parity.compare(
        trained, folder, config.layers, Target(Path(config.target)).embedding(), parity.read_held_out(trained)
    )
    if same.error > TOLERANCE[dtype] * same.scale or same.agreement < AGREEMENT[dtype]:
        raise refused(
            Reason.PARITY_MISMATCH,
            f"the converted draft is not the trained one: on {same.rows} held-out rows its logits are up to "
            f"{same.error:.3g} apart (their size is {same.scale:.3g}), and {same.agreement:.1%} of its proposals are the "
            "same. This is a fault of the conversion, or of the disk",
        )
    return same


def _publish(
    config: ConvertConfig, source: Source, ids: list[int], same: parity.Parity | None, started: datetime
) -> ConvertResult:
    folder = Path(config.folder)
    count = prompts.put(config, folder)
    trained = TrainResult.model_validate(artifacts.read(Path(config.trained)).numbers) if config.trained else None
    parameters = {name: header for name, header in source.headers.items() if name not in ("d2t", "t2d")}
    result = ConvertResult(
        digest=checkpoint_digest(folder),
        parameters=sum(prod(header.shape) for header in parameters.values()),
        bytes=(folder / WEIGHTS).stat().st_size,
        layers=config.layers,
        capture_ids=ids,
        draft_vocabulary_size=source.headers["lm_head.weight"].shape[0],
        prompts=count,
        prompts_digest=artifacts.file_digest(folder / PROMPTS),
        expected_accept_lengths=trained.expected_accept_lengths if trained else None,
        parity_error=same.error if same else None,
        warnings=weights.untrained(source),
    )
    report = {"result": result.to_json(), "parity": asdict(same) if same else None, "config": config.to_json()}
    artifacts.write_atomic(folder / REPORT, json.dumps(report, indent=1).encode())
    artifacts.publish(
        folder,
        stage=config.stage,
        key=config.key,
        made_from={
            "target": config.target_digest,
            **({"trained": config.trained_key} if config.trained_key else {}),
            **({"checkpoint": config.checkpoint_digest} if config.checkpoint_digest else {}),
        },
        numbers=result.to_json(),
        provenance={
            "sglang": config.sglang_version,
            "torch": torch.__version__,
            "node": platform.node(),
            "started": started.isoformat(timespec="seconds"),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    return result
