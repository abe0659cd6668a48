"""A small target with latent attention: every draft for it, too, can be served on a CPU."""

from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from eagle3_draft.model.config import Latent
from unit.train import corpus

#: SGLang takes a list for DeepSeek's models that begins with 1 for outputs: this begins with the embedding.
LAYERS = [-1, 1, 2]

SMALL = Latent(q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10)
OF_DEEPSEEK = Latent(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)


def new_target(folder: Path, *, hidden: int = corpus.HIDDEN, heads: int = 4, latent: Latent = SMALL) -> Path:
    """Write a random DeepSeek V3 of four layers, without experts; returns its folder.

    Args:
        folder: for it.
        hidden: size of its states.
        heads, latent: sizes of its attention. A GPU's kernels know DeepSeek's own.
    """
    torch.manual_seed(0)
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    sizes: Any = DeepseekV3Config
    build: Any = DeepseekV3ForCausalLM
    model = build(
        sizes(
            vocab_size=corpus.VOCABULARY,
            hidden_size=hidden,
            intermediate_size=3 * hidden // 2,
            num_hidden_layers=4,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            **latent.model_dump(),
            first_k_dense_replace=4,
            moe_layer_freq=1,
            n_routed_experts=8,
            n_group=2,
            topk_group=1,
            num_experts_per_tok=2,
            max_position_embeddings=256,
            rope_parameters=yarn | {"rope_theta": 10000.0},
            initializer_range=0.1,
            bos_token_id=1,
            eos_token_id=corpus.END,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(10)  # a target that is sure of what it says
    model.eval().save_pretrained(folder)
    corpus.new_tokenizer().save_pretrained(folder)
    return folder
