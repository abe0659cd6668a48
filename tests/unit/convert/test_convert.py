"""What SGLang gets is the draft that was trained, or nothing."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig

from eagle3_api.artifacts import CONFIG, DATA, HELD_OUT, PROMPTS, PROVENANCE, REPORT, VOCABULARY, WEIGHTS
from eagle3_api.checkpoints import Folder, Form, read_form
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertResult, DataConfig, ExitCode, StageName
from eagle3_draft.convert import run
from eagle3_draft.convert.provenance import Origin, read_origins
from eagle3_draft.convert.sglang_config import checkpoint_config
from eagle3_draft.convert.source import Adopted
from eagle3_draft.convert.trained import trained_form
from eagle3_draft.errors import StageError
from eagle3_draft.files import file_digest
from eagle3_draft.inspect.checkpoint import checkpoint_digest
from eagle3_draft.model.config import LinearScaling, Llama3Scaling, Scaling, YarnScaling, config_of, draft_config
from eagle3_draft.model.target import Target
from eagle3_draft.storage import artifacts
from unit.convert import drafts
from unit.train import corpus


def test_the_weights_are_the_trainers_under_sglangs_names(
    made: drafts.Made, converted: tuple[Path, ConvertResult]
) -> None:
    tensors = load_file(converted[0] / WEIGHTS)
    trained = load_file(made.trained / WEIGHTS) | load_file(made.trained / VOCABULARY)
    assert tensors.keys() == trained.keys()
    assert all(torch.equal(tensors[name], trained[name]) for name in trained)
    assert tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].dtype == torch.bool
    assert {name for name in tensors if name.startswith("midlayer.")} >= {"midlayer.self_attn.q_proj.weight"}


def test_the_configuration_says_all_that_sglang_reads(converted: tuple[Path, ConvertResult]) -> None:
    config = json.loads((converted[0] / CONFIG).read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == corpus.LAYERS
    assert config["draft_vocab_size"] == drafts.DRAFT_VOCABULARY
    assert config["tie_word_embeddings"] is False
    assert config["dtype"] == config["torch_dtype"] == "float32"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert None not in config.values()
    assert "target_hidden_size" not in config


def test_the_report_says_what_was_made(made: drafts.Made, converted: tuple[Path, ConvertResult]) -> None:
    folder, result = converted
    assert result.digest == checkpoint_digest(folder)
    assert result.parity_error == 0.0
    assert result.layers == result.capture_ids == corpus.LAYERS
    assert result.expected_accept_lengths == [1.5, 1.75]
    assert result.prompts == 2
    assert (folder / PROMPTS).read_bytes() == (made.trained / PROMPTS).read_bytes()
    assert result.prompts_digest == file_digest(folder / PROMPTS)
    assert result.warnings == []
    assert artifacts.finished(folder, drafts.KEY) is not None
    assert run(drafts.convert_config(made, folder, trained="gone")) == result


def test_the_provenance_names_what_was_made_from_what(made: drafts.Made, converted: tuple[Path, ConvertResult]) -> None:
    folder, _ = converted
    said = json.loads((folder / PROVENANCE).read_text())
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://slsa.dev/provenance/v1"
    times = [said["predicate"]["runDetails"]["metadata"][name] for name in ("startedOn", "finishedOn")]
    assert times == sorted(times)
    assert all(datetime.strptime(time, "%Y-%m-%dT%H:%M:%SZ") for time in times)
    assert {subject["name"]: subject["digest"]["sha256"] for subject in said["subject"]} == {
        name: file_digest(folder / name) for name in (WEIGHTS, CONFIG)
    }
    target, trained, data = said["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert target["digest"] == {"eagle3Digest": drafts.convert_config(made, folder).target_digest}
    assert trained["digest"] == {"eagle3Key": drafts.TRAINED_KEY}
    command = hashlib.sha256(json.dumps(drafts.TRAINER).encode()).hexdigest()
    assert trained["annotations"]["learnedBy"] == {"epochs": 3, "trainer": {"program": "train", "sha256": command}}
    assert "api-key" not in json.dumps(said)
    assert trained["annotations"]["run"] == {"torch": torch.__version__, "extraction.sglang": "0.5.21"}
    assert data["digest"] == {"sha256": drafts.DATA_DIGEST}
    assert data["annotations"] == {"maxLength": "256"}
    assert said["predicate"]["runDetails"]["builder"]["version"]["sglang"] == "0.5.21"
    manifest = artifacts.read(folder)
    assert PROVENANCE in {file.path for file in manifest.files}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda held_out, _: held_out.pop("top_tokens"), "held_out.safetensors has no top_tokens"),
        (lambda _, numbers: numbers.pop("expectedAcceptLengths"), "expectedAcceptLengths: Field required"),
    ],
    ids=["its held-out sample says what the target said otherwise", "its numbers are others"],
)
def test_a_draft_that_another_version_trained_is_told_as_such_with_the_way_to_train_it_anew(
    made: drafts.Made, tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object], words: str
) -> None:
    older = drafts.copy(made, tmp_path / "older").trained
    manifest = artifacts.read(older)
    held_out, numbers = load_file(older / HELD_OUT), dict(manifest.numbers)
    change(held_out, numbers)
    save_file(held_out, older / HELD_OUT)
    artifacts.publish(
        older, stage="train", key=manifest.key, made_from=manifest.made_from, numbers=numbers, provenance={}
    )
    with pytest.raises(StageError, match=re.escape(words)) as no:
        run(drafts.convert_config(made, tmp_path / "out", trained=str(older)))
    assert (no.value.code, no.value.reason) == (ExitCode.BAD_INPUT, Reason.CORRUPT_ARTIFACT)
    assert "made by another version" in no.value.message
    assert no.value.retry is StageName.TRAIN


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_draft_is_rounded_to_its_targets_type_and_still_the_same_draft(tmp_path: Path, dtype: torch.dtype) -> None:
    """SGLang multiplies the target's states by the draft's weights as they are: of two types it ended while it started."""
    made = drafts.make(tmp_path, dtype)
    result = run(drafts.convert_config(made, tmp_path / "out", arguments=[]))
    tensors = load_file(tmp_path / "out" / WEIGHTS)
    assert tensors["fc.weight"].dtype == dtype
    assert json.loads((tmp_path / "out" / CONFIG).read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert result.parity_error is not None
    assert 0 < result.parity_error < 0.1


def test_a_longer_served_context_is_written_into_the_configuration(made: drafts.Made, tmp_path: Path) -> None:
    run(drafts.convert_config(made, tmp_path / "out", context_length=4096))
    assert json.loads((tmp_path / "out" / CONFIG).read_text())["max_position_embeddings"] == 4096


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
        LinearScaling(rope_type="linear", factor=2.0),
        YarnScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=8.0),
    ],
    ids=["default", "llama3", "linear", "yarn"],
)
def test_both_spellings_of_the_rope_mean_the_same_to_transformers(
    made: drafts.Made, tmp_path: Path, scaling: Scaling | None
) -> None:
    sizes = draft_config(
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "vocab_size": 100,
            "max_position_embeddings": 128,
            "rope_theta": 5e5,
        },
        layers=[0, 1],
        draft_vocabulary_size=64,
    ).model_copy(update={"rope_scaling": scaling})
    form = trained_form(made.trained, sizes)
    config = checkpoint_config(form, capture_ids=[0, 1], context_length=128, dtype="float32", tokens={})
    assert LlamaConfig(**config).rope_parameters == config["rope_parameters"]
    old = {name: value for name, value in config.items() if name != "rope_parameters"}
    assert LlamaConfig(**old).rope_parameters == config["rope_parameters"]
    for spelt in (config, old):
        assert config_of(read_form(Folder(tmp_path, spelt, (), form.tensors, {}, "safetensors")), [0, 1]) == sizes


#: Kinds by which SGLang turns texts of the length that an adopted draft is asked about otherwise than this product's own forward.
ONLY_SGLANGS: list[dict[str, object]] = [
    {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "deepseek_yarn", "factor": 4.0, "original_max_position_embeddings": 64},
]


@pytest.mark.parametrize("rope", ONLY_SGLANGS, ids=lambda rope: rope["rope_type"])
def test_a_rope_that_only_sglang_knows_goes_along_as_it_is_and_is_left_to_the_probe(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path, rope: dict[str, object]
) -> None:
    rope = rope | {"rope_theta": 1e4}

    def turned(config: dict[str, Any], _: dict[str, Tensor]) -> None:
        config["rope_parameters"] = rope

    def not_asked(_: object) -> NoReturn:
        raise AssertionError("the target was started for nothing")

    checkpoint = drafts.with_fault(converted[0], tmp_path / "published", turned)
    run(drafts.adopt_config(made, tmp_path / "out", checkpoint), load=not_asked)
    config = json.loads((tmp_path / "out" / CONFIG).read_text())
    assert config["rope_parameters"] == rope
    assert config["rope_scaling"] | {"rope_theta": 1e4} == rope
    checks = json.loads((tmp_path / "out" / REPORT).read_text())["checks"]
    (said,) = [check["message"] for check in checks if check["rule"] == "agreement"]
    assert f"of type {rope['rope_type']}" in said
    assert "left to the probe" in said


# ------------------------------------------------------------------------------------------------- refused: trained


def test_a_draft_trained_on_other_layers_than_are_served_is_refused(made: drafts.Made, tmp_path: Path) -> None:
    with pytest.raises(
        StageError, match=r"trained on the outputs of layers \[0, 1, 2\].*capture \[0, 1\] \(1, 2"
    ) as no:
        run(drafts.convert_config(made, tmp_path / "out", layers=[0, 1]))
    assert no.value.reason == Reason.FEATURE_MISMATCH
    assert no.value.code == ExitCode.REFUSED


def test_layers_that_this_sglang_cannot_capture_are_refused(made: drafts.Made, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="embedding") as no:
        run(drafts.convert_config(made, tmp_path / "out", layers=[-1, 1, 2]))
    assert no.value.reason == Reason.LAYER_CONVENTION


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"trained_key": "00" * 32}, Reason.FEATURE_MISMATCH), ({"target_digest": "00" * 32}, Reason.TARGET_UNREADABLE)],
)
def test_another_objects_draft_is_refused(
    made: drafts.Made, tmp_path: Path, changes: dict[str, Any], reason: Reason
) -> None:
    with pytest.raises(StageError) as no:
        run(drafts.convert_config(made, tmp_path / "out", **changes))
    assert no.value.reason == reason


def test_weights_that_were_changed_after_training_are_noticed(made: drafts.Made, tmp_path: Path) -> None:
    spoiled = drafts.copy(made, tmp_path / "trained")
    tensors = load_file(spoiled.trained / WEIGHTS)
    tensors["fc.weight"] += 1
    save_file(tensors, spoiled.trained / WEIGHTS)
    with pytest.raises(StageError) as no:
        run(drafts.convert_config(spoiled, tmp_path / "out"))
    assert no.value.reason == Reason.CORRUPT_ARTIFACT


def test_a_trained_draft_whose_accuracy_is_not_what_its_trainer_said_is_refused(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path
) -> None:
    """Row 20: accuracies of a training that measured another draft, or other features."""
    spoiled = drafts.copy(made, tmp_path / "trained")
    drafts.say(spoiled.trained, accuracy=[0.9, 0.9])
    with pytest.raises(StageError, match=r"of the trained one they were in 90\.0%") as no:
        run(drafts.convert_config(spoiled, tmp_path / "out"))
    assert (no.value.code, no.value.reason) == (ExitCode.REFUSED, Reason.PARITY_MISMATCH)
    assert artifacts.finished(tmp_path / "out", drafts.KEY) is None
    checks = json.loads((converted[0] / REPORT).read_text())["checks"]
    (said,) = [check for check in checks if check["rule"] == "accuracy"]
    assert said["verdict"] == "ok"
    assert "over 2 steps they are at most 0.0% apart" in said["message"]


def test_a_conversion_that_mixes_up_tensors_is_noticed_injected(
    made: drafts.Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = import_module("eagle3_draft.convert.emit")
    sources_of = writer.sources_of

    def swapped(form: Form, target: Target) -> dict[str, Any]:
        sources, others = sources_of(form, target), {"gate_proj": "up_proj", "up_proj": "gate_proj"}
        return {
            re.sub("gate_proj|up_proj", lambda found: others[found.group()], name): one for name, one in sources.items()
        }

    monkeypatch.setattr(writer, "sources_of", swapped)
    with pytest.raises(StageError, match="not the trained one") as no:
        run(drafts.convert_config(made, tmp_path / "out"))
    assert no.value.reason == Reason.PARITY_MISMATCH
    assert artifacts.finished(tmp_path / "out", drafts.KEY) is None


# ------------------------------------------------------------------------------------------------- adopted


def test_the_provenance_names_what_was_fetched_by_where_it_is_elsewhere(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path
) -> None:
    target, draft, data = tmp_path / "target", tmp_path / "draft", tmp_path / "data"
    shutil.copytree(made.target, target)
    data.mkdir()
    (data / DATA).write_text('{"messages": []}\n')
    draft.mkdir()
    for name in (CONFIG, WEIGHTS):
        shutil.copy(converted[0] / name, draft / name)
    address = f"s3://drafts/kimi/sha256-{'5e' * 32}"
    for folder, made_from in (
        (target, {"repository": "model/acme/tiny", "commit": "a1" * 20}),
        (data, {"repository": "dataset/acme/talk", "commit": "b2" * 20}),
        (draft, {"address": address, "draft": "d", "target": "t"}),
    ):
        artifacts.publish(folder, stage="fetch", key="k", made_from=made_from, numbers={}, provenance={})
    fetched = drafts.Made(target, made.trained)
    read = DataConfig(conversations=str(data / DATA), max_samples=1, max_length=64, holdout=0.5)
    assert read_origins(drafts.adopt_config(fetched, tmp_path / "out", draft, data=read)) == {
        str(target): Origin(f"hf://acme/tiny@{'a1' * 20}", {"gitCommit": "a1" * 20}),
        str(data / DATA): Origin(f"hf://datasets/acme/talk@{'b2' * 20}", {"gitCommit": "b2" * 20}),
        str(draft): Origin(address, {"sha256": "5e" * 32}),
    }
    drafts.adopt(fetched, tmp_path / "out", draft)
    said = json.loads((tmp_path / "out" / PROVENANCE).read_text())["predicate"]["buildDefinition"]
    assert [dependency["uri"] for dependency in said["resolvedDependencies"]] == [
        f"hf://acme/tiny@{'a1' * 20}",
        address,
    ]
    assert said["resolvedDependencies"][0]["digest"].keys() == {"eagle3Digest", "gitCommit"}


def test_our_own_output_is_adopted_unchanged(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path
) -> None:
    folder, before = converted
    result = drafts.adopt(made, tmp_path / "out", folder, checkpoint_digest=before.digest)
    assert result.digest == before.digest
    said = json.loads((tmp_path / "out" / PROVENANCE).read_text())["predicate"]["buildDefinition"]
    assert said["resolvedDependencies"][1]["digest"] == {"eagle3Digest": before.digest}
    assert result.expected_accept_lengths is None
    assert result.parity_error is None
    # Without data the built-in questions are asked, rendered for this target
    assert result.prompts == 32
    lines = [json.loads(line) for line in (tmp_path / "out" / PROMPTS).read_text().splitlines()]
    assert lines[0]["messages"][0]["role"] == "user"
    assert lines[0]["input_ids"][-1] == 9


def test_an_adopted_draft_is_probed_with_held_out_conversations_where_there_are_any(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path
) -> None:
    turns = [
        [{"role": "user", "content": f"w{i} w{i + 1}"}, {"role": "assistant", "content": f"w{i + 2}"}]
        for i in range(3, 43)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    data = DataConfig(conversations=str(tmp_path / "data.jsonl"), max_length=64, holdout=0.25)
    result = drafts.adopt(made, tmp_path / "out", converted[0], data=data)
    assert 1 <= result.prompts < 40


def test_a_draft_whose_fc_is_scrambled_passes_every_rule_and_must_be_asked(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path
) -> None:
    def scramble(_: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"] = tensors["fc.weight"].flip(1).contiguous()

    checkpoint = drafts.with_fault(converted[0], tmp_path / "scrambled", scramble)
    assert drafts.adopt(made, tmp_path / "out", checkpoint).digest != converted[1].digest


def test_an_untrained_norm_is_pointed_out(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path
) -> None:
    checkpoint = drafts.with_fault(converted[0], tmp_path / "fresh", lambda _, tensors: tensors["norm.weight"].fill_(1))
    result = drafts.adopt(made, tmp_path / "out", checkpoint)
    assert result.warnings == ["norm.weight: every value is 1, as before training"]


def _renamed(tensors: dict[str, Tensor], old: str, new: str) -> None:
    for name in [name for name in tensors if name.startswith(old)]:
        tensors[name.replace(old, new)] = tensors.pop(name)


FAULTS: dict[str, tuple[drafts.Fault, Reason, str]] = {
    "row 5: other layers": (
        lambda config, _: config["eagle_config"].update(eagle_aux_hidden_state_layer_ids=[0, 1, 3]),
        Reason.FEATURE_MISMATCH,
        r"outputs of layers \[0, 1, 3\]",
    ),
    "row 7: one tensor missing": (
        lambda _, tensors: tensors.pop("midlayer.mlp.up_proj.weight"),
        Reason.CHECKPOINT_INCOMPLETE,
        "tensors missing: midlayer.mlp.up_proj.weight",
    ),
    "row 7: one tensor too many": (
        lambda _, tensors: tensors.update({"midlayer.self_attn.q_norm.weight": torch.ones(16)}),
        Reason.CHECKPOINT_INCOMPLETE,
        "drop without a word: midlayer.self_attn.q_norm.weight",
    ),
    "row 7: a wrong shape": (
        lambda _, tensors: tensors.update({"fc.weight": torch.randn(32, 64)}),
        Reason.CHECKPOINT_INCOMPLETE,
        r"fc.weight has shape \[32, 64\]",
    ),
    "row 8: no head": (
        lambda _, tensors: tensors.pop("lm_head.weight"),
        Reason.CHECKPOINT_INCOMPLETE,
        "tensors missing: lm_head.weight",
    ),
    "row 10: regenerated": (
        lambda _, tensors: tensors.update(t2d=tensors["t2d"].roll(1)),
        Reason.VOCABULARY_MAP,
        "different tokens",
    ),
    "row 10: missing": (lambda _, tensors: tensors.pop("d2t"), Reason.VOCABULARY_MAP, "d2t is missing"),
    "row 9: no vocab_size": (lambda config, _: config.pop("vocab_size"), Reason.CONFIG_INVALID, "vocab_size"),
    "row 9: of another model": (
        lambda config, _: config.update(vocab_size=corpus.VOCABULARY + 1),
        Reason.CONFIG_INVALID,
        "trained for another model",
    ),
    "row 10: ambiguous": (
        lambda _, tensors: (tensors.pop("t2d"), tensors["d2t"].copy_(torch.arange(64))),
        Reason.VOCABULARY_MAP,
        "no t2d to tell",
    ),
    "row 11: of the wrong type": (
        lambda config, _: config.update(eagle_config="0,1,2"),
        Reason.CONFIG_INVALID,
        "eagle_config is str",
    ),
    "row 11: layers of the wrong type": (
        lambda config, _: config["eagle_config"].update(eagle_aux_hidden_state_layer_ids=["0", "1", "2"]),
        Reason.CONFIG_INVALID,
        "not a list of layers",
    ),
    "row 12: context, with a rope that it would change": (
        lambda config, _: config.update(
            max_position_embeddings=64, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        ),
        Reason.CONTEXT_TOO_SHORT,
        "max_position_embeddings is 64",
    ),
    "row 11: not nested": (
        lambda config, _: config.update(config.pop("eagle_config")),
        Reason.CONFIG_INVALID,
        "eagle_config",
    ),
    "row 25: not finite": (
        lambda _, tensors: tensors["midlayer.mlp.up_proj.weight"][1].fill_(float("inf")),
        Reason.NON_FINITE,
        "midlayer.mlp.up_proj.weight",
    ),
    "never filled": (
        lambda _, tensors: tensors["midlayer.self_attn.o_proj.weight"].zero_(),
        Reason.CHECKPOINT_INCOMPLETE,
        "never filled",
    ),
    "row 36: norm_before_residual": (
        lambda config, _: config.update(norm_before_residual=True),
        Reason.UNSUPPORTED_DRAFT,
        "norm_before_residual",
    ),
    "row 36: P-EAGLE": (
        lambda config, _: config.update(parallel_drafting=True),
        Reason.UNSUPPORTED_DRAFT,
        "parallel_drafting",
    ),
    "row 36: a layer that is not there": (
        lambda config, _: config.update(num_hidden_layers=2),
        Reason.CHECKPOINT_INCOMPLETE,
        "layers.1.hidden_norm.weight",
    ),
    "row 36: another architecture": (
        lambda config, _: config.update(architectures=["MedusaModel"]),
        Reason.UNSUPPORTED_DRAFT,
        "MedusaModel",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_checkpoint_is_refused_with_its_reason(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path, name: str
) -> None:
    fault, reason, words = FAULTS[name]
    checkpoint = drafts.with_fault(converted[0], tmp_path / "faulty", fault)
    with pytest.raises(StageError, match=words) as no:
        drafts.adopt(made, tmp_path / "out", checkpoint)
    assert no.value.reason == reason
    assert no.value.code == ExitCode.REFUSED
    assert artifacts.finished(tmp_path / "out", drafts.KEY) is None


def test_a_checkpoint_that_was_changed_since_it_was_inspected_is_refused(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path
) -> None:
    with pytest.raises(StageError, match="changed since it was inspected") as no:
        drafts.adopt(made, tmp_path / "out", converted[0], checkpoint_digest="00" * 32)
    assert no.value.reason == Reason.CHECKPOINT_UNREADABLE


def test_a_checkpoint_of_no_known_digest_is_not_read_to_compare_it(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path
) -> None:
    checkpoint = drafts.with_fault(converted[0], tmp_path / "adopted", lambda *_: None)
    source = Adopted(drafts.adopt_config(made, tmp_path / "out", checkpoint), checkpoint)
    shutil.rmtree(checkpoint)
    source.check_unchanged()


def test_a_checkpoint_that_is_not_there_is_named(made: drafts.Made, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="nowhere") as no:
        drafts.adopt(made, tmp_path / "out", tmp_path / "nowhere")
    assert no.value.reason == Reason.CHECKPOINT_UNREADABLE


def test_a_file_that_was_cut_is_noticed(
    made: drafts.Made, converted: tuple[Path, ConvertResult], tmp_path: Path
) -> None:
    checkpoint = drafts.with_fault(converted[0], tmp_path / "cut", lambda *_: None)
    whole = (checkpoint / WEIGHTS).read_bytes()
    (checkpoint / WEIGHTS).write_bytes(whole[:-100])
    with pytest.raises(StageError, match="was cut") as no:
        drafts.adopt(made, tmp_path / "out", checkpoint)
    assert no.value.reason == Reason.CHECKPOINT_UNREADABLE
