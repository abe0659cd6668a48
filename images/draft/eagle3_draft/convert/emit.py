"""Writing what every supported SGLang loads, from the one form."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from eagle3_api.artifacts import CONFIG, WEIGHTS
from eagle3_api.checkpoints import Finding, Form, Level, Served, check, read_folder, read_form
from eagle3_api.checkpoints.vocabulary import read_map
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft import artifacts
from eagle3_draft.convert import embedding
from eagle3_draft.convert.sglang_config import checkpoint_config
from eagle3_draft.convert.values import judge
from eagle3_draft.convert.weights import Source, write
from eagle3_draft.inspect.checkpoint import refuse
from eagle3_draft.model.target import Target
from eagle3_draft.progress import Progress
from eagle3_draft.stage import StageError
from eagle3_draft.target_files import language_config


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
        What the values showed, and what of them is lost, none of it a reason to refuse.

    Raises:
        StageError: values that no trained draft has (NonFinite, CheckpointIncomplete); the target cannot be read.
    """
    dtype = weight_type(target_dtype)
    model = Target(target)
    sources = sources_of(form, model)
    progress = Progress(len(sources), "tensors")
    seen = {}
    for number, written in enumerate(write(sources, folder / WEIGHTS, dtype), 1):
        if written.values is not None:
            seen[written.name] = (written.values, len(sources[written.name].shape))
        progress.update(number)
    findings = [*judge(seen), *embedding.compare(form, model)]
    refuse(findings, f"the draft in {form.path} is refused")
    text = language_config(model.config)
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


def sources_of(form: Form, target: Target | None) -> dict[str, Source]:
    """Every tensor of a whole draft, by SGLang's names.

    Args:
        form: of the draft.
        target: for a head that is shared.

    Raises:
        StageError: the head is the target's, and there is no target (InvalidConfiguration).
    """
    sources: dict[str, Source] = {
        name: stored for name, stored in form.tensors.items() if name != "embed_tokens.weight" or form.own_embedding
    }
    if "lm_head.weight" not in sources:
        sources["lm_head.weight"] = _shared_head(form, target)
    if form.fc_bias and not form.output_bias and form.latent is None:  # SGLang makes both or none
        layers = ["midlayer", *(f"layers.{number}" for number in range(1, form.depth))]
        sources |= {f"{layer}.self_attn.o_proj.bias": torch.zeros(form.hidden_size or 0) for layer in layers}
    size = form.vocabulary_size or 0
    reading = read_map(form, size)
    if reading is not None:
        rows = torch.tensor(reading.ids, dtype=torch.int64)
        sources["d2t"] = rows - torch.arange(len(rows))
        sources["t2d"] = torch.zeros(size, dtype=torch.bool).index_fill(0, rows, True)
    return sources


def _shared_head(form: Form, target: Target | None) -> Source:
    own = form.tensors.get("embed_tokens.weight")
    if form.tied and own is not None:
        return own
    if target is None:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"the draft in {form.path} has no head of its own and uses its target's: name the target",
        )
    return target.embedding() if form.tied else target.head()


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
