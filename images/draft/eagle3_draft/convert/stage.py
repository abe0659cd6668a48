"""What is converted, and in which order."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import prod
from pathlib import Path

import torch

from eagle3_api.artifacts import CONFIG, PROMPTS, PROVENANCE, REPORT, WEIGHTS
from eagle3_api.checkpoints import Finding, Form, Level, Served, check, read_folder, read_form, report
from eagle3_api.checkpoints.rules import read_map
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertConfig, ConvertResult, ExitCode, TrainResult
from eagle3_api.sglang import UnsupportedLayersError, Version, capture_ids, log_ids
from eagle3_draft import artifacts
from eagle3_draft.convert import parity, prompts
from eagle3_draft.convert.provenance import statement
from eagle3_draft.convert.sglang_config import checkpoint_config
from eagle3_draft.convert.trained import trained_form
from eagle3_draft.convert.values import judge
from eagle3_draft.convert.weights import Source, write
from eagle3_draft.inspect.checkpoint import check_checkpoint, checkpoint_digest, read_checkpoint, refuse
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

#: As many as the report has room for.
_WARNINGS = 4


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
    served = Served(Version.parse(config.sglang_version), facts.of_draft, tuple(config.layers), config.context_length)
    if config.trained is not None:
        form = _trained(config, Path(config.trained), ids)
        findings = check(form, served)
        refuse(findings, f"the draft in {form.path} is refused")
    else:
        form = _adopted(config)
        findings = check_checkpoint(form, served)
    findings += emit(form, served, ids, Path(config.target), facts.dtype, folder)
    same = _compare(config, folder, weight_type(facts.dtype)) if config.trained is not None else None
    return _publish(config, form, findings, ids, same, started)


def weight_type(target: str) -> torch.dtype:
    """The type of a draft's weights, by its target's."""
    return torch.float32 if target == "float32" else torch.bfloat16


def emit(
    form: Form, served: Served, ids: Sequence[int], target: Path, target_dtype: str, folder: Path
) -> list[Finding]:
    """Write what every supported SGLang loads, and look at it once more as if it came from a stranger.

    Args:
        form: of a draft that passed the rules for ``served``.
        served: what it is to serve, and how.
        ids: its layers as the serving SGLang calls them.
        target: its folder, for a head that is shared and for the tokens that end a text.
        target_dtype: of its weights, as torch says it.
        folder: receives config.json and model.safetensors.

    Returns:
        What the values showed, none of it a reason to refuse.

    Raises:
        StageError: values that no trained draft has (NonFinite, CheckpointIncomplete); the target cannot be read.
    """
    dtype = weight_type(target_dtype)
    model = Target(target)
    sources = _sources(form, model)
    progress = Progress(len(sources), "tensors")
    seen = {}
    for number, written in enumerate(write(sources, folder / WEIGHTS, dtype), 1):
        if written.values is not None:
            seen[written.name] = (written.values, len(sources[written.name].shape))
        progress.update(number)
    findings = list(judge(seen))
    refuse(findings, f"the draft in {form.path} is refused")
    text = text_config(model.config)
    config = checkpoint_config(
        form,
        capture_ids=ids,
        context_length=served.context_length or form.max_position_embeddings or 0,
        dtype=str(dtype).removeprefix("torch."),
        tokens={name: text.get(name) for name in ("bos_token_id", "eos_token_id")},
    )
    artifacts.write_atomic(folder / CONFIG, json.dumps(config, indent=1).encode())
    _look_again(folder, served)
    return findings


def _sources(form: Form, target: Target) -> dict[str, Source]:
    """Every tensor that is written, by SGLang's names."""
    sources: dict[str, Source] = {
        name: stored for name, stored in form.tensors.items() if name != "embed_tokens.weight" or form.own_embedding
    }
    if "lm_head.weight" not in sources:
        own = form.tensors.get("embed_tokens.weight")
        sources["lm_head.weight"] = (own or target.embedding()) if form.tied else target.head()
    if form.fc_bias and not form.output_bias:  # SGLang makes both or none
        layers = ["midlayer", *(f"layers.{number}" for number in range(1, form.depth))]
        sources |= {f"{layer}.self_attn.o_proj.bias": torch.zeros(form.hidden_size or 0) for layer in layers}
    size = form.vocabulary_size or 0
    reading = read_map(form, size)
    if reading is not None:
        rows = torch.tensor(reading.ids, dtype=torch.int64)
        sources["d2t"] = rows - torch.arange(len(rows))
        sources["t2d"] = torch.zeros(size, dtype=torch.bool).index_fill(0, rows, True)
    return sources


def _look_again(folder: Path, served: Served) -> None:
    """What was written must pass every rule with nothing left to mend."""
    findings = check(read_form(read_folder(folder)), served)
    wrong = [finding for finding in findings if finding.level in (Level.MENDED, Level.REFUSED)]
    if wrong:
        raise StageError(
            ExitCode.INTERNAL_ERROR,
            Reason.INTERNAL_ERROR,
            f"the converted draft does not pass its own rules: {wrong[0].rule.id}: {wrong[0].message}",
        )


def _capture_ids(config: ConvertConfig, facts: TargetFacts) -> list[int]:
    """The layers as the serving version of SGLang calls them."""
    try:
        version = Version.parse(config.sglang_version)
        return capture_ids(config.layers, facts.architecture, facts.num_layers, version)
    except UnsupportedLayersError as error:
        raise refused(Reason.LAYER_CONVENTION, f"draft.auxiliaryLayers: {error}") from None


def _trained(config: ConvertConfig, trained: Path, ids: Sequence[int]) -> Form:
    """A draft of ours."""
    manifest = artifacts.read(trained)
    draft = DraftConfig.model_validate_json(artifacts.verified(trained, CONFIG).read_bytes())
    if draft.layers != config.layers:
        raise refused(
            Reason.FEATURE_MISMATCH,
            f"the draft was trained on the outputs of layers {draft.layers}; its eagle_config would make SGLang "
            f"{config.sglang_version} capture {list(ids)} ({', '.join(map(str, log_ids(config.layers)))} in its log). Such a "
            "draft serves at accept length 1.0. Retrain, or set draft.auxiliaryLayers to what it was trained on",
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
    return trained_form(trained, draft)


def _adopted(config: ConvertConfig) -> Form:
    """A draft from elsewhere."""
    if config.checkpoint is None:
        raise StageError(
            ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION, "there is neither a trained nor an adopted draft"
        )
    checkpoint = Path(config.checkpoint)
    form = read_checkpoint(checkpoint)
    if config.checkpoint_digest not in (None, digest := checkpoint_digest(checkpoint)):
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.CHECKPOINT_UNREADABLE,
            f"draft.checkpoint: {checkpoint} was changed since it was inspected (digest {digest[:12]}…); set "
            "eagle3.dev/retry to inspect it anew",
        )
    return form


def refused(reason: Reason, message: str) -> StageError:
    """A refusal."""
    return StageError(ExitCode.REFUSED, reason, message)


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
    config: ConvertConfig,
    form: Form,
    findings: list[Finding],
    ids: list[int],
    same: parity.Parity | None,
    started: datetime,
) -> ConvertResult:
    folder = Path(config.folder)
    count = prompts.put(config, folder)
    trained = TrainResult.model_validate(artifacts.read(Path(config.trained)).numbers) if config.trained else None
    parameters = {name: t for name, t in read_folder(folder).tensors.items() if name not in ("d2t", "t2d")}
    result = ConvertResult(
        digest=checkpoint_digest(folder),
        parameters=sum(prod(tensor.shape) for tensor in parameters.values()),
        bytes=(folder / WEIGHTS).stat().st_size,
        layers=config.layers,
        capture_ids=ids,
        draft_vocabulary_size=parameters["lm_head.weight"].shape[0],
        prompts=count,
        prompts_digest=artifacts.file_digest(folder / PROMPTS),
        expected_accept_lengths=trained.expected_accept_lengths if trained else None,
        parity_error=same.error if same else None,
        warnings=report.warnings(findings)[:_WARNINGS],
    )
    full: Mapping[str, object] = {
        "result": result.to_json(),
        "parity": asdict(same) if same else None,
        "family": form.family,
        "checks": report.to_json(findings),
        "config": config.to_json(),
    }
    artifacts.write_atomic(folder / REPORT, json.dumps(full, indent=1).encode())
    run = {
        "sglang": config.sglang_version,
        "torch": torch.__version__,
        "node": platform.node(),
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    made = {name: artifacts.file_digest(folder / name) for name in (WEIGHTS, CONFIG)}
    artifacts.write_atomic(
        folder / PROVENANCE, json.dumps(statement(config, form.family, made, run), indent=1).encode()
    )
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
        provenance=run,
        digests=made,
    )
    return result
