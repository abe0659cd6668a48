"""config.json of a draft, in the terms of SGLang's ``LlamaForCausalLMEagle3`` or ``Eagle3DeepseekV2ForCausalLM``."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.rope import SGLANGS_YARN
from eagle3_api.sglang import LATENT_DRAFT, LLAMA_DRAFT


def checkpoint_config(
    form: Form, *, capture_ids: Sequence[int], context_length: int, dtype: str, tokens: Mapping[str, Any]
) -> dict[str, Any]:
    """What every supported SGLang must read to build this draft.

    Args:
        form: of the draft, which passed the rules.
        capture_ids: the auxiliary layers as the serving version of SGLang calls them.
        context_length: the longest served context; a draft that says less keeps the server from starting.
        dtype: of the weights, as torch says it.
        tokens: the target's bos_token_id and eos_token_id, as far as it has them.
    """
    config: dict[str, Any] = {
        **_attention(form),
        "hidden_size": form.hidden_size,
        "intermediate_size": form.intermediate_size,
        "num_hidden_layers": form.depth,
        "num_attention_heads": form.heads,
        "num_key_value_heads": form.kv_heads,
        "hidden_act": form.activation,
        "rms_norm_eps": form.rms_norm_eps,
        "max_position_embeddings": max(form.max_position_embeddings or 0, context_length),
        **both_ropes(form),
        "vocab_size": form.vocabulary_size,
        "draft_vocab_size": form.draft_vocabulary_size,
        # Else the server would take its embedding for the head
        "tie_word_embeddings": False,
        # Nested: at the top level SGLang does not see it, and captures its default layers
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(capture_ids), "use_aux_hidden_state": True},
        **{name: value for name, value in tokens.items() if value is not None},
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    # SGLang takes a null for a size; the key may only be there where it says something
    if form.target_hidden_size != form.hidden_size:
        config["target_hidden_size"] = form.target_hidden_size
    if form.fc_bias:
        config["bias"] = True
    # EAGLE-3.1's, which a draft of EAGLE-3 need not name
    for flag in ("fc_norm", "norm_before_fc", "norm_output"):
        if getattr(form, flag):
            config[flag] = True
    return config


def _attention(form: Form) -> dict[str, Any]:
    """The class, and the sizes of its attention."""
    if form.latent is None:
        return {
            "architectures": [LLAMA_DRAFT],
            "model_type": "llama",
            "head_dim": form.head_dim,
            # SGLang's drafts have it in the output projection alone; ``bias`` is fc's, and brings the other one
            "attention_bias": form.output_bias or form.fc_bias,
            "mlp_bias": False,
        }
    return {
        "architectures": [LATENT_DRAFT],
        "model_type": "deepseek_v3",
        "attention_bias": False,
        **asdict(form.latent),
    }


def both_ropes(form: Form) -> dict[str, Any]:
    """Transformers 5's spelling, and the older one beside it."""
    rope = dict(form.rope)
    if rope["rope_type"] in ("llama3", "yarn", SGLANGS_YARN, "longrope"):
        # Where it is not said it is max_position_embeddings, which may become another number here
        rope.setdefault("original_max_position_embeddings", form.max_position_embeddings)
    both = {"rope_parameters": rope, "rope_theta": rope["rope_theta"]}
    if rope["rope_type"] != "default":
        both["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    return both
