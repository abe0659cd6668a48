"""Leaving: a draft in the layout of speculators, which vLLM serves too.

The layer's sizes nested, layers at the top level by their *input*, ``layers.0.*``, the head's rows in order of the target's tokens,
and offsets only where the draft knows a part of them. What the layout cannot say is refused: such a draft would load there, and be
another one.
Source: vllm-project/speculators 0.9.0, ``Eagle3SpeculatorConfig`` and ``Eagle3DraftModel``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eagle3_api.artifacts import CONFIG, WEIGHTS
from eagle3_api.checkpoints import Form
from eagle3_api.checkpoints.rope import SGLANGS_YARN, in_transformers_terms
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.convert.sglang_config import both_ropes
from eagle3_draft.convert.weights import write
from eagle3_draft.errors import StageError
from eagle3_draft.files import write_atomic
from eagle3_draft.model.target import Target
from eagle3_draft.tensors import Source, sources_of, type_of, whole

#: Whose layout this is.
VERSION = "0.9.0"

#: Proposals of a step that vLLM makes where it is told nothing.
DEFAULT_STEPS = 3

#: Rotary embeddings that Transformers does not build, or builds otherwise.
_UNKNOWN_ROPES = frozenset({SGLANGS_YARN, "proportional", "dynamic by alpha"})


def write_speculators(
    form: Form,
    layers: Sequence[int],
    out: Path,
    *,
    verifier: Mapping[str, Any],
    target: Target | None = None,
    steps: int = DEFAULT_STEPS,
) -> None:
    """Write a draft as speculators does.

    Args:
        form: of a draft that passed the rules.
        layers: whose outputs it reads, in this product's convention.
        out: the folder.
        verifier: the target as others call it: ``name_or_path`` and ``architectures``; vLLM serves that with this draft.
        target: its folder, for a head that is shared.
        steps: proposals of a step.

    Raises:
        StageError: the layout cannot say what this draft is (UnsupportedDraft); its head is the target's, and there is no target
            (BadConfiguration).
    """
    if (why := _unsayable(form)) is not None:
        raise StageError(ExitCode.REFUSED, Reason.UNSUPPORTED_DRAFT, f"{form.path}: {why}")
    sources = _renamed(_in_order(sources_of(form, target)), form.vocabulary_size)
    dtype = type_of(sources["fc.weight"])
    out.mkdir(parents=True, exist_ok=True)
    write(sources, out / WEIGHTS, dtype)
    config = speculators_config(form, layers, verifier=verifier, steps=steps, dtype=str(dtype).removeprefix("torch."))
    write_atomic(out / CONFIG, json.dumps(config, indent=1).encode())


def speculators_config(
    form: Form, layers: Sequence[int], *, verifier: Mapping[str, Any], steps: int, dtype: str
) -> dict[str, Any]:
    """What ``Eagle3SpeculatorConfig`` reads."""
    layer = {
        "model_type": "llama",
        "hidden_size": form.hidden_size,
        "intermediate_size": form.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": form.heads,
        "num_key_value_heads": form.kv_heads,
        "head_dim": form.head_dim,
        "hidden_act": form.activation,
        "rms_norm_eps": form.rms_norm_eps,
        "max_position_embeddings": form.max_position_embeddings,
        **both_ropes(replace(form, rope=in_transformers_terms(form.rope))),
        "vocab_size": form.vocabulary_size,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "transformer_layer_config": layer,
        "draft_vocab_size": form.draft_vocabulary_size,
        # Said, because its trainer's own default is true and a draft that does not say it is another one
        "norm_before_residual": False,
        "target_hidden_size": form.target_hidden_size if form.own_embedding else None,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in layers],
        "norm_before_fc": form.norm_before_fc,
        "fc_norm": form.fc_norm,
        "norm_output": form.norm_output,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": steps}],
            "default_proposal_method": "greedy",
            "verifier": dict(verifier),
        },
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def _unsayable(form: Form) -> str | None:
    """Why speculators would read another draft."""
    if form.latent is not None:
        return "its attention is latent, and speculators' drafts have Llama's"
    if form.depth != 1:
        return f"it has {form.depth} decoder layers; from the second on speculators' are of another kind"
    if form.fc_bias or form.output_bias:
        return "it has biases, which speculators' drafts do not have"
    if form.norm_before_fc and form.fc_norm:
        return "it has norm_before_fc and fc_norm, which speculators takes for a contradiction"
    kind = form.rope["rope_type"]
    if kind == "dynamic" and "factor" not in form.rope:
        kind = "dynamic by alpha"
    if kind in _UNKNOWN_ROPES:
        return f"its rotary embedding is of type {kind}, which Transformers, and so speculators, does not turn as SGLang does"
    if form.rope.get("extrapolation_factor", 1) != 1:
        return "its rotary embedding has an extrapolation_factor, which speculators would leave out"
    return None


def _in_order(sources: Mapping[str, Source]) -> Mapping[str, Source]:
    """The rows of the head in order of the target's tokens: speculators takes its teacher's columns by t2d, which knows no other
    order, and no map at all where a draft knows every token."""
    offsets = sources.get("d2t")
    if not isinstance(offsets, torch.Tensor):
        return sources
    ids, numbers = offsets + torch.arange(len(offsets)), torch.arange(len(offsets))
    order = ids.argsort()
    if torch.equal(order, numbers):
        return sources
    return {**sources, "d2t": ids[order] - numbers, "lm_head.weight": whole(sources["lm_head.weight"])[order]}


def _renamed(sources: Mapping[str, Source], vocabulary_size: int | None) -> dict[str, Source]:
    """By speculators' names; without a map that says nothing."""
    renamed = {name.replace("midlayer.", "layers.0."): source for name, source in sources.items()}
    offsets = renamed.get("d2t")
    if isinstance(offsets, torch.Tensor) and len(offsets) == vocabulary_size and not offsets.any():
        del renamed["d2t"], renamed["t2d"]
    return renamed
