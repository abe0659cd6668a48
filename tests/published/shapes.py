"""The tensors of an EAGLE-3 draft with a Llama layer, as its configuration makes them. Source: arXiv 2503.01840."""

from collections.abc import Mapping
from typing import Any

from eagle3_api.checkpoints.safetensors import Tensor


def shapes(config: Mapping[str, Any], states: int = 3) -> dict[str, tuple[int, ...]]:
    """Names, as SGLang writes them, and shapes; ``states`` auxiliary ones."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = {
        "hidden_norm": (hidden,),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, 2 * hidden),
        "self_attn.k_proj": (keys, 2 * hidden),
        "self_attn.v_proj": (keys, 2 * hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    whole = {
        "fc.weight": (hidden, states * (config.get("target_hidden_size") or hidden)),
        "norm.weight": (hidden,),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
    }
    return whole | {f"midlayer.{name}.weight": shape for name, shape in layer.items()}


def tensors(config: Mapping[str, Any], dtype: str = "BF16") -> dict[str, Tensor]:
    """As a safetensors header names them, the vocabulary's maps included."""
    maps = {"d2t": Tensor("I64", (config["draft_vocab_size"],)), "t2d": Tensor("BOOL", (config["vocab_size"],))}
    return {name: Tensor(dtype, shape) for name, shape in shapes(config).items()} | maps
