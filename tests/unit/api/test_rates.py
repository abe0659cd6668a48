"""How fast a target will run is told by its size, and that by its configuration."""

from typing import Any

import pytest

from eagle3_api.draft_size import DraftSize
from eagle3_api.estimate import KNOWN_MODELS
from eagle3_api.rates import H200, Gpu, Size, active_parameters, answer_rate, prefill_rate, size_of, training_rate

LLAMA_8B: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
KIMI: dict[str, Any] = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "vocab_size": 163840,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
}
QWEN_32B: dict[str, Any] = {
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "vocab_size": 151936,
    "intermediate_size": 25600,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
}

QWEN_30B: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "vocab_size": 151936,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
QWEN_235B = QWEN_30B | {
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
}
GPT_OSS: dict[str, Any] = {
    "hidden_size": 2880,
    "num_hidden_layers": 36,
    "vocab_size": 201088,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}

#: By the name under which the estimate knows a target.
KNOWN = {
    "Llama-3.1-8B-Instruct": LLAMA_8B,
    "Kimi-K2.5": KIMI,
    "Qwen3-32B": QWEN_32B,
    "Qwen3-30B-A3B": QWEN_30B,
    "Qwen3-235B-A22B": QWEN_235B,
    "gpt-oss-120b": GPT_OSS,
    "gpt-oss-20b": GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32},
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_configuration_tells_what_the_model_card_says(name: str) -> None:
    """Cards count the embedding among the parameters, which no token multiplies with; weights have scales beside them, and
    a small one's embedding and head, in bf16, are a fifth of what MXFP4 leaves of it."""
    card, config = KNOWN_MODELS[name].size, KNOWN[name]
    assert card is not None
    assert size_of(config).active == pytest.approx(card.active, rel=0.08)
    assert size_of(config).weight_bytes == pytest.approx(card.weight_bytes, rel=0.2)


def test_a_layer_has_the_parameters_of_its_attention_and_of_the_experts_that_a_token_meets() -> None:
    """DeepSeek-V3's (arXiv 2412.19437): queries through 1,536 numbers and keys through 512, eight experts and a shared one."""
    attention = 1536 * (7168 + 64 * 192) + 7168 * (512 + 64) + 512 * 64 * 256 + 64 * 128 * 7168
    one_less = size_of(KIMI | {"num_hidden_layers": 60})
    assert size_of(KIMI).active - one_less.active == attention + 9 * 3 * 7168 * 2048
    straight = size_of(KIMI | {"q_lora_rank": None})
    assert size_of(KIMI).active - straight.active == 61 * (1536 * (7168 + 64 * 192) - 7168 * 64 * 192)


def test_weights_in_fp8_take_half_the_bytes_and_a_head_that_is_the_embedding_none() -> None:
    whole = size_of(LLAMA_8B)
    assert whole.weight_bytes == pytest.approx(16.06e9, rel=0.001)
    halved = size_of(LLAMA_8B | {"quantization_config": {"quant_method": "fp8"}})
    assert halved == Size(whole.active, whole.weight_bytes / 2)
    tied = size_of(LLAMA_8B | {"tie_word_embeddings": True})
    assert tied == Size(whole.active, whole.weight_bytes - 2 * 4096 * 128256)


#: Of its config.json: gpt-oss-120b has no other layers than its experts, ModelOpt's DeepSeek-V3 names its algorithm.
DEEPSEEK_NVFP4 = KIMI | {
    "vocab_size": 129280,
    "num_attention_heads": 128,
    "n_routed_experts": 256,
    "first_k_dense_replace": 3,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
}


@pytest.mark.parametrize(
    ("config", "published"), [(GPT_OSS, 65.2e9), (DEEPSEEK_NVFP4, 0.4e12)], ids=["gpt-oss-120b", "DeepSeek-V3-NVFP4"]
)
def test_weights_of_four_bits_take_about_the_bytes_that_are_published(config: dict[str, Any], published: float) -> None:
    assert size_of(config).weight_bytes == pytest.approx(published, rel=0.1)


def test_weights_whose_bits_nobody_says_are_not_taken_for_sixteen() -> None:
    unclear = LLAMA_8B | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}
    with pytest.raises(ValueError, match="how many bits"):
        size_of(unclear)
    assert active_parameters(unclear) == size_of(LLAMA_8B).active


def test_heads_that_share_no_keys_need_not_say_so() -> None:
    alone = {name: value for name, value in LLAMA_8B.items() if name != "num_key_value_heads"}
    assert size_of(alone) == size_of(alone | {"num_key_value_heads": 32})


def test_a_configuration_that_lacks_a_size_tells_none() -> None:
    with pytest.raises(KeyError):
        size_of({"hidden_size": 4096, "num_hidden_layers": 32})


def test_twice_the_gpus_are_twice_as_fast_and_answers_are_slower_than_what_is_read() -> None:
    size = size_of(KIMI)
    assert prefill_rate(size, 8) == 2 * prefill_rate(size, 4)
    assert answer_rate(size, 8) == pytest.approx(2 * answer_rate(size, 4))
    assert answer_rate(size, 8) < prefill_rate(size, 8)
    assert prefill_rate(size, 8, Gpu(H200.operations / 2, H200.read)) == prefill_rate(size, 4)


@pytest.mark.parametrize("name", KNOWN)
def test_a_configuration_tells_the_sizes_of_the_draft_that_are_known(name: str) -> None:
    assert DraftSize.for_target(KNOWN[name]) == KNOWN_MODELS[name].draft


@pytest.mark.parametrize(
    ("config", "fp8", "measured"),
    [(LLAMA_8B, False, 37_034), (KIMI, False, 17_467), (LLAMA_8B, True, 47_380), (KIMI, True, 22_273)],
    ids=["8B", "Kimi", "8B in fp8", "Kimi in fp8"],
)
def test_a_training_is_told_as_fast_as_it_was_measured(config: dict[str, Any], fp8: bool, measured: float) -> None:
    """On one H200, as docs/benchmarks/training.md has it."""
    operations = DraftSize.for_target(config).operations(states=3, depth=1, vocabulary=32000, unroll_steps=7)
    assert training_rate(operations, 1, fp8=fp8) == pytest.approx(measured, rel=0.06)


def test_only_the_first_layer_of_a_draft_reads_a_token_as_well() -> None:
    size = DraftSize(hidden_size=2, intermediate_size=3, heads=2, kv_heads=1, head_dim=5)
    queries, keys, output, mlp = 2 * 10, 2 * 5, 10 * 2, 3 * 2 * 3
    first, second = (reads * (queries + 2 * keys) + output + mlp for reads in (2, 1))
    assert size.operations(states=3, depth=2, vocabulary=7, unroll_steps=1) == 6 * (first + second + 14) + 4 * 3 * 4


def test_a_draft_is_as_wide_as_what_a_token_meets_of_its_target() -> None:
    """Of gpt-oss and MiniMax M2 ``intermediate_size`` is an expert's, of which a token meets several: a draft had one."""
    minimax = {"hidden_size": 3072, "intermediate_size": 1536, "num_local_experts": 256, "num_experts_per_tok": 8}
    mixtral = {"hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2}
    llama4 = {"hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16}
    # Its own configuration has both names; who converts one keeps one
    named_otherwise = {name: value for name, value in GPT_OSS.items() if name != "num_experts_per_tok"}
    for config, width in (
        (GPT_OSS, 4 * 2880),
        (named_otherwise | {"experts_per_token": 4}, 4 * 2880),
        (named_otherwise, 2 * 2880),  # nobody says how many: as wide as the narrowest published
        (minimax, 8 * 1536),
        (minimax | {"num_experts_per_tok": 2}, 2 * 3072),
        (mixtral, 2 * 14336),
        (llama4 | {"num_experts_per_tok": 1}, 16384),
        (QWEN_30B, 6144),
        (KIMI, 18432),
        (LLAMA_8B, 14336),
        (LLAMA_8B | {"intermediate_size": 4096}, 4096),
    ):
        assert DraftSize.for_target({"num_attention_heads": 32} | config).intermediate_size == width


def test_a_target_is_as_large_by_whichever_name_it_says_how_many_experts_a_token_meets() -> None:
    otherwise = {name: value for name, value in GPT_OSS.items() if name != "num_experts_per_tok"} | {
        "experts_per_token": 4
    }
    assert size_of(otherwise) == size_of(GPT_OSS)
