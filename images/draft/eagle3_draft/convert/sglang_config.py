"""config.json of a draft, in the terms of SGLang's ``LlamaForCausalLMEagle3``."""

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_api.checkpoints.form import Form
from eagle3_api.sglang import LLAMA_DRAFT
from eagle3_draft.model.config import DraftConfig, rope_of


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
        "architectures": [LLAMA_DRAFT],
        "model_type": "llama",
        "hidden_size": form.hidden_size,
        "intermediate_size": form.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": form.heads,
        "num_key_value_heads": form.kv_heads,
        "head_dim": form.head_dim,
        "hidden_act": form.activation,
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": form.rms_norm_eps,
        "max_position_embeddings": max(form.max_position_embeddings or 0, context_length),
        **_both_ropes(form.rope),
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
    # EAGLE-3.1's, which a draft of EAGLE-3 need not name
    for flag in ("fc_norm", "norm_before_fc", "norm_output"):
        if getattr(form, flag):
            config[flag] = True
    return config


def _both_ropes(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Transformers 5's spelling, and the older one beside it."""
    both = {"rope_parameters": dict(rope), "rope_theta": rope["rope_theta"]}
    if rope["rope_type"] != "default":
        both["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    return both


def read_config(config: Mapping[str, Any], layers: Sequence[int]) -> DraftConfig:
    """The sizes that SGLang would build from a configuration that passed the rules.

    Args:
        config: config.json.
        layers: the auxiliary layers, in this product's convention.
    """
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    theta, scaling = rope_of(config)
    return DraftConfig(
        hidden_size=hidden,
        target_hidden_size=config.get("target_hidden_size", hidden),
        layers=list(layers),
        intermediate_size=config["intermediate_size"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or hidden // heads,
        rms_norm_eps=config["rms_norm_eps"],
        rope_theta=theta,
        rope_scaling=scaling,
        vocabulary_size=config["vocab_size"],
        draft_vocabulary_size=config["draft_vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
    )
