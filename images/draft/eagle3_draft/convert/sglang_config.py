"""config.json of a draft, in the terms of SGLang's ``LlamaForCausalLMEagle3``."""

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_api.sglang import LLAMA_DRAFT
from eagle3_draft.model.config import DraftConfig, Llama3Scaling, rope_of


def checkpoint_config(
    draft: DraftConfig, *, capture_ids: Sequence[int], context_length: int, dtype: str, tokens: Mapping[str, Any]
) -> dict[str, Any]:
    """What SGLang must read to build this draft.

    Args:
        draft: the trained draft's sizes.
        capture_ids: the auxiliary layers as the serving version of SGLang calls them.
        context_length: the longest served context; a draft that says less keeps the server from starting.
        dtype: of the weights, as torch says it.
        tokens: the target's bos_token_id and eos_token_id, as far as it has them.
    """
    config: dict[str, Any] = {
        "architectures": [LLAMA_DRAFT],
        "model_type": "llama",
        "hidden_size": draft.hidden_size,
        "intermediate_size": draft.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": draft.heads,
        "num_key_value_heads": draft.kv_heads,
        "head_dim": draft.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": draft.rms_norm_eps,
        "max_position_embeddings": max(draft.max_position_embeddings, context_length),
        "rope_parameters": _rope_parameters(draft),
        "vocab_size": draft.vocabulary_size,
        "draft_vocab_size": draft.draft_vocabulary_size,
        # Else the server would take its embedding for the head
        "tie_word_embeddings": False,
        # Nested: at the top level SGLang does not see it, and captures its default layers
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(capture_ids), "use_aux_hidden_state": True},
        **{name: value for name, value in tokens.items() if value is not None},
    }
    # SGLang takes a null for a size; the key may only be there where it says something
    if draft.target_hidden_size != draft.hidden_size:
        config["target_hidden_size"] = draft.target_hidden_size
    return with_dtype(with_both_ropes(config), dtype)


def with_both_ropes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the older spelling of its rope beside Transformers 5's."""
    parameters = dict(config["rope_parameters"])
    theta = parameters.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    both = {
        **config,
        "rope_parameters": {"rope_type": "default", **parameters, "rope_theta": theta},
        "rope_theta": theta,
    }
    if parameters.get("rope_type", "default") != "default":
        both["rope_scaling"] = parameters
    return both


def with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The configuration with its weights' type, in both spellings."""
    return {**config, "dtype": dtype, "torch_dtype": dtype}


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


def _rope_parameters(draft: DraftConfig) -> dict[str, Any]:
    scaling: Llama3Scaling | None = draft.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": draft.rope_theta}
    return {"rope_type": "llama3", "rope_theta": draft.rope_theta, **scaling.model_dump()}
