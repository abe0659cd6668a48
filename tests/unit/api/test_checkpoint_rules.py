"""Every known way in which a draft checkpoint is silently useless, planted on a good one (failures 5, 7 to 12, 36)."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.checkpoint_rules import (
    Target,
    Tensor,
    check_config,
    check_tensors,
    check_vocabulary_map,
    expected_tensors,
)
from eagle3_api.conditions import Reason

TARGET = Target(hidden_size=256, vocabulary_size=1024, capture_ids=(2, 30, 58), context_length=4096)


def good_config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 1024,
        "draft_vocab_size": 512,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
    }


def good_tensors() -> dict[str, Tensor]:
    tensors = {name: Tensor("BF16", shape) for name, shape in expected_tensors(good_config()).items()}
    return tensors | {"d2t": Tensor("I64", (512,)), "t2d": Tensor("BOOL", (1024,))}


def test_a_good_checkpoint_has_no_findings() -> None:
    assert check_config(good_config(), TARGET) == []
    assert check_tensors(good_config(), good_tensors(), TARGET) == []
    assert check_vocabulary_map([0] * 256 + [512] * 256, TARGET) == []


def test_a_draft_may_carry_the_embedding_that_the_server_ignores() -> None:
    tensors = good_tensors() | {"embed_tokens.weight": Tensor("BF16", (1024, 256))}
    assert check_tensors(good_config(), tensors, TARGET) == []


def test_a_draft_of_the_whole_vocabulary_needs_no_map() -> None:
    config = good_config() | {"draft_vocab_size": 1024}
    tensors = {name: Tensor("F32", shape) for name, shape in expected_tensors(config).items()}
    assert check_tensors(config, tensors, TARGET) == []


def test_a_draft_wider_than_its_target_is_read_with_the_targets_width() -> None:
    config = good_config() | {"hidden_size": 128, "target_hidden_size": 256, "head_dim": 16}
    assert expected_tensors(config)["fc.weight"] == (128, 3 * 256)
    assert check_config(config, TARGET) == []


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"tie_word_embeddings": True}, Reason.CONFIG_INVALID, "tie_word_embeddings must be false"),
        ({"tie_word_embeddings": ...}, Reason.CONFIG_INVALID, "tie_word_embeddings must be false"),
        ({"target_hidden_size": None}, Reason.CONFIG_INVALID, "target_hidden_size is null"),
        ({"draft_vocab_size": ...}, Reason.CONFIG_INVALID, "draft_vocab_size is None, not a positive number"),
        ({"num_attention_heads": 0}, Reason.CONFIG_INVALID, "num_attention_heads is 0, not a positive number"),
        ({"vocab_size": 512}, Reason.CONFIG_INVALID, "vocab_size is 512, the target's is 1024"),
        ({"rope_parameters": ...}, Reason.CONFIG_INVALID, "rope_parameters is missing"),
        ({"eagle_config": ...}, Reason.CONFIG_INVALID, "silently capture its default layers"),
        ({"eagle_config": "2,30,58"}, Reason.CONFIG_INVALID, "silently capture its default layers"),
        (
            {"eagle_config": ..., "eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
            Reason.CONFIG_INVALID,
            "missing or no list of numbers",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "2, 30, 58"}},
            Reason.CONFIG_INVALID,
            "missing or no list of numbers",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 2, 30]}},
            Reason.FEATURE_MISMATCH,
            "config.json makes SGLang capture [-1, 2, 30]; the object's layers are [2, 30, 58] in the same notation",
        ),
        ({"hidden_size": 128}, Reason.FEATURE_MISMATCH, "the draft reads states of 128 numbers, the target's have 256"),
        ({"max_position_embeddings": 2048}, Reason.CONTEXT_TOO_SHORT, "is 2048, the served context 4096"),
        ({"max_position_embeddings": ...}, Reason.CONTEXT_TOO_SHORT, "is None, the served context 4096"),
        ({"architectures": ["PEagleDraftModel"]}, Reason.UNSUPPORTED_DRAFT, "architectures is ['PEagleDraftModel']"),
        ({"num_hidden_layers": 4}, Reason.UNSUPPORTED_DRAFT, "num_hidden_layers is 4; an EAGLE-3 draft has one layer"),
        ({"norm_before_residual": True}, Reason.UNSUPPORTED_DRAFT, "norm_before_residual is set"),
        ({"parallel_drafting": True}, Reason.UNSUPPORTED_DRAFT, "parallel_drafting is set"),
    ],
)
def test_a_config_that_would_serve_a_useless_draft_is_refused(
    changes: dict[str, Any], reason: Reason, words: str
) -> None:
    config = {name: value for name, value in (good_config() | changes).items() if value is not ...}
    (finding,) = check_config(config, TARGET)
    assert finding.reason == reason
    assert words in finding.message


def renamed(tensors: dict[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


def without(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {other: tensor for other, tensor in tensors.items() if other != name}


@pytest.mark.parametrize(
    ("plant", "reason", "words"),
    [
        (
            lambda tensors: renamed(tensors, "midlayer.", "layers.0."),
            Reason.CHECKPOINT_INCOMPLETE,
            ["tensors missing: midlayer.hidden_norm.weight", "drop without a word: layers.0.hidden_norm.weight"],
        ),
        (lambda tensors: without(tensors, "lm_head.weight"), Reason.CHECKPOINT_INCOMPLETE, ["missing: lm_head.weight"]),
        (
            lambda tensors: without(tensors, "midlayer.self_attn.q_proj.weight"),
            Reason.CHECKPOINT_INCOMPLETE,
            ["missing: midlayer.self_attn.q_proj.weight"],
        ),
        (
            lambda tensors: tensors | {"input_norm.weight": Tensor("BF16", (256,))},
            Reason.CHECKPOINT_INCOMPLETE,
            ["drop without a word: input_norm.weight"],
        ),
        (
            lambda tensors: tensors | {"fc.weight": Tensor("BF16", (256, 256))},
            Reason.CHECKPOINT_INCOMPLETE,
            ["fc.weight has shape [256, 256], the configuration says [256, 768]"],
        ),
        (
            lambda tensors: tensors | {"norm.weight": Tensor("I8", (256,))},
            Reason.CHECKPOINT_INCOMPLETE,
            ["norm.weight is I8, not one of BF16, F16, F32"],
        ),
        (
            lambda tensors: without(tensors, "d2t"),
            Reason.VOCABULARY_MAP,
            ["d2t is missing although the draft knows 512 of 1024 tokens"],
        ),
        (
            lambda tensors: tensors | {"d2t": Tensor("I32", (512,))},
            Reason.VOCABULARY_MAP,
            ["d2t is I32 [512], not I64 [512]"],
        ),
    ],
)
def test_tensors_that_sglang_would_drop_or_leave_random_are_refused(
    plant: Callable[[dict[str, Tensor]], dict[str, Tensor]], reason: Reason, words: list[str]
) -> None:
    findings = check_tensors(good_config(), plant(good_tensors()), TARGET)
    assert [finding.reason for finding in findings] == [reason] * len(words)
    for finding, expected in zip(findings, words, strict=True):
        assert expected in finding.message


@given(st.data())
def test_no_tensor_can_be_missing_or_misshapen_unnoticed(data: st.DataObject) -> None:
    tensors = good_tensors()
    name = data.draw(st.sampled_from(sorted(expected_tensors(good_config()))))
    if data.draw(st.booleans()):
        planted = without(tensors, name)
    else:
        planted = tensors | {name: Tensor("BF16", (*tensors[name].shape, 2))}
    (finding,) = check_tensors(good_config(), planted, TARGET)
    assert name in finding.message


def in_vocabulary(ids: list[int]) -> list[bool]:
    return [i in set(ids) for i in range(TARGET.vocabulary_size)]


KEPT = [*range(0, 600, 2), *range(700, 900)]  # frequent tokens lie side by side
OFFSETS = [token - i for i, token in enumerate(KEPT)]


def test_offsets_are_accepted_with_and_without_t2d() -> None:
    assert check_vocabulary_map(OFFSETS, TARGET) == []
    assert check_vocabulary_map(OFFSETS, TARGET, in_vocabulary(KEPT)) == []


def test_absolute_ids_in_d2t_are_refused_with_how_to_store_them() -> None:
    (finding,) = check_vocabulary_map(KEPT, TARGET)
    assert finding.reason == Reason.VOCABULARY_MAP
    assert "not a set of distinct ids below 1024; as absolute ids it is valid: store d2t[i] - i" in finding.message


def test_absolute_ids_that_are_valid_offsets_too_are_told_by_t2d() -> None:
    low = [1, 4, 9, 300]
    (finding,) = check_vocabulary_map(low, TARGET, in_vocabulary(low))
    assert finding.message == "d2t and t2d name different tokens; as absolute ids it is valid: store d2t[i] - i"


def test_a_map_that_both_readings_accept_is_refused_when_nothing_tells_which_it_is() -> None:
    (finding,) = check_vocabulary_map([1, 4, 9, 300], TARGET)
    assert "can be read as offsets and as absolute ids" in finding.message


def test_a_map_that_was_regenerated_on_fine_tuning_is_refused() -> None:
    (finding,) = check_vocabulary_map(OFFSETS, TARGET, in_vocabulary([token + 1 for token in KEPT]))
    assert finding.message == "d2t and t2d name different tokens: one of them was regenerated"


@given(st.sets(st.integers(0, 1023), min_size=1).map(sorted))
def test_every_vocabulary_stored_as_offsets_beside_its_t2d_is_accepted(kept: list[int]) -> None:
    offsets = [token - i for i, token in enumerate(kept)]
    assert check_vocabulary_map(offsets, TARGET, in_vocabulary(kept)) == []
