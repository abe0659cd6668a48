"""What the product knows of SGLang's versions, and how layers are named there."""

import re
from typing import Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from eagle3_api.sglang import (
    EMBEDDING_SINCE,
    KNOWN_TARGETS,
    RAW_IF_LAST_IS_ALL,
    RAW_UNLESS_FIRST_IS_ONE,
    UNFIT,
    UnsupportedLayersError,
    Version,
    adaptive_config,
    adaptive_tier,
    capture_arguments,
    capture_ids,
    capture_known,
    capture_points,
    captured_layers,
    convention,
    default_layers,
    draft_attention_backend,
    flag_values,
    forward_arguments,
    log_ids,
    numeric_arguments,
    served_dtype,
    supports_target,
)
from eagle3_api.spec.object import VERSIONED_IMAGE

KIMI: Final = "KimiK25ForConditionalGeneration"
DEEPSEEK: Final = "DeepseekV3ForCausalLM"
GPT_OSS: Final = "GptOssForCausalLM"
LLAMA: Final = "LlamaForCausalLM"
OLD, NEW = Version(0, 5, 11), Version(0, 5, 23)


def captured_inputs(ids: list[int], architecture: str, version: Version) -> list[int]:
    """The layers whose *input* SGLang keeps for these configured ids, restated from its models' code.

    ``set_eagle3_layers_to_capture`` of the Llama-like models: ``[val + 1 for val in layer_ids]``; of DeepSeek's since
    0.5.16: the same only if the first is 1, else the ids as they are; of gpt-oss: the same, but if the largest is the number
    of layers.
    """
    if architecture in RAW_IF_LAST_IS_ALL:
        return list(ids) if max(ids) == 61 else [i + 1 for i in ids]
    raw = architecture in RAW_UNLESS_FIRST_IS_ONE and version >= Version(0, 5, 16)
    return list(ids) if raw and ids[0] != 1 else [i + 1 for i in ids]


@pytest.mark.parametrize(
    ("architecture", "layers", "version", "config", "log"),
    [
        (LLAMA, [2, 30, 58], NEW, [2, 30, 58], [3, 31, 59]),
        (KIMI, [2, 30, 58], NEW, [3, 31, 59], [3, 31, 59]),
        (DEEPSEEK, [2, 30, 58], NEW, [3, 31, 59], [3, 31, 59]),
        (KIMI, [2, 30, 58], OLD, [2, 30, 58], [3, 31, 59]),
        (KIMI, [1, 29, 57], NEW, [1, 29, 57], [2, 30, 58]),
        (KIMI, [-1, 2, 30], NEW, [0, 3, 31], [0, 3, 31]),
        (LLAMA, [-1, 2, 30], NEW, [-1, 2, 30], [0, 3, 31]),
        (GPT_OSS, [1, 29, 57], NEW, [1, 29, 57], [2, 30, 58]),
        (GPT_OSS, [-1, 29, 59], Version(0, 5, 21), [-1, 29, 59], [0, 30, 60]),
        (GPT_OSS, [-1, 29, 60], NEW, [0, 30, 61], [0, 30, 61]),
        (LLAMA, [2, 30, 59], NEW, [2, 30, 59], [3, 31, 60]),
        (LLAMA, [-1, 2, 30], EMBEDDING_SINCE, [-1, 2, 30], [0, 3, 31]),
    ],
)
def test_a_layer_is_named_as_each_version_and_architecture_reads_it(
    architecture: str, layers: list[int], version: Version, config: list[int], log: list[int]
) -> None:
    assert capture_ids(layers, architecture, 61, version) == config
    assert log_ids(layers) == log
    assert captured_inputs(config, architecture, version) == log


@given(
    st.sets(st.integers(-1, 60), min_size=1, max_size=8).map(sorted),
    st.sampled_from(sorted(KNOWN_TARGETS)),
    st.sampled_from([OLD, Version(0, 5, 15), Version(0, 5, 16), Version(0, 5, 21), NEW]),
)
def test_whatever_can_be_named_is_what_sglang_captures(layers: list[int], architecture: str, version: Version) -> None:
    try:
        ids = capture_ids(layers, architecture, 61, version)
    except UnsupportedLayersError:
        assume(False)
    assert captured_inputs(ids, architecture, version) == log_ids(layers)
    assert captured_layers(ids, architecture, 61, version) == layers


@pytest.mark.parametrize("architecture", [LLAMA, KIMI, GPT_OSS])
def test_of_no_ids_no_layers_are_captured(architecture: str) -> None:
    assert captured_layers([], architecture, 61, NEW) == []


@pytest.mark.parametrize(
    ("layers", "architecture", "version", "words"),
    [
        ([2, 2, 30], LLAMA, NEW, "not strictly increasing"),
        ([30, 2], LLAMA, NEW, "not strictly increasing"),
        ([2, 30, 60], LLAMA, NEW, "the last that can be taken of 61 is 59"),
        ([-2, 2], LLAMA, NEW, "-1 is the embedding's output"),
        ([-1, 2, 30], LLAMA, Version(0, 5, 21), "cannot be captured by SGLang 0.5.21 on LlamaForCausalLM; 0.5.22 can"),
        ([2, 30, 61], GPT_OSS, NEW, "the last that can be taken of 61 is 60"),
        ([2, 30, 58], GPT_OSS, Version(0, 5, 17), "not the sum over all; 0.5.21 gives the whole"),
        ([2, 30, 58], "Glm4MoeForCausalLM", Version(0, 5, 17), "not the sum over all; 0.5.21 gives the whole"),
        ([0, 2, 30], KIMI, NEW, "the output of layer 0 cannot be named; choose another first layer"),
    ],
)
def test_layers_that_cannot_be_captured_are_refused_with_the_way_out(
    layers: list[int], architecture: str, version: Version, words: str
) -> None:
    with pytest.raises(UnsupportedLayersError, match=words.replace("[", r"\[")):
        capture_ids(layers, architecture, 61, version)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(3, None), (6, None), (7, [1, 2, 3]), (8, [1, 3, 4]), (32, [1, 15, 28]), (61, [1, 29, 57]), (80, [1, 39, 76])],
)
def test_default_layers_are_those_of_the_paper(layers: int, expected: list[int] | None) -> None:
    assert default_layers(layers) == expected


@given(st.integers(7, 1000))
def test_default_layers_can_always_be_captured(layers: int) -> None:
    chosen = default_layers(layers)
    assert chosen is not None
    for architecture in (LLAMA, KIMI):
        assert capture_ids(chosen, architecture, layers, NEW) == chosen


@pytest.mark.parametrize(
    ("architecture", "arguments", "backend"),
    [
        (LLAMA, (), None),
        (LLAMA, ("--attention-backend", "trtllm_mla"), None),
        (KIMI, (), "flashinfer"),
        (KIMI, ("--attention-backend", "trtllm_mla"), "flashinfer"),
        (KIMI, ("--attention-backend=triton",), None),
        (KIMI, ("--prefill-attention-backend", "triton", "--decode-attention-backend", "flashmla"), "flashinfer"),
    ],
)
def test_a_draft_inherits_no_backend_that_knows_latent_attention_alone(
    architecture: str, arguments: tuple[str, ...], backend: str | None
) -> None:
    """Row 15."""
    assert draft_attention_backend(architecture, arguments) == backend


def test_the_convention_is_part_of_a_key_and_changes_when_sglang_changed_it() -> None:
    assert convention(LLAMA, OLD) == convention(LLAMA, NEW) == "output"
    assert convention(KIMI, Version(0, 5, 15)) == "output"
    assert convention(KIMI, Version(0, 5, 16)) == "input-unless-first-is-1"


def test_an_architecture_whose_convention_is_unknown_is_not_supported() -> None:
    assert supports_target(LLAMA)
    assert supports_target(KIMI)
    assert not supports_target("GPT2LMHeadModel")


def test_a_manifest_calls_compared_what_was_compared_in_that_release() -> None:
    assert capture_known("Qwen3MoeForCausalLM", Version(0, 5, 21)) == "compared"
    assert capture_known("Qwen3MoeForCausalLM", Version(0, 5, 17)) == "compared"
    assert capture_known(KIMI, Version(0, 5, 17)) == "compared"
    assert capture_known(KIMI, Version(0, 5, 21)) == "compared"
    assert capture_known("DeepseekV32ForCausalLM", Version(0, 5, 21)) == "read"
    assert capture_known(LLAMA, Version(0, 5, 22)) == "unknown"


def test_an_architecture_of_which_something_else_is_captured_is_not_supported() -> None:
    assert not any(map(supports_target, UNFIT))


DIGEST = "9f2c" * 16

#: Images, and the version that each one's tag says.
VERSIONED = {
    "lmsysorg/sglang:v0.5.23": Version(0, 5, 23),
    "registry.example.com:5000/sglang:v0.5.17-cu130": Version(0, 5, 17),
    "lmsysorg/sglang:v0.5.6.post2-cu129": Version(0, 5, 6, 2),
    f"lmsysorg/sglang:v0.5.23@sha256:{DIGEST}": Version(0, 5, 23),
    f"registry.example.com:5000/sglang:0.5.21-cu130@sha256:{DIGEST}": Version(0, 5, 21),
}

#: Images whose tag says none, or that have no tag.
UNVERSIONED = (
    "lmsysorg/sglang:latest",
    "lmsysorg/sglang",
    "registry.example.com:5000/sglang",
    f"lmsysorg/sglang@sha256:{DIGEST}",
    f"lmsysorg/sglang:latest@sha256:{DIGEST}",
    "registry.example.com:5000/sglang@sha256:0.5.23",
    "sglang:0.5.23:latest",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [*VERSIONED.items(), ("0.5.23", Version(0, 5, 23)), ("0.5.6post1", Version(0, 5, 6, 1))],
)
def test_the_version_is_read_from_the_images_tag(text: str, expected: Version) -> None:
    assert Version.parse(text) == expected
    assert Version.parse(str(expected)) == expected


@pytest.mark.parametrize("text", UNVERSIONED)
def test_without_a_version_the_user_is_told_to_name_it(text: str) -> None:
    with pytest.raises(ValueError, match="set sglangVersion"):
        Version.parse(text)


@pytest.mark.parametrize("image", [*VERSIONED, *UNVERSIONED])
def test_an_image_is_admitted_if_its_version_can_be_read(image: str) -> None:
    assert bool(re.search(VERSIONED_IMAGE, image)) == (image in VERSIONED)


def test_versions_are_ordered_as_numbers() -> None:
    assert Version(0, 5, 9) < Version(0, 5, 16) < Version(0, 5, 16, 1) < Version(0, 6, 0)


def test_extraction_keeps_the_servers_flags_but_not_its_caches_and_graphs() -> None:
    given = ["--dtype", "bfloat16", "--enable-hierarchical-cache", "--tokenizer-worker-num", "4", "--quantization=fp8"]
    made = capture_arguments(given)
    assert made[:3] == ["--dtype", "bfloat16", "--quantization=fp8"]
    assert "--disable-radix-cache" in made
    assert made.count("disabled") == 2
    assert capture_arguments(["--tokenizer-worker-num=4", "--page-size", "1"])[:2] == ["--page-size", "1"]


def test_an_extraction_that_answers_decodes_by_graphs_as_many_requests_as_there_are_graphs_for() -> None:
    given = ["--schedule-policy", "lpm", "--abort-on-priority-when-disabled", "--cuda-graph-config={}"]
    made = capture_arguments(given, answers=True)
    assert flag_values(made, "--cuda-graph-backend-prefill") == ["disabled"]
    assert not flag_values(made, "--cuda-graph-backend-decode")
    assert flag_values(made, "--max-running-requests") == flag_values(made, "--cuda-graph-max-bs-decode")
    assert "--enable-priority-scheduling" in made
    assert not any(word.startswith(("--schedule-policy", "--cuda-graph-config", "--abort")) for word in made)
    off = capture_arguments(["--cuda-graph-backend-decode", "disabled"], answers=True)
    assert flag_values(off, "--cuda-graph-backend-decode") == ["disabled"]


@pytest.mark.parametrize(
    ("arguments", "own_tokens", "token_bytes", "tokens"),
    [
        pytest.param([], 8192, 4_621, 32_768, id="a small target on a large GPU: four times"),
        pytest.param([], 2048, 4_621, 8_192, id="a small target on a small GPU: four times"),
        pytest.param([], 8192, 12_301, 16_384, id="Qwen2.5-1.5B: as many as 256 MiB hold"),
        pytest.param([], 8192, 32_781, None, id="Llama-3.1-8B: SGLang's own"),
        pytest.param([], 8192, 57_357, None, id="Kimi-K2.5: SGLang's own"),
        pytest.param([], -1, 4_621, None, id="SGLang cuts nothing"),
        pytest.param(["--chunked-prefill-size", "4096"], 4096, 4_621, None, id="a user's size"),
        pytest.param(["--max-prefill-tokens=4096"], 8192, 4_621, None, id="a user's bound"),
        pytest.param(["--mem-fraction-static", "0.9"], 8192, 4_621, None, id="a user's division of the memory"),
    ],
)
def test_an_extraction_has_forwards_as_large_as_a_small_targets_states_allow_unless_the_user_says(
    arguments: list[str], own_tokens: int, token_bytes: int, tokens: int | None
) -> None:
    added = forward_arguments(arguments, own_tokens, token_bytes)
    if tokens is None:
        assert added == []
    else:
        assert flag_values(added, "--chunked-prefill-size") == [str(tokens)]
        assert flag_values(added, "--max-prefill-tokens") == [str(tokens)]


def test_the_size_of_forwards_is_no_other_extraction() -> None:
    assert numeric_arguments(forward_arguments([], 8192, 4_621)) == []


@pytest.mark.parametrize(
    "arguments",
    [["--watchdog-timeout", "900"], ["--watchdog-timeout=900"], ["--watchdog-t", "900"], ["--watchdog=900"]],
)
def test_a_flag_is_heard_in_each_way_in_which_it_may_be_given(arguments: list[str]) -> None:
    assert flag_values(arguments, "--watchdog-timeout") == ["900"]


def test_a_flag_that_begins_otherwise_or_goes_on_is_another_one() -> None:
    assert flag_values(["--watchdog-timeouts", "900", "-w", "9", "--", "8"], "--watchdog-timeout") == []


def test_a_release_without_the_counters_is_not_extracted_with() -> None:
    with pytest.raises(ValueError, match=r"0\.5\.16"):
        capture_points(Version(0, 5, 16))


@given(st.integers(2, 32))
def test_a_server_that_adapts_has_steps_up_to_what_the_user_said_and_always_drafts(num_steps: int) -> None:
    tiers = [tier["candidate_steps"] for tier in adaptive_config(num_steps).values()]
    assert tiers[0][-1] == num_steps, "SGLang refuses a --speculative-num-steps that is no candidate"
    assert all(1 <= step <= num_steps for steps in tiers for step in steps)
    assert all(steps == sorted(set(steps)) for steps in tiers)
    assert [steps[-1] for steps in tiers] == sorted((steps[-1] for steps in tiers), reverse=True)


def test_the_more_requests_are_decoded_together_the_fewer_steps_there_are_to_choose_from() -> None:
    assert adaptive_config(6) == {
        "1": {"candidate_steps": [1, 3, 5, 6]},
        "8": {"candidate_steps": [1, 3]},
        "32": {"candidate_steps": [1]},
    }
    assert [adaptive_tier(requests) for requests in (0.2, 1, 7.9, 8, 31, 32, 400)] == [1, 1, 1, 8, 8, 32, 32]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--kv-cache-dtype", "fp8_e4m3", "--dtype=float16"], ["--dtype float16", "--kv-cache-dtype fp8_e4m3"]),
        (["--enable-fp32-lm-head", "--log-level", "info"], ["--enable-fp32-lm-head"]),
        (["--json-model-override-args", '{"a": "b=c"}'], ['--json-model-override-args {"a": "b=c"}']),
        (['--json-model-override-args={"a": "b=c"}'], ['--json-model-override-args {"a": "b=c"}']),
        (["--dtype", "half", "--dtype", "bfloat16"], ["--dtype bfloat16"]),
        (["--dtype", "auto", "--load-format=auto"], []),
        (["--attention-backend", "fa3", "--tp", "8"], []),
        (["--kv-cache-d", "fp8_e4m3", "--dty=half"], ["--dtype half", "--kv-cache-dtype fp8_e4m3"]),
        (["--quantization", "fp8"], ["--quantization fp8"]),
        (["--", "--k", "--enable"], []),
    ],
)
def test_the_flags_that_change_what_a_target_computes_are_told_from_the_others_in_one_spelling(
    arguments: list[str], expected: list[str]
) -> None:
    assert numeric_arguments(arguments) == expected


@pytest.mark.parametrize(
    ("config", "arguments", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, [], "bfloat16"),
        ({"torch_dtype": "bfloat16"}, ["--dtype", "auto"], "bfloat16"),
        ({"torch_dtype": "bfloat16"}, ["--dtype=half"], "float16"),
        ({"torch_dtype": "bfloat16"}, ["--dtype=half", "--dtype", "float"], "float32"),
        ({"torch_dtype": "bfloat16"}, ["--kv-cache-dtype", "half"], "bfloat16"),
        ({}, [], "float16"),
        ({"dtype": None, "torch_dtype": None}, [], "float16"),
        ({"torch_dtype": "float32"}, [], "float16"),
        ({"torch_dtype": "float32", "model_type": "gemma2"}, [], "bfloat16"),
        ({"text_config": {"model_type": "gemma3_text"}}, [], "bfloat16"),
        ({"dtype": "bfloat16", "text_config": {"dtype": None}}, [], "bfloat16"),
        ({"dtype": "bfloat16", "text_config": {"torch_dtype": "float16"}}, [], "float16"),
        ({"architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4"}}, [], "bfloat16"),
        ({"architectures": ["GptOssForCausalLM"]}, [], "float16"),
    ],
)
def test_the_type_that_a_target_is_served_in_follows_from_its_configuration_and_the_servers_flags(
    config: dict[str, object], arguments: list[str], dtype: str
) -> None:
    """Held against SGLang's own function in ``tests/sglang``."""
    assert served_dtype(config, arguments) == dtype
