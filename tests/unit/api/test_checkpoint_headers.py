"""Every known way in which a draft is silently useless, planted on a good one and seen in its headers (failures 5 to 12, 36)."""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_api.checkpoints import Finding, Level, Served, Target, check, read_folder, read_form, report, resolve_layers
from eagle3_api.checkpoints.form import MapKind
from eagle3_api.checkpoints.rules import RULES
from eagle3_api.checkpoints.safetensors import Tensor
from eagle3_api.checkpoints.vocabulary import understand_map
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_api.sglang import OLDEST, Version
from published import files, shapes

LLAMA = Target("LlamaForCausalLM", num_layers=64, hidden_size=256, vocabulary_size=1024)
SERVED = Served(Version(0, 5, 21), LLAMA, (2, 30, 58), 4096)
GOOD: dict[str, Any] = {
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
KEPT = [*range(0, 600, 2), *range(700, 912)]  # frequent tokens lie side by side
MAPS = {
    "d2t": struct.pack("<512q", *(token - i for i, token in enumerate(KEPT))),
    "t2d": bytes(token in set(KEPT) for token in range(1024)),
}

Tensors = dict[str, Tensor]


def draft(
    folder: Path, changes: Mapping[str, Any] | None = None, tensors: Tensors | None = None, **values: bytes
) -> Path:
    """A good draft with changes; a field that is ``...`` is left out."""
    config = {name: value for name, value in (GOOD | dict(changes or {})).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    files.write(folder / "model.safetensors", shapes.tensors(GOOD) if tensors is None else tensors, MAPS | values)
    return folder


def look(folder: Path, served: Served = SERVED) -> list[Finding]:
    """What is not simply right."""
    findings = check(read_form(read_folder(folder)), served)
    return [finding for finding in findings if finding.level is not Level.PASSED]


def test_a_good_draft_passes_every_rule(tmp_path: Path) -> None:
    findings = check(read_form(read_folder(draft(tmp_path))), SERVED)
    assert [finding.rule.id for finding in findings] == [rule.id for rule in RULES]
    assert report.worst(findings) is Level.PASSED
    assert report.exit_code(findings) == 0


def test_every_rule_says_what_it_looks_at_why_it_matters_and_how_to_mend_it() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.what
        assert rule.why
        assert rule.mend.endswith(".")


DEEPSEEK = Served(Version(0, 5, 21), replace(LLAMA, architecture="DeepseekV3ForCausalLM"), (2, 30, 58), 4096)
LATENT: dict[str, Any] = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 31, 59]},
}


def latent_tensors() -> Tensors:
    """Those of a draft with latent attention, under the names that published ones have."""
    plain = {name: tensor for name, tensor in shapes.tensors(GOOD).items() if ".self_attn." not in name}
    attention = {
        "q_a_proj": (96, 512),
        "q_a_layernorm": (96,),
        "q_b_proj": (8 * 32, 96),
        "kv_a_proj_with_mqa": (64 + 8, 512),
        "kv_a_layernorm": (64,),
        "kv_b_proj": (8 * 40, 64),
        "o_proj": (256, 8 * 16),
    }
    ours = {f"layers.0.self_attn.{name}.weight": Tensor("BF16", shape) for name, shape in attention.items()}
    return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in plain.items()} | ours


def test_a_draft_with_latent_attention_passes_for_a_target_that_has_it(tmp_path: Path) -> None:
    folder = draft(tmp_path, LATENT, latent_tensors())
    form = read_form(read_folder(folder))
    assert (form.family, form.head_dim, form.kv_heads) == ("latent attention", 32, 8)
    found = look(folder, DEEPSEEK)
    # Its layers may be meant otherwise; that warning is every draft's on such a target
    assert {finding.rule.id for finding in found} == {"layout", "layers"}
    assert report.refusal(found) is None


def test_yarn_of_latent_attention_is_the_same_by_the_name_that_sglang_gives_it(tmp_path: Path) -> None:
    yarn = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "mscale_all_dim": 1.0}
    by_sglang, elsewhere = tmp_path / "deepseek_yarn", tmp_path / "yarn"
    for folder in (by_sglang, elsewhere):
        folder.mkdir()
        draft(folder, LATENT | {"rope_parameters": yarn | {"rope_type": folder.name}}, latent_tensors())
    assert read_form(read_folder(by_sglang)).rope == read_form(read_folder(elsewhere)).rope
    found = look(by_sglang, DEEPSEEK)
    assert report.refusal(found) is None
    assert [one.message for one in found if one.level == Level.MENDED and "deepseek_yarn" in one.message]


LATENT_REFUSED: dict[str, tuple[dict[str, Any], Reason, str]] = {
    "two layers": ({"num_hidden_layers": 1}, Reason.UNSUPPORTED_DRAFT, "has one decoder layer, not 2"),
    "a norm before fc": ({"norm_before_fc": True}, Reason.UNSUPPORTED_DRAFT, "no norm_before_fc"),
    "a rope of another kind": (
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}},
        Reason.UNSUPPORTED_DRAFT,
        "'llama3', for yarn",
    ),
    "no rank": ({"q_lora_rank": None}, Reason.CONFIG_INVALID, "does not say q_lora_rank"),
    "another rank": ({"kv_lora_rank": 32}, Reason.CHECKPOINT_INCOMPLETE, "kv_b_proj.weight has shape"),
}


@pytest.mark.parametrize("name", LATENT_REFUSED)
def test_a_draft_with_latent_attention_that_sglang_would_not_serve_as_trained_is_refused(
    tmp_path: Path, name: str
) -> None:
    changes, reason, words = LATENT_REFUSED[name]
    tensors = latent_tensors()
    if name == "two layers":
        tensors |= {one.replace("layers.0.", "layers.1."): t for one, t in tensors.items() if "layers.0." in one}
    found = report.refusal(look(draft(tmp_path, LATENT | changes, tensors), DEEPSEEK))
    assert found is not None
    assert found[0] == reason
    assert words in found[1]


MODELOPTS_FIELDS = {"use_last_layernorm": True, "use_mtp_layernorm": False}
EMBEDDING = {"embed_tokens.weight": Tensor("BF16", (GOOD["vocab_size"], GOOD["hidden_size"]))}
SIGNED = {"_torchspec_version": "0.1.0"}

#: Who exported a draft with latent attention for Kimi, and what the layers 3, 31 and 59 of such a draft mean.
EXPORTED: dict[str, tuple[dict[str, Any], Tensors, bool, tuple[int, ...]]] = {
    "ModelOpt": ({}, {}, True, (3, 31, 59)),
    "TorchSpec, for vLLM": (SIGNED, EMBEDDING, True, (2, 30, 58)),
    "TorchSpec, for vLLM, before it signed": ({}, EMBEDDING, True, (2, 30, 58)),
    "TorchSpec, for SGLang": (SIGNED, EMBEDDING, False, (3, 31, 59)),
}


@pytest.mark.parametrize("exporter", EXPORTED)
def test_the_same_layers_mean_what_their_exporter_means_by_them(tmp_path: Path, exporter: str) -> None:
    changes, more, for_vllm, meant = EXPORTED[exporter]
    eagle = LATENT["eagle_config"] | MODELOPTS_FIELDS
    tensors = (
        latent_tensors() if for_vllm else {n.replace("layers.0.", "midlayer."): t for n, t in latent_tensors().items()}
    )
    folder = draft(tmp_path, LATENT | {"model_type": "kimi_k2", "eagle_config": eagle} | changes, tensors | more)
    assert resolve_layers(read_form(read_folder(folder)), replace(DEEPSEEK, layers=None)) == meant


@pytest.mark.parametrize("exporter", [{}, MODELOPTS_FIELDS], ids=["any", "ModelOpt"])
@pytest.mark.parametrize(("ids", "meant"), [([24, 50, 64], (23, 49, 63)), ([0, 31, 60], (0, 31, 60))])
def test_of_gpt_oss_layers_up_to_the_very_last_are_inputs_and_others_outputs(
    tmp_path: Path, ids: list[int], meant: tuple[int, ...], exporter: dict[str, Any]
) -> None:
    """As NVIDIA's drafts for it name them, in both ways: an output of that number there is none."""
    gpt_oss = Served(Version(0, 5, 21), replace(LLAMA, architecture="GptOssForCausalLM"), None, 4096)
    folder = draft(tmp_path, GOOD | {"eagle_config": exporter | {"eagle_aux_hidden_state_layer_ids": ids}})
    assert resolve_layers(read_form(read_folder(folder)), gpt_oss) == meant
    assert not [found for found in look(folder, gpt_oss) if found.level is Level.REFUSED]


def rope(**fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1e4} | fields}


REFUSED: dict[str, tuple[dict[str, Any], Reason, str]] = {
    "another kind": ({"architectures": ["Qwen3ForCausalLM"]}, Reason.UNSUPPORTED_DRAFT, "Qwen3ForCausalLM"),
    "P-EAGLE": ({"architectures": ["PEagleDraftModel"]}, Reason.UNSUPPORTED_DRAFT, "P-EAGLE"),
    "parallel drafting": ({"parallel_drafting": True}, Reason.UNSUPPORTED_DRAFT, "parallel_drafting is set"),
    "latent attention on a target without": (
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"]},
        Reason.UNSUPPORTED_DRAFT,
        "that of LlamaForCausalLM is not",
    ),
    "norm before residual": ({"norm_before_residual": True}, Reason.UNSUPPORTED_DRAFT, "norm_before_residual is set"),
    "layers that are not there": (
        {"num_hidden_layers": 2},
        Reason.CHECKPOINT_INCOMPLETE,
        "layers.1.hidden_norm.weight",
    ),
    "more layers than a draft has": ({"num_hidden_layers": 2**30}, Reason.UNSUPPORTED_DRAFT, "decoder layers"),
    "heads that turn in part": ({"partial_rotary_factor": 0.5}, Reason.UNSUPPORTED_DRAFT, "turn as a whole"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, Reason.UNSUPPORTED_DRAFT, "quantised"),
    "EAGLE, not EAGLE-3": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        Reason.UNSUPPORTED_DRAFT,
        "use_aux_hidden_state is false",
    ),
    "another activation": ({"hidden_act": "gelu"}, Reason.UNSUPPORTED_DRAFT, "'gelu'"),
    "no hidden_size": ({"hidden_size": None}, Reason.CONFIG_INVALID, "hidden_size"),
    "an absurd size": ({"intermediate_size": 2**60}, Reason.CONFIG_INVALID, "intermediate_size"),
    "a negative size": ({"num_attention_heads": -1}, Reason.CONFIG_INVALID, "num_attention_heads"),
    "a truth value for a size": ({"num_attention_heads": True}, Reason.CONFIG_INVALID, "num_attention_heads"),
    "heads that do not divide": ({"num_key_value_heads": 3}, Reason.CONFIG_INVALID, "not a multiple"),
    "another model's width": ({"target_hidden_size": 128}, Reason.FEATURE_MISMATCH, "states of 128 numbers"),
    "another model's vocabulary": ({"vocab_size": 1000}, Reason.CONFIG_INVALID, "the target's is 1024"),
    "other layers": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 2, 30]}},
        Reason.FEATURE_MISMATCH,
        "the object's are [2, 30, 58]",
    ),
    "layers in words": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "2,30,58"}},
        Reason.CONFIG_INVALID,
        "not a list of layers",
    ),
    "layers at the top": (
        {"eagle_config": ..., "eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
        Reason.CONFIG_INVALID,
        "top level",
    ),
    "a rope of no kind": ({"rope_parameters": "linear"}, Reason.CONFIG_INVALID, "rope_parameters"),
    "a rope of an unknown kind": (rope(rope_type="spiral"), Reason.CONFIG_INVALID, "'spiral', and SGLang refuses"),
    "longrope by its older name": (
        rope(rope_type="su", short_factor=[1.0] * 16, long_factor=[2.0] * 16),
        Reason.CONFIG_INVALID,
        "longrope was called so: write that",
    ),
    "yarn with mrope's sections": (
        rope(rope_type="yarn", factor=4.0, mrope_section=[8, 4, 4]),
        Reason.CONFIG_INVALID,
        "SGLang takes every kind that has one for default",
    ),
    "coefficients of its own": (rope(rope_type="default", use_fope=True), Reason.CONFIG_INVALID, "use_fope is set"),
    "neighbours that turn": ({"rope_is_neox_style": False}, Reason.UNSUPPORTED_DRAFT, "rope_is_neox_style is false"),
    "longrope for another head": (
        rope(rope_type="longrope", short_factor=[1.0] * 48, long_factor=[2.0] * 48),
        Reason.CONFIG_INVALID,
        "short_factor of its rotary embedding has 48 numbers, and a head of 32 has 16 pairs",
    ),
    "a rope whose kind is a list": (
        rope(rope_type=["yarn"]) | {"max_position_embeddings": 64},
        Reason.CONFIG_INVALID,
        "rope_type is ['yarn']",
    ),
    "mrope without sections": (rope(rope_type="mrope"), Reason.CONFIG_INVALID, "needs mrope_section"),
    "yarn without a factor": (rope(rope_type="yarn"), Reason.CONFIG_INVALID, "type yarn needs factor"),
    "linear without a factor": (rope(rope_type="linear"), Reason.CONFIG_INVALID, "type linear needs factor"),
    "the older spelling without a factor": (
        {"rope_parameters": ..., "rope_theta": 1e4, "rope_scaling": {"type": "dynamic"}},
        Reason.CONFIG_INVALID,
        "type dynamic needs factor",
    ),
    "llama3 without its frequencies": (
        rope(rope_type="llama3", factor=8.0),
        Reason.CONFIG_INVALID,
        "needs low_freq_factor, high_freq_factor",
    ),
    "a factor in words": (rope(rope_type="yarn", factor="x"), Reason.CONFIG_INVALID, "factor of its rotary"),
    "longrope with one factor": (
        rope(rope_type="longrope", short_factor=1.0, long_factor=[1.0]),
        Reason.CONFIG_INVALID,
        "short_factor of its rotary embedding is 1.0, not numbers",
    ),
    "a list for the part that turns": ({"partial_rotary_factor": [0.5]}, Reason.UNSUPPORTED_DRAFT, "turn as a whole"),
    "an epsilon in words": ({"rms_norm_eps": "small"}, Reason.CONFIG_INVALID, "rms_norm_eps is 'small'"),
    "a base that is a list": (rope(rope_type="default", rope_theta=[1e4]), Reason.CONFIG_INVALID, "rope_theta is ["),
    "a context that its rope depends on": (
        rope(rope_type="longrope", short_factor=[1.0] * 16, long_factor=[2.0] * 16) | {"max_position_embeddings": 2048},
        Reason.CONTEXT_TOO_SHORT,
        "is 2048, the served context 4096",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_configuration_that_would_serve_a_useless_draft_is_refused(tmp_path: Path, name: str) -> None:
    changes, reason, words = REFUSED[name]
    found = report.refusal(look(draft(tmp_path, changes)))
    assert found is not None
    assert found[0] == reason
    assert words in found[1]


MENDED: dict[str, tuple[dict[str, Any], Level, str]] = {
    "tied although it has a head": ({"tie_word_embeddings": True}, Level.MENDED, "head of its own"),
    "a null": ({"target_hidden_size": None}, Level.MENDED, "target_hidden_size is null"),
    "no draft_vocab_size": ({"draft_vocab_size": None}, Level.MENDED, "draft_vocab_size is null"),
    "another's architecture": ({"architectures": ["Eagle3LlamaForCausalLM"]}, Level.MENDED, "becomes"),
    "an epsilon in quotes": ({"rms_norm_eps": "1e-5"}, Level.MENDED, "rms_norm_eps '1e-5' becomes a number"),
    "a base in quotes": (rope(rope_type="default", rope_theta="1e6"), Level.MENDED, "rope_theta '1e6' becomes"),
    "a short context": (
        {"max_position_embeddings": 2048},
        Level.WARNING,
        "is 2048, and becomes the served context 4096",
    ),
    "no context": ({"max_position_embeddings": ...}, Level.WARNING, "is None, and becomes"),
    "YaRN's stretch in Transformers' field": (
        rope(rope_type="yarn", factor=8.0, attention_factor=1.5),
        Level.MENDED,
        "attention_factor becomes attn_factor",
    ),
    "no layers": ({"eagle_config": ...}, Level.WARNING, "the object's are taken: the outputs of [2, 30, 58]"),
    "a window": (
        {"sliding_window": 2048, "use_sliding_window": True},
        Level.WARNING,
        "--speculative-draft-window-size",
    ),
    "a window of some of a target's layers": (
        {"sliding_window": 2048, "layer_types": ["sliding_attention", "full_attention"]},
        Level.WARNING,
        "--speculative-draft-window-size 2048",
    ),
}

#: Says the same as the plain one in other words.
ALIKE: dict[str, dict[str, Any]] = {
    "a window that no layer has": {"sliding_window": 2048, "layer_types": ["full_attention"]},
    "a window that is not used": {"sliding_window": 2048, "use_sliding_window": False},
    "a rope by both names of its kind": rope(rope_type="default", type="default"),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_changes_nothing_is_not_told(tmp_path: Path, name: str) -> None:
    assert look(draft(tmp_path, ALIKE[name])) == []


@pytest.mark.parametrize("name", MENDED)
def test_what_conversion_can_mend_is_no_reason_to_refuse(tmp_path: Path, name: str) -> None:
    changes, level, words = MENDED[name]
    (finding,) = look(draft(tmp_path, changes))
    assert finding.level is level
    assert words in finding.message


def without(tensors: Tensors, name: str) -> Tensors:
    return {other: tensor for other, tensor in tensors.items() if other != name}


PLANTED: dict[str, tuple[Callable[[Tensors], Tensors], Reason, str]] = {
    "no head": (
        lambda tensors: without(tensors, "lm_head.weight"),
        Reason.CHECKPOINT_INCOMPLETE,
        "missing: lm_head.weight",
    ),
    "no q_proj": (
        lambda tensors: without(tensors, "midlayer.self_attn.q_proj.weight"),
        Reason.CHECKPOINT_INCOMPLETE,
        "missing: midlayer.self_attn.q_proj.weight",
    ),
    "a norm too many": (
        lambda tensors: tensors | {"input_norm.weight": Tensor("BF16", (768,))},
        Reason.CHECKPOINT_INCOMPLETE,
        "drop without a word: input_norm.weight",
    ),
    "a layer twice": (
        lambda tensors: tensors | {"layers.0.hidden_norm.weight": Tensor("BF16", (256,))},
        Reason.CHECKPOINT_INCOMPLETE,
        "drop without a word: midlayer.hidden_norm.weight",
    ),
    "a part of a second layer": (
        lambda tensors: tensors | {"layers.1.hidden_norm.weight": Tensor("BF16", (256,))},
        Reason.CHECKPOINT_INCOMPLETE,
        "layers.1.mlp.down_proj.weight",
    ),
    "a bias of the queries": (
        lambda tensors: tensors | {"midlayer.self_attn.q_proj.bias": Tensor("BF16", (256,))},
        Reason.CHECKPOINT_INCOMPLETE,
        "drop without a word: midlayer.self_attn.q_proj.bias",
    ),
    "one state instead of three": (
        lambda tensors: tensors | {"fc.weight": Tensor("BF16", (256, 256))},
        Reason.CHECKPOINT_INCOMPLETE,
        "fc.weight has shape [256, 256], the configuration says [256, 768]",
    ),
    "bytes for numbers": (
        lambda tensors: tensors | {"norm.weight": Tensor("I8", (256,))},
        Reason.CHECKPOINT_INCOMPLETE,
        "norm.weight is I8, not one of BF16, F16, F32",
    ),
    "no map": (
        lambda tensors: without(tensors, "d2t"),
        Reason.VOCABULARY_MAP,
        "d2t is missing although the draft knows 512 of 1024 tokens",
    ),
    "a short map": (
        lambda tensors: tensors | {"d2t": Tensor("I64", (64,))},
        Reason.VOCABULARY_MAP,
        "d2t has [64] entries",
    ),
    "a learned mask": (
        lambda tensors: tensors | {"mask_hidden": Tensor("BF16", (256,))},
        Reason.UNSUPPORTED_DRAFT,
        "P-EAGLE",
    ),
    "Medusa heads": (
        lambda tensors: tensors | {"parallel_draft_heads.0.medusa_layers.0.linear.weight": Tensor("BF16", (256, 256))},
        Reason.UNSUPPORTED_DRAFT,
        "hybrid",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_tensors_that_sglang_would_drop_or_leave_random_are_refused(tmp_path: Path, name: str) -> None:
    plant, reason, words = PLANTED[name]
    tensors = plant(shapes.tensors(GOOD))
    entries = tensors["d2t"].shape[0] if "d2t" in tensors else 0
    found = report.refusal(look(draft(tmp_path, tensors=tensors, d2t=MAPS["d2t"][: 8 * entries])))
    assert found is not None
    assert found[0] == reason
    assert words in found[1]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_tensor_can_be_missing_or_misshapen_unnoticed(tmp_path: Path, data: st.DataObject) -> None:
    tensors = shapes.tensors(GOOD)
    name = data.draw(st.sampled_from(sorted(shapes.shapes(GOOD))))
    if data.draw(st.booleans()):
        planted = without(tensors, name)
    else:
        planted = tensors | {name: Tensor("BF16", (*tensors[name].shape, 2))}
    found = report.refusal(look(draft(tmp_path, tensors=planted)))
    assert found is not None
    assert name in found[1]


def test_a_draft_may_carry_the_embedding_that_the_server_ignores(tmp_path: Path) -> None:
    tensors = shapes.tensors(GOOD) | {"embed_tokens.weight": Tensor("BF16", (1024, 256))}
    assert look(draft(tmp_path, tensors=tensors)) == []


def test_a_draft_of_the_whole_vocabulary_needs_no_map(tmp_path: Path) -> None:
    config = GOOD | {"draft_vocab_size": 1024}
    tensors = {name: Tensor("F32", shape) for name, shape in shapes.shapes(config).items()}
    assert look(draft(tmp_path, config, tensors)) == []


def test_a_draft_narrower_than_its_target_needs_an_embedding_of_its_own(tmp_path: Path) -> None:
    config = GOOD | {"hidden_size": 128, "target_hidden_size": 256, "head_dim": 16}
    found = report.refusal(look(draft(tmp_path, config, shapes.tensors(config))))
    assert found == (
        Reason.CHECKPOINT_INCOMPLETE,
        "tensors missing: embed_tokens.weight. SGLang would serve them with random values and say nothing",
    )
    whole = shapes.tensors(config) | {"embed_tokens.weight": Tensor("BF16", (1024, 128))}
    assert look(draft(tmp_path, config, whole)) == []


def test_a_draft_of_the_newer_kind_is_for_the_sglang_that_knows_it(tmp_path: Path) -> None:
    norms = {f"fc_norm.{i}.weight": Tensor("BF16", (256,)) for i in range(3)}
    newer = GOOD | {"fc_norm": True, "norm_output": True}
    (doubt,) = look(draft(tmp_path, newer, shapes.tensors(GOOD) | norms))
    assert (doubt.rule.id, doubt.level) == ("meaning", Level.WARNING)
    assert "If SpecForge trained it, write norm_output false" in doubt.message
    assert look(draft(tmp_path, newer | {"norm_output": False}, shapes.tensors(GOOD) | norms)) == []
    draft(tmp_path, newer, shapes.tensors(GOOD) | norms)
    old = Served(Version(0, 5, 11), LLAMA, (2, 30, 58), 4096)
    found = report.refusal(look(tmp_path, old))
    assert found is not None
    assert found[0] == Reason.VERSION_UNSUPPORTED
    # A norm that the configuration does not turn on is dropped
    assert report.refusal(look(draft(tmp_path, GOOD, shapes.tensors(GOOD) | norms))) is not None


@pytest.mark.parametrize("version", [Version(0, 4, 1), Version(0, 5, 11), Version(0, 5, 16)])
def test_any_draft_is_refused_for_an_sglang_that_is_older_than_the_oldest(tmp_path: Path, version: Version) -> None:
    found = report.refusal(look(draft(tmp_path), replace(SERVED, version=version)))
    assert found == (
        Reason.VERSION_UNSUPPORTED,
        f"SGLang {version} is older than 0.5.17, the oldest whose loader, flags and counters are known here",
    )
    assert look(tmp_path, replace(SERVED, version=OLDEST)) == []


def test_a_draft_of_two_layers_is_for_the_sglang_that_knows_several(tmp_path: Path) -> None:
    wide = {
        name.replace("midlayer.", "layers.1."): t for name, t in shapes.tensors(GOOD).items() if "midlayer." in name
    }
    queries = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    second = {
        name: replace(t, shape=(t.shape[0], t.shape[1] // 2)) if name.endswith(queries) else t
        for name, t in wide.items()
        if not name.endswith("input_layernorm.weight")
    }
    draft(tmp_path, {"num_hidden_layers": 2}, shapes.tensors(GOOD) | second)
    assert look(tmp_path) == []
    found = report.refusal(look(tmp_path, replace(SERVED, version=Version(0, 5, 11))))
    assert found is not None
    assert found[0] == Reason.VERSION_UNSUPPORTED
    assert "2 decoder layers are known to SGLang from 0.5.16 on; 0.5.11 refuses to start" in found[1]


# ------------------------------------------------------------------------------------------------------- layers


KIMI = Target("KimiK25ForConditionalGeneration", num_layers=61, hidden_size=256, vocabulary_size=1024)


def layers(ids: list[int]) -> dict[str, Any]:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}


def test_the_same_ids_name_other_layers_on_another_target(tmp_path: Path) -> None:
    served = Served(Version(0, 5, 21), KIMI, (2, 30, 58), 4096)
    findings = look(draft(tmp_path, layers([3, 31, 59])), served)
    assert [finding.level for finding in findings] == [Level.WARNING]
    assert "only its trainer knows" in findings[0].message
    found = report.refusal(look(draft(tmp_path, layers([2, 30, 58])), served))
    assert found is not None
    assert "reads the outputs of layers [1, 29, 57]" in found[1]


def test_layers_that_this_sglang_cannot_capture_are_refused(tmp_path: Path) -> None:
    served = Served(Version(0, 5, 17), LLAMA, (-1, 2, 30), 4096)
    found = report.refusal(look(draft(tmp_path, layers([-1, 2, 30])), served))
    assert found is not None
    assert found[0] == Reason.LAYER_CONVENTION


def test_a_draft_that_does_not_say_its_layers_takes_the_default_of_a_target_that_has_one(tmp_path: Path) -> None:
    (finding,) = look(draft(tmp_path, {"eagle_config": None}), Served(Version(0, 5, 21), LLAMA, None, 4096))
    assert "every family's default are taken: the outputs of [1, 31, 60]" in finding.message
    small = Target("LlamaForCausalLM", num_layers=4, hidden_size=256, vocabulary_size=1024)
    findings = look(tmp_path, Served(Version(0, 5, 21), small, None, 4096))
    assert ("features", Level.UNKNOWN) in [(finding.rule.id, finding.level) for finding in findings]
    found = report.refusal(findings)
    assert found is not None
    assert found[0] == Reason.LAYERS_REQUIRED
    assert "--layers" in found[1]


def test_without_a_target_the_rest_is_checked(tmp_path: Path) -> None:
    findings = look(draft(tmp_path), Served(Version(0, 5, 21)))
    assert [(finding.rule.id, finding.level) for finding in findings] == [
        ("target", Level.UNKNOWN),
        ("context", Level.UNKNOWN),
    ]
    assert report.exit_code(findings) == 0


# ------------------------------------------------------------------------------------------------------- the map


OFFSETS = [token - i for i, token in enumerate(KEPT)]


def members(ids: list[int]) -> list[int]:
    return [int(i in set(ids)) for i in range(1024)]


def test_offsets_are_understood_with_and_without_t2d() -> None:
    assert understand_map(OFFSETS, MapKind.EITHER, 1024).ids == KEPT
    assert understand_map(OFFSETS, MapKind.EITHER, 1024, members(KEPT)).ids == KEPT


def test_absolute_ids_are_told_from_offsets() -> None:
    assert understand_map(KEPT, MapKind.EITHER, 1024).ids == KEPT
    assert understand_map(KEPT, MapKind.EITHER, 1024).absolute


def test_absolute_ids_that_are_valid_offsets_too_are_told_by_t2d() -> None:
    low = [1, 4, 9, 300]
    assert understand_map(low, MapKind.EITHER, 1024, members(low)).ids == low
    assert "no t2d to tell" in understand_map(low, MapKind.EITHER, 1024).problem
    assert understand_map(low, MapKind.ABSOLUTE, 1024).ids == low
    assert understand_map(low, MapKind.OFFSETS, 1024).ids == [1, 5, 11, 303]


def test_a_map_that_was_regenerated_on_fine_tuning_is_refused() -> None:
    found = understand_map(OFFSETS, MapKind.EITHER, 1024, members([token + 1 for token in KEPT]))
    assert found.problem == "d2t and t2d name different tokens: one of them was regenerated"


@pytest.mark.parametrize("values", [[0, -1], [1023, 1023], [5, 5, 5, 2000], [-3, 4]])
def test_a_map_that_names_a_token_twice_or_none_is_refused(values: list[int]) -> None:
    assert "not a set of distinct ids below 1024" in understand_map(values, MapKind.EITHER, 1024).problem


@given(st.permutations(KEPT[:40]))
def test_rows_in_any_order_are_understood_by_their_t2d(kept: list[int]) -> None:
    offsets = [token - i for i, token in enumerate(kept)]
    assert understand_map(offsets, MapKind.EITHER, 1024, members(kept)).ids == kept
    assert understand_map(kept, MapKind.EITHER, 1024, members(kept)).ids == kept


# ------------------------------------------------------------------------------------------------------- reports


def test_the_table_names_the_worst_and_how_to_mend_it(tmp_path: Path) -> None:
    findings = check(read_form(read_folder(draft(tmp_path, {"norm_before_residual": True}))), SERVED)
    text = report.table(findings)
    assert "REFUSED  kind" in text
    assert "kind: SGLang serves other kinds as if they were EAGLE-3" in text
    assert report.exit_code(findings) == ExitCode.REFUSED
    first = report.to_json(findings)[0]
    assert first["rule"] == "kind"
    assert first["verdict"] == "refused"
    assert first["reason"] == "UnsupportedDraft"
    assert all(first[name] for name in ("what", "why", "mend"))


def test_warnings_have_an_exit_code_of_their_own(tmp_path: Path) -> None:
    assert report.exit_code(look(draft(tmp_path, {"eagle_config": None}))) == 1


def test_numbers_in_quotes_are_read_as_the_numbers_that_they_are(tmp_path: Path) -> None:
    quoted = {"rms_norm_eps": "1e-5", "rope_parameters": ..., "rope_theta": "5e5"}
    form = read_form(read_folder(draft(tmp_path, quoted)))
    assert (form.rms_norm_eps, form.rope["rope_theta"]) == (1e-5, 5e5)


ROPES_OF_SGLANG: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "yarn", "factor": 4, "mscale": 1.0, "mscale_all_dim": 0, "original_max_position_embeddings": 4096},
    {"rope_type": "mrope", "mrope_section": [8, 4, 4]},
    {"rope_type": "default", "mrope_section": [8, 4, 4]},
    {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "dynamic", "alpha": 1000.0},
    {"rope_type": "deepseek_yarn", "factor": 4.0},
    {"rope_type": "proportional"},
]


def test_the_kind_of_a_rope_is_written_by_one_name(tmp_path: Path) -> None:
    form = read_form(read_folder(draft(tmp_path, rope(rope_type="linear", type="linear", factor=2.0))))
    assert form.rope == {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize("fields", ROPES_OF_SGLANG)
def test_a_rope_that_says_what_its_kind_needs_passes(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert look(draft(tmp_path, rope(**fields))) == []


def test_where_the_unscaled_positions_stand_beside_the_rope_they_count_as_sglang_counts_them(tmp_path: Path) -> None:
    phi = rope(rope_type="longrope", short_factor=[1.0] * 16, long_factor=[2.0] * 16)
    form = read_form(read_folder(draft(tmp_path, phi | {"original_max_position_embeddings": 1024})))
    assert form.rope["original_max_position_embeddings"] == 1024
