"""A draft's sizes follow from its target's configuration."""

from typing import Any

import pytest
import torch

from eagle3_api.checkpoints.form import LATENT_SIZES
from eagle3_api.conditions import Reason
from eagle3_draft.errors import StageError
from eagle3_draft.model.config import Llama3Scaling, draft_config
from eagle3_draft.model.draft import Draft

LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": LLAMA3_ROPE,
}
KIMI: dict[str, Any] = {
    "text_config": {
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "kv_lora_rank": 512,
        "rms_norm_eps": 1e-5,
        "vocab_size": 163840,
        "max_position_embeddings": 262144,
        "rope_theta": 50000.0,
        "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096},
    }
}
LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (LLAMA, {"heads": 32, "kv_heads": 8, "head_dim": 128, "rope_theta": 500000.0, "rope_scaling": LLAMA3}),
        (
            {
                **LLAMA,
                "rope_scaling": None,
                "rope_theta": None,
                "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500000.0},
            },
            {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
        ),
        ({**LLAMA, "head_dim": 64, "num_key_value_heads": None}, {"heads": 32, "kv_heads": 32, "head_dim": 64}),
        ({**LLAMA, "rope_scaling": None}, {"rope_theta": 500000.0, "rope_scaling": None}),
        ({**LLAMA, "rope_scaling": None, "rope_theta": None}, {"rope_theta": 10000.0}),
        (
            {
                **LLAMA,
                "rope_scaling": None,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                },
            },
            {"rope_theta": 1e6, "rope_scaling": None},
        ),
        (
            KIMI,
            {
                "hidden_size": 7168,
                "intermediate_size": 18432,
                "heads": 64,
                "kv_heads": 8,
                "head_dim": 128,
                "rope_theta": 50000.0,
                "rope_scaling": None,
                "vocabulary_size": 163840,
            },
        ),
    ],
    ids=[
        "llama",
        "transformers 5 spelling",
        "own head_dim, no groups",
        "no scaling",
        "no base",
        "by layer type",
        "kimi",
    ],
)
def test_a_draft_has_the_shape_that_its_target_suggests(target: dict[str, Any], expected: dict[str, Any]) -> None:
    made = draft_config(target, layers=[1, 2, 3], draft_vocabulary_size=32000)
    assert {name: getattr(made, name) for name in expected} == expected
    assert made.layers == [1, 2, 3]
    assert made.draft_vocabulary_size == 32000


def test_a_deeper_draft_of_eagle_3_1_has_its_layers_and_norms() -> None:
    made = draft_config(LLAMA, layers=[1, 2, 3], draft_vocabulary_size=64, depth=3, newer=True)
    plain = draft_config(LLAMA, layers=[1, 2, 3], draft_vocabulary_size=64)
    assert made == plain.model_copy(update={"depth": 3, "fc_norm": True, "norm_output": True})
    with torch.device("meta"):
        names = set(Draft(made).state_dict()) - set(Draft(plain).state_dict())
    assert {name for name in names if name.startswith("fc_norm")} == {f"fc_norm.{i}.weight" for i in range(3)}
    assert {name.split(".")[1] for name in names if name.startswith("layers")} == {"1", "2"}


def test_a_latent_draft_has_its_targets_sizes() -> None:
    ranks = {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    target = {"text_config": {**KIMI["text_config"], **ranks}}
    made = draft_config(target, layers=[1, 2, 3], draft_vocabulary_size=64, latent=True)
    assert made.latent is not None
    assert made.latent.model_dump() == ranks | {"rope_interleave": True}
    assert (made.heads, made.kv_heads, made.head_dim, made.rotary_dim) == (64, 64, 192, 64)


LATENT_KIMI = {**KIMI["text_config"], **dict.fromkeys(LATENT_SIZES, 16)}


@pytest.mark.parametrize(
    ("target", "said", "told"),
    [
        (LLAMA, {"intermediate_size": ...}, "it says no intermediate_size"),
        (LLAMA, {"num_attention_heads": None}, "it says no num_attention_heads"),
        (LLAMA, {"num_key_value_heads": "eight"}, "num_key_value_heads is 'eight', not a positive number"),
        (LLAMA, {"num_attention_heads": 0}, "num_attention_heads is 0, not a positive number"),
        (LLAMA, {"head_dim": ..., "num_attention_heads": 8192}, "head_dim is 0, not a positive number"),
        (LLAMA, {"max_position_embeddings": None}, "it says no max_position_embeddings"),
        (LLAMA, {"rms_norm_eps": [1e-6]}, "rms_norm_eps is [1e-06], not a positive number"),
        (LLAMA, {"rope_scaling": {**LLAMA3_ROPE, "factor": None}}, "its rope says no factor"),
        (LLAMA, {"rope_scaling": {**LLAMA3_ROPE, "factor": "large"}}, "its rope's factor is 'large'"),
        (LLAMA, {"rope_scaling": "llama3"}, "its rope_scaling or rope_parameters is not an object"),
        (LATENT_KIMI, {"q_lora_rank": None}, "it says no q_lora_rank"),
        (LATENT_KIMI, {"num_attention_heads": ...}, "it says no num_attention_heads"),
    ],
)
def test_what_a_draft_is_made_of_and_its_target_does_not_say_is_named(
    target: dict[str, Any], said: dict[str, Any], told: str
) -> None:
    config = {name: value for name, value in {**target, **said}.items() if value is not ...}
    with pytest.raises(StageError) as raised:
        draft_config(config, layers=[1], draft_vocabulary_size=64, latent=target is LATENT_KIMI)
    assert raised.value.reason == Reason.TARGET_UNSUPPORTED
    assert f"and {told}. " in raised.value.message
    assert ("draft.attention to Heads" in raised.value.message) == (target is LATENT_KIMI)


def test_a_draft_of_a_target_that_does_not_say_its_positions_has_those_that_are_served() -> None:
    silent = {**LLAMA, "max_position_embeddings": None}
    sizes = [
        draft_config(target, layers=[1], draft_vocabulary_size=64, context_length=4096) for target in (silent, LLAMA)
    ]
    assert [one.max_position_embeddings for one in sizes] == [4096, 131072]
