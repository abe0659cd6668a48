"""Writing what every supported SGLang loads, from the one form."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3_api.artifacts import CONFIG, WEIGHTS
from eagle3_api.checkpoints import Finding, Form, Level, Served, check, read_folder, read_form
from eagle3_api.checkpoints.target import language_config
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.convert import embedding
from eagle3_draft.convert.sglang_config import checkpoint_config
from eagle3_draft.convert.values import Values, judge
from eagle3_draft.convert.weights import write
from eagle3_draft.errors import StageError
from eagle3_draft.files import file_digest, write_atomic
from eagle3_draft.inspect.checkpoint import refuse
from eagle3_draft.model.target import Target
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.tensors import sources_of


def weight_type(target: str) -> torch.dtype:
    """The type of a draft's weights: the one that its target is served in. SGLang multiplies the target's states by the draft's
    weights as they are.
    """
    return {"float32": torch.float32, "float16": torch.float16}.get(target, torch.bfloat16)


@dataclass(frozen=True)
class Emitted:
    """What was written.

    Attributes:
        findings: what the values showed, and what of them is lost, none of it a reason to refuse.
        digests: sha256 of each file, by its name.
    """

    findings: list[Finding]
    digests: dict[str, str]


def emit(form: Form, served: Served, ids: Sequence[int], target: Path, target_dtype: str, folder: Path) -> Emitted:
    """Write what every supported SGLang loads, and look at it once more as if it came from a stranger.

    Args:
        form: of a draft that passed the rules for ``served``.
        served: what it is to serve, and how.
        ids: its layers as the serving SGLang calls them.
        target: its folder, for a head that is shared and for the tokens that end a text.
        target_dtype: that it is served in, as torch says it.
        folder: receives config.json and model.safetensors.

    Raises:
        StageError: values that no trained draft has (NonFinite, CheckpointIncomplete); the target cannot be read.
    """
    dtype = weight_type(target_dtype)
    model = Target(target)
    sources = sources_of(form, model)
    progress = ProgressReporter(len(sources), "tensors")
    shown: dict[str, tuple[Values, int]] = {}

    def look(name: str, values: Values | None) -> None:
        if values is not None:
            shown[name] = (values, len(sources[name].shape))
        progress.advance(1)

    digest = write(sources, folder / WEIGHTS, dtype, look)
    findings = [*judge(shown, dtype), *embedding.compare(form, model)]
    refuse(findings, f"the draft in {form.path} is refused")
    text = language_config(model.config)
    config = checkpoint_config(
        form,
        capture_ids=ids,
        context_length=served.context_length or form.max_position_embeddings or 0,
        dtype=str(dtype).removeprefix("torch."),
        tokens={name: text.get(name) for name in ("bos_token_id", "eos_token_id")},
    )
    write_atomic(folder / CONFIG, json.dumps(config, indent=1).encode())
    _look_again(folder, served)
    return Emitted(findings, {CONFIG: file_digest(folder / CONFIG), WEIGHTS: digest})


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
