"""Small targets of the architectures that a draft can be had for, with random weights, by transformers' own classes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from eagle3_api.sglang import EMBEDDING_SINCE, RAW_IF_LAST_IS_ALL, RAW_UNLESS_FIRST_IS_ONE, WHOLE_SINCE, Version
from served import kimi
from unit.train import corpus

#: Of every one of them.
DECODER_LAYERS, VOCABULARY = 5, corpus.VOCABULARY

#: The embedding and its layers.
EVERY = range(-1, DECODER_LAYERS)


def sets_of_layers(architecture: str, version: Version) -> list[list[int]]:
    """All layers that can be named to a release of SGLang, in each notation that it has for them."""
    *all_but_last, _ = EVERY  # whose output is the final norm's input
    if architecture == "Glm4MoeLiteForCausalLM" and version < WHOLE_SINCE[architecture]:
        return [all_but_last[2:]]  # what enters its first layer has no residual yet
    if architecture in RAW_UNLESS_FIRST_IS_ONE:
        return [all_but_last, all_but_last[2:]]
    if architecture in RAW_IF_LAST_IS_ALL:
        return [all_but_last, list(EVERY)]
    return [all_but_last if version >= EMBEDDING_SINCE else all_but_last[1:]]


@dataclass(frozen=True)
class Sizes:
    """How large a target's parts are. SGLang on a CPU shares blocks among ranks in multiples of 32.

    Attributes:
        hidden: width of the states. A layer's own is twice that.
        head: of one of four heads.
        nope, rope, value, latent: of a head with latent attention, without and with a position; of its values; of what is cached.
        expert: width of one of four experts.
        of_token: experts that a token goes through. Where all are, no rounding chooses others.
    """

    hidden: int = 64
    head: int = 16
    nope: int = 16
    rope: int = 8
    value: int = 16
    latent: int = 24
    expert: int = 32
    of_token: int = 2

    @property
    def common(self) -> dict[str, Any]:
        return {
            "vocab_size": VOCABULARY,
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
            "num_hidden_layers": DECODER_LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": self.head,
            "max_position_embeddings": 1024,
            "initializer_range": 0.8
            * self.hidden**-0.5,  # each layer changes the states by about as much as there is of them
            "tie_word_embeddings": False,
        }

    @property
    def experts(self) -> dict[str, Any]:
        return {"moe_intermediate_size": self.expert, "num_experts": 4, "num_experts_per_tok": self.of_token}

    @property
    def grouped_experts(self) -> dict[str, Any]:
        """After a first layer without, as DeepSeek's. What SGLang reads and transformers has forgotten is said, too."""
        return {
            "moe_intermediate_size": self.expert,
            "moe_layer_freq": 1,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": self.of_token,
            "n_group": 2,
            "topk_group": self.of_token // 2,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "first_k_dense_replace": 1,
        }

    @property
    def latent_attention(self) -> dict[str, Any]:
        return {
            "num_key_value_heads": 4,
            "head_dim": self.rope,
            "q_lora_rank": self.nope + self.rope // 2,
            "kv_lora_rank": self.latent,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "v_head_dim": self.value,
        }

    @property
    def threefold_positions(self) -> dict[str, Any]:
        """Each dimension of a position in an image has a third of half a head."""
        thirds = [-(-(self.head // 2 - part) // 3) for part in range(3)]
        return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": thirds}

    @property
    def eyes(self) -> dict[str, Any]:
        return {
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": self.hidden,
        }


#: Those of the smallest, for an interpreter.
SMALLEST = Sizes()

#: Heads as the kernels for GPUs know them.
OF_A_GPU = Sizes(hidden=256, head=64, nope=128, rope=64, value=128, latent=512, expert=64, of_token=4)

_ALTERNATING = ["sliding_attention", "full_attention"] * 2 + ["full_attention"]
_TOKENS: Mapping[str, Any] = {"bos_token_id": 1, "eos_token_id": corpus.END, "pad_token_id": 0}
_MARKS: Mapping[str, Any] = {
    "image_token_id": 120,
    "video_token_id": 121,
    "vision_start_token_id": 122,
    "vision_end_token_id": 123,
}


def _of(sizes: Sizes) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Of each architecture: what transformers calls it, and what differs from the others."""
    grouped, latent = sizes.grouped_experts, sizes.latent_attention
    return {
        "LlamaForCausalLM": ("llama", {}),
        "Qwen2ForCausalLM": ("qwen2", {}),
        "Qwen2MoeForCausalLM": (
            "qwen2_moe",
            {**sizes.experts, "shared_expert_intermediate_size": 2 * sizes.expert},
        ),
        "Qwen3ForCausalLM": ("qwen3", {}),
        "Qwen3MoeForCausalLM": ("qwen3_moe", sizes.experts),
        "Glm4MoeForCausalLM": ("glm4_moe", {**grouped, "use_qk_norm": True, "partial_rotary_factor": 0.5}),
        "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", {**grouped, **latent, "n_group": 1, "topk_group": 1}),
        "DeepseekV2ForCausalLM": (
            "deepseek_v2",
            {**grouped, **latent, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "scoring_func": "softmax"},
        ),
        "DeepseekV3ForCausalLM": ("deepseek_v3", {**grouped, **latent}),
        kimi.ARCHITECTURE: ("deepseek_v3", {**grouped, **latent}),
        "Qwen3NextForCausalLM": (
            "qwen3_next",
            {
                **sizes.experts,
                "shared_expert_intermediate_size": 2 * sizes.expert,
                "full_attention_interval": 2,
                "layer_types": ["linear_attention", "full_attention"] * 2 + ["linear_attention"],
                "partial_rotary_factor": 0.5,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": sizes.nope,
                "linear_value_head_dim": sizes.value,
            },
        ),
        "DeepseekV32ForCausalLM": (
            "deepseek_v32",
            {
                **grouped,
                **latent,
                "index_topk": 2048,
                "index_n_heads": sizes.nope // 2,
                "index_head_dim": sizes.value,
            },
        ),
        "ApertusForCausalLM": ("apertus", {}),
        "GptOssForCausalLM": (
            "gpt_oss",
            {
                "num_local_experts": 4,
                "num_experts_per_tok": sizes.of_token,
                "intermediate_size": 2 * sizes.expert,
                "swiglu_limit": 7.0,
                "sliding_window": 8,
                "layer_types": _ALTERNATING,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 150000.0,
                    "factor": 4.0,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "truncate": False,
                    "original_max_position_embeddings": 256,
                },
            },
        ),
        "MiniMaxM2ForCausalLM": (
            "minimax_m2",
            {
                **sizes.experts,
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
                "query_pre_attn_scalar": sizes.head,
                "sliding_window": 8,
                "layer_types": _ALTERNATING,
                "tie_word_embeddings": True,
            },
        ),
        "Qwen2_5_VLForConditionalGeneration": (
            "qwen2_5_vl",
            {
                "text_config": {**sizes.common, "rope_parameters": sizes.threefold_positions},
                "vision_config": sizes.eyes,
                **_MARKS,
            },
        ),
        "Qwen3VLForConditionalGeneration": (
            "qwen3_vl",
            {
                "text_config": {
                    **sizes.common,
                    "rope_parameters": {**sizes.threefold_positions, "mrope_interleaved": True},
                },
                "vision_config": {**sizes.eyes, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
                **_MARKS,
            },
        ),
    }


#: Of targets that see: their words for pictures and films.
_PROCESSORS = {
    "Qwen2_5_VLForConditionalGeneration": ("Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"),
    "Qwen3VLForConditionalGeneration": ("Qwen3VLProcessor", "Qwen3VLVideoProcessor"),
}


#: Those whose targets bring Python of their own.
WITH_CODE = frozenset({kimi.ARCHITECTURE})


def architectures() -> list[str]:
    """Those that there are targets of."""
    return list(_of(SMALLEST))


def new_target(architecture: str, folder: Path, sizes: Sizes = SMALLEST) -> Any:
    """Write a target, and return it as transformers has it: of Kimi-K2.5 the language model. Its weights are numbers that bf16 has, too."""
    torch.manual_seed(0)
    model_type, own = _of(sizes)[architecture]
    sees = architecture in _PROCESSORS
    configure: Any = AutoConfig.for_model
    build: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    of_language: Mapping[str, Any] = {} if sees else sizes.common
    model = build.from_config(configure(model_type, **{**_TOKENS, **of_language, **own}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms of a model that was trained are not ones
                parameter.add_(0.3 * torch.rand_like(parameter))
            parameter.copy_(parameter.bfloat16())
    model.eval().save_pretrained(folder)
    corpus.new_tokenizer().save_pretrained(folder)
    if architecture == kimi.ARCHITECTURE:
        kimi.see(folder)
    if sees:
        processor, films = _PROCESSORS[architecture]
        pictures = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": processor}
        (folder / "preprocessor_config.json").write_text(json.dumps(pictures))
        (folder / "video_preprocessor_config.json").write_text(json.dumps({"video_processor_type": films}))
    return model
