"""What is converted, and in which order."""

import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from math import prod
from pathlib import Path

import torch

from eagle3_api.artifacts import CONFIG, PROMPTS, PROVENANCE, REPORT, WEIGHTS
from eagle3_api.checkpoints import Finding, Form, Served, check, read_folder, report
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertConfig, ConvertResult, ExitCode, TrainResult
from eagle3_api.sglang import UnsupportedLayersError, Version, capture_ids, log_ids
from eagle3_draft import artifacts
from eagle3_draft.convert import prompts
from eagle3_draft.convert.answers import Load
from eagle3_draft.convert.emit import emit
from eagle3_draft.convert.proof import Proof, prove_adopted, prove_trained
from eagle3_draft.convert.provenance import Training, read_origins, statement
from eagle3_draft.convert.trained import trained_form
from eagle3_draft.extract.stage import load_engine
from eagle3_draft.inspect.checkpoint import check_checkpoint, checkpoint_digest, read_checkpoint, refuse
from eagle3_draft.inspect.target import TargetFacts, read_target
from eagle3_draft.model import DraftConfig
from eagle3_draft.stage import StageError

#: As many as the report has room for.
_WARNINGS = 4


def run(config: ConvertConfig, *, load: Load | None = load_engine) -> ConvertResult:
    """Convert a draft, check it, ask it and publish it.

    Args:
        config: of the stage.
        load: makes what runs the target, which an adopted draft is asked about. None publishes an adopted draft unasked.

    Raises:
        StageError: the draft is refused (the reasons of ``checkpoints.rules``, FeatureMismatch, LayerConvention, NonFinite,
            ParityMismatch, LowAcceptLength), or something cannot be read or run.
    """
    folder = Path(config.folder)
    if (manifest := artifacts.finished(folder, config.key)) is not None:
        return artifacts.numbers(folder, manifest, ConvertResult)
    started = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    facts = read_target(Path(config.target))
    if facts.digest != config.target_digest:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"target.model: {config.target} was changed since it was inspected; it is to be inspected anew",
        )
    ids = _capture_ids(config, facts)
    served = Served(Version.parse(config.sglang_version), facts.of_draft, tuple(config.layers), config.context_length)
    trained = Path(config.trained) if config.trained is not None else None
    if trained is not None:
        form = _trained(config, trained, ids)
        findings = check(form, served)
        refuse(findings, f"the draft in {form.path} is refused")
    else:
        form = _adopted(config)
        findings = check_checkpoint(form, served)
    with beside(partial(_check_unchanged, config)):
        emitted = emit(form, served, ids, Path(config.target), facts.dtype, folder)
    findings += emitted.findings
    prompts.put(config, folder)
    proof = Proof()
    if trained is not None:
        proof = prove_trained(config, trained, _said_by_the_trainer(trained))
    elif load is not None:
        proof = prove_adopted(config, form, facts, load)
    findings += proof.findings
    refuse(proof.findings, f"the draft in {form.path} is refused")
    return _publish(config, form, findings, ids, emitted.digests, proof, started)


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
    return read_checkpoint(checkpoint)


def _check_unchanged(config: ConvertConfig) -> None:
    """Read the weights once more, for their digest alone: gigabytes, for which nobody waits.

    Raises:
        StageError: they are not those that the trainer published (CorruptArtifact), or that were inspected
            (CheckpointUnreadable).
    """
    if config.trained is not None:
        artifacts.verified(Path(config.trained), WEIGHTS)
        return
    checkpoint = Path(config.checkpoint or "")
    if config.checkpoint_digest not in (None, digest := checkpoint_digest(checkpoint)):
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.CHECKPOINT_UNREADABLE,
            f"draft.checkpoint: {checkpoint} was changed since it was inspected (digest {digest[:12]}…); it "
            "is to be inspected anew",
        )


@contextmanager
def beside(check: Callable[[], object]) -> Iterator[None]:
    """Run a check beside what is done meanwhile. What it finds comes before what went wrong there, for it may be the cause."""
    with ThreadPoolExecutor(1, "beside") as thread:
        found = thread.submit(check)
        try:
            yield
        finally:
            found.result()


def refused(reason: Reason, message: str) -> StageError:
    """A refusal."""
    return StageError(ExitCode.REFUSED, reason, message)


def _said_by_the_trainer(trained: Path) -> TrainResult:
    return artifacts.numbers(trained, artifacts.read(trained), TrainResult)


def _publish(
    config: ConvertConfig,
    form: Form,
    findings: list[Finding],
    ids: list[int],
    made: Mapping[str, str],
    proof: Proof,
    started: datetime,
) -> ConvertResult:
    folder = Path(config.folder)
    asked = proof.agreement
    expected = asked.expected_accept_lengths if asked is not None and asked.positions else None
    if config.trained is not None:
        expected = _said_by_the_trainer(Path(config.trained)).expected_accept_lengths
    parameters = {name: t for name, t in read_folder(folder).tensors.items() if name not in ("d2t", "t2d")}
    result = ConvertResult(
        digest=checkpoint_digest(folder, known=made),
        parameters=sum(prod(tensor.shape) for tensor in parameters.values()),
        bytes=(folder / WEIGHTS).stat().st_size,
        layers=config.layers,
        capture_ids=ids,
        draft_vocabulary_size=parameters["lm_head.weight"].shape[0],
        prompts=len((folder / PROMPTS).read_bytes().splitlines()),
        prompts_digest=artifacts.file_digest(folder / PROMPTS),
        expected_accept_lengths=expected,
        accuracy=asked.accuracy if asked is not None else None,
        equal_proposals=[round(step.equal, 4) for step in proof.proposals or () if step.positions] or None,
        chance=asked.chance if asked is not None else None,
        parity_error=proof.parity.error if proof.parity is not None else None,
        warnings=report.warnings(findings)[:_WARNINGS],
    )
    full: Mapping[str, object] = {
        "result": result.to_json(),
        "parity": asdict(proof.parity) if proof.parity is not None else None,
        "agreement": asdict(asked) if asked is not None else None,
        "proposals": None if proof.proposals is None else [asdict(step) for step in proof.proposals],
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
    training = Training.read(Path(config.trained)) if config.trained is not None else None
    said = statement(config, form.family, made, run, training, read_origins(config))
    artifacts.write_atomic(folder / PROVENANCE, json.dumps(said, indent=1).encode())
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
