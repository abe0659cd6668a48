"""Small targets of the architectures that a draft can be had for, with random weights, by transformers' own classes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from unit.train import corpus

#: Of every one of them. SGLang on a CPU shares blocks among ranks in multiples of 32.
DECODER_LAYERS, VOCABULARY = 5, corpus.VOCABULARY

_COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": DECODER_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,  # each layer changes the states by about as much as there is of them
    "tie_word_embeddings": False,
}
_TOKENS: Mapping[str, Any] = {"bos_token_id": 1, "eos_token_id": corpus.END, "pad_token_id": 0}
_EXPERTS: Mapping[str, Any] = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
_SHARED_EXPERT: Mapping[str, Any] = {**_EXPERTS, "shared_expert_intermediate_size": 64}

#: After a first layer without, as DeepSeek's. What SGLang reads and transformers has forgotten is said, too.
_GROUPED_EXPERTS: Mapping[str, Any] = {
    "moe_intermediate_size": 32,
    "moe_layer_freq": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "first_k_dense_replace": 1,
}
_LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}

#: Where each dimension of a position in an image has its part.
_THREEFOLD_POSITIONS: Mapping[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]}
_EYES: Mapping[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
}
_MARKS: Mapping[str, Any] = {
    "image_token_id": 120,
    "video_token_id": 121,
    "vision_start_token_id": 122,
    "vision_end_token_id": 123,
}

#: Of each architecture: what transformers calls it, and what differs from the others.
_OF: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "LlamaForCausalLM": ("llama", {}),
    "Qwen2ForCausalLM": ("qwen2", {}),
    "Qwen2MoeForCausalLM": ("qwen2_moe", _SHARED_EXPERT),
    "Qwen3ForCausalLM": ("qwen3", {}),
    "Qwen3MoeForCausalLM": ("qwen3_moe", _EXPERTS),
    "Glm4MoeForCausalLM": ("glm4_moe", {**_GROUPED_EXPERTS, "use_qk_norm": True, "partial_rotary_factor": 0.5}),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", {**_GROUPED_EXPERTS, **_LATENT, "n_group": 1}),
    "DeepseekV2ForCausalLM": (
        "deepseek_v2",
        {**_GROUPED_EXPERTS, **_LATENT, "topk_method": "greedy", "n_group": 1, "scoring_func": "softmax"},
    ),
    "DeepseekV3ForCausalLM": ("deepseek_v3", {**_GROUPED_EXPERTS, **_LATENT}),
    "ApertusForCausalLM": ("apertus", {}),
    "MiniMaxM2ForCausalLM": (
        "minimax_m2",
        {
            **_EXPERTS,
            "num_local_experts": 4,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
        },
    ),
    "Gemma3ForCausalLM": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
            "tie_word_embeddings": True,
        },
    ),
    "Qwen2_5_VLForConditionalGeneration": (
        "qwen2_5_vl",
        {"text_config": {**_COMMON, "rope_parameters": _THREEFOLD_POSITIONS}, "vision_config": _EYES, **_MARKS},
    ),
    "Qwen3VLForConditionalGeneration": (
        "qwen3_vl",
        {
            "text_config": {**_COMMON, "rope_parameters": {**_THREEFOLD_POSITIONS, "mrope_interleaved": True}},
            "vision_config": {**_EYES, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
            **_MARKS,
        },
    ),
}

#: Of targets that see: their words for pictures and films.
_PROCESSORS = {
    "Qwen2_5_VLForConditionalGeneration": ("Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"),
    "Qwen3VLForConditionalGeneration": ("Qwen3VLProcessor", "Qwen3VLVideoProcessor"),
}


def new_target(architecture: str, folder: Path) -> Any:
    """Write a target, and return it as transformers has it."""
    torch.manual_seed(0)
    model_type, sizes = _OF[architecture]
    sees = architecture in _PROCESSORS
    configure: Any = AutoConfig.for_model
    build: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    of_language: Mapping[str, Any] = {} if sees else _COMMON
    model = build.from_config(configure(model_type, **{**_TOKENS, **of_language, **sizes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms of a model that was trained are not ones
                parameter.add_(0.3 * torch.rand_like(parameter))
    model.eval().save_pretrained(folder)
    corpus.new_tokenizer().save_pretrained(folder)
    if sees:
        processor, films = _PROCESSORS[architecture]
        pictures = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": processor}
        (folder / "preprocessor_config.json").write_text(json.dumps(pictures))
        (folder / "video_preprocessor_config.json").write_text(json.dumps({"video_processor_type": films}))
    return model
