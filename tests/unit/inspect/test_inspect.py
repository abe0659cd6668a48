"""Everything that is wrong with target, data, checkpoint or volume is named before a GPU is spent."""

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from eagle3_api.checkpoints.form import LATENT_SIZES
from eagle3_api.checkpoints.safetensors import Tensor
from eagle3_api.conditions import Reason
from eagle3_api.jobs import (
    DataConfig,
    ExitCode,
    Facts,
    Fetched,
    FetchResult,
    InspectConfig,
    ObjectReference,
    Report,
    StageName,
)
from eagle3_api.spec import Regenerate
from eagle3_draft.data.inputs import extraction_inputs, inherited
from eagle3_draft.errors import StageError
from eagle3_draft.inspect import run
from eagle3_draft.inspect.data import read_data
from eagle3_draft.inspect.storage import Wanted, check_space
from eagle3_draft.inspect.target import target_facts
from eagle3_draft.storage import artifacts
from published import files
from published.shapes import shapes
from unit.data.test_rendering import CHATML

#: It asks what day it is.
TEMPLATE = "{{ strftime_now('') }}" + CHATML
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
LATENT = dict.fromkeys(LATENT_SIZES, 16)
DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "draft_vocab_size": 320,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28], "use_aux_hidden_state": True},
}


def safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """A safetensors file of zeros."""
    files.write(path, {name: Tensor(dtype, shape) for name, (dtype, shape) in tensors.items()})


class World:
    """A target, conversations, an adoptable checkpoint and a features volume, all well."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "target"
        self.target.mkdir()
        self.configure(LLAMA)
        (self.target / "tokenizer.json").write_text("{}")
        (self.target / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
        self.data = folder / "train.jsonl"
        self.talk(100)
        self.features = folder / "features"
        self.drafts = folder / "drafts"
        self.features.mkdir()
        self.checkpoint = folder / "draft"
        self.checkpoint.mkdir()
        self.draft(DRAFT)

    def configure(self, config: Mapping[str, Any], dtype: str = "BF16") -> None:
        """A target of this configuration, with an embedding and a head as it says."""
        (self.target / "config.json").write_text(json.dumps(config))
        language = {**config, **config.get("text_config", {})}
        if all(isinstance(language.get(size), int) for size in ("vocab_size", "hidden_size")):
            shape = (language["vocab_size"], language["hidden_size"])
            self.weigh(dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (dtype, shape)))

    def weigh(self, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Weights of the target; a large file has holes in it."""
        files.write_sparse(
            self.target / "model.safetensors", {name: Tensor(dtype, shape) for name, (dtype, shape) in tensors.items()}
        )

    def talk(self, count: int, words: str = "yes " * 75) -> None:
        messages = [
            [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": words}] for i in range(count)
        ]
        self.data.write_text("".join(json.dumps({"messages": one}) + "\n" for one in messages))

    def draft(self, config: Mapping[str, Any], **tensors: tuple[str, tuple[int, ...]] | None) -> None:
        (self.checkpoint / "config.json").write_text(json.dumps(config))
        whole: dict[str, tuple[str, tuple[int, ...]] | None] = {"d2t": ("I64", (320,))}
        whole |= {name: ("BF16", shape) for name, shape in shapes(DRAFT).items()} | tensors
        safetensors(
            self.checkpoint / "model.safetensors", {name: one for name, one in whole.items() if one is not None}
        )

    def config(self, **changes: Any) -> InspectConfig:
        return InspectConfig(
            **{
                "owner": ObjectReference(namespace="llm", name="kimi", uid="u"),
                "key": "k",
                "target": str(self.target),
                "data": DataConfig(conversations=str(self.data), max_length=64, holdout=0.1),
                "sglang_version": "0.5.21",
                "context_length": 64,
                **changes,
            }
        )

    def inspect(self, **changes: Any) -> Facts:
        return run(self.config(**changes), features_root=self.features, drafts_root=self.drafts)

    def extracted_from(self, facts: Facts) -> dict[str, str]:
        """What an extraction is made from that was inspected with these facts."""
        return extraction_inputs(
            self.config().data or DataConfig(),
            target_digest=facts.target_digest,
            data_digest=facts.data_digest or "",
            chat_template_digest=facts.chat_template_digest or "",
            template_day="2026-06-15",
            layers=facts.auxiliary_layers,
            dtype="bf16",
            teacher="LastState",
        )

    def refused(self, code: ExitCode, reason: Reason, *words: str, **changes: Any) -> str:
        with pytest.raises(StageError) as raised:
            self.inspect(**changes)
        assert (raised.value.code, raised.value.reason) == (code, reason)
        for word in words:
            assert word in raised.value.message
        return raised.value.message


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_defaults_by_which_a_server_draws_are_read_where_the_target_answers_and_its_server_follows_them(
    world: World,
) -> None:
    said = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05}
    (world.target / "generation_config.json").write_text(json.dumps(said))

    def read(temperature: float, **changes: Any) -> dict[str, object] | None:
        regenerate = Regenerate(temperature=temperature)
        data = DataConfig(conversations=str(world.data), max_length=64, holdout=0.1, regenerate=regenerate)
        found = world.inspect(data=data, **changes).sampling_defaults
        return found.to_json() if found is not None else None

    assert read(0.6) == {"topK": 20, "repetitionPenalty": 1.05}
    assert read(0) == {"repetitionPenalty": 1.05}
    assert read(0.6, engine=["--sampling-defaults openai"]) is None
    assert world.inspect().sampling_defaults is None
    (world.target / "generation_config.json").write_text(json.dumps({**said, "repetition_penalty": 1.0}))
    assert read(0) is None


def test_data_of_which_all_ask_the_same_are_refused_and_the_held_out_share_is_told_where_it_is_another(
    world: World,
) -> None:
    def ask(same: int, others: int) -> None:
        asked = ["hi there"] * same + [f"{number}" for number in range(others)]
        talks = (
            [{"role": "user", "content": one}, {"role": "assistant", "content": f"{i}"}] for i, one in enumerate(asked)
        )
        world.data.write_text("".join(json.dumps({"messages": one}) + "\n" for one in talks))

    ask(100, 0)
    world.refused(ExitCode.BAD_INPUT, Reason.NO_USABLE_DATA, "All open with the same question", "bring some that open")
    ask(0, 100)
    assert world.inspect().warnings == []
    ask(40, 60)
    data = DataConfig(conversations=str(world.data), max_length=64, holdout=0.18)
    (told,) = world.inspect(data=data).warnings
    assert "are held out, not data.holdout's 18.0%" in told


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({}, 32 * 4 * 64 * 64 + 32 * 3 * 64 * 128 + 64 * 1000),
        ({"intermediate_size": None}, None),
        ({"num_attention_heads": 0}, None),
    ],
    ids=["whole", "a size is missing", "no head"],
)
def test_a_configuration_tells_the_size_of_its_target_or_nothing_of_it(
    world: World, changes: dict[str, Any], parameters: int | None
) -> None:
    path = world.target / "config.json"
    sized = json.loads(path.read_text()) | {"num_attention_heads": 4, "intermediate_size": 128}
    path.write_text(json.dumps(sized | changes))
    assert target_facts(world.target).active_parameters == parameters


def test_the_facts_of_a_target_and_its_data(world: World) -> None:
    facts = world.inspect(context_length=None)
    assert (facts.architecture, facts.num_layers, facts.hidden_size) == ("LlamaForCausalLM", 32, 64)
    assert (facts.vocabulary_size, facts.target_dtype, facts.context_length) == (1000, "bfloat16", 4096)
    assert facts.weight_bytes == (world.target / "model.safetensors").stat().st_size
    assert (facts.auxiliary_layers, facts.capture_ids, facts.layer_convention) == ([1, 15, 28], [1, 15, 28], "output")
    assert facts.draft_vocabulary_size == 960
    assert facts.conversations == 100
    assert facts.held_out is not None
    assert 1 <= facts.held_out <= 30
    assert facts.expected_tokens == 100 * 64
    assert facts.feature_bytes == 100 * 64 * (4 * 64 * 2 + 13)
    assert facts.checkpoint_digest is None


def test_a_server_that_takes_longer_conversations_than_its_draft_is_trained_on_is_warned_of(world: World) -> None:
    """A draft that is brought along is warned of; the own one went on to the target's 131,072 positions without a word."""
    (said,) = world.inspect(context_length=None).warnings
    assert said.startswith("servers take 4,096 tokens of a conversation, and the draft is trained on the first 64 ")
    assert world.inspect(context_length=64).warnings == []
    assert world.inspect(context_length=4096, checkpoint=str(world.checkpoint)).warnings == [], "nothing is trained"
    assert world.inspect(context_length=4096, init_from=str(world.checkpoint)).warnings == [said]


def test_the_facts_fit_a_termination_message(world: World) -> None:
    world.configure({**LLAMA, "auto_map": {}})
    (world.target / "tokenizer.json").rename(world.target / "tokenizer.model")
    facts = world.inspect(context_length=8192, longer_context=True)
    assert len(facts.warnings) == 4
    Report(stage=StageName.INSPECT, key="k" * 64, ok=True, result=facts.to_json()).dump()


def test_a_nested_configuration_is_that_of_the_language_model(world: World) -> None:
    text = {"num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840, "max_position_embeddings": 262144}
    text |= {"intermediate_size": 18432, "kv_lora_rank": 512}
    world.configure({"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text, "dtype": "bfloat16"})
    facts = world.inspect(auxiliary_layers=[2, 30, 58], sglang_version="lmsysorg/sglang:v0.5.23")
    assert (facts.num_layers, facts.hidden_size, facts.vocabulary_size) == (61, 7168, 163840)
    assert (facts.layer_convention, facts.capture_ids) == ("input-unless-first-is-1", [3, 31, 59])
    assert facts.draft_vocabulary_size == 32000


def test_the_type_of_a_target_that_names_none_is_the_one_that_sglang_takes_and_not_its_weights(world: World) -> None:
    """SGLang takes what is not named for float32, and runs that in float16: its draft had the weights' type, and no server started."""
    world.configure({name: value for name, value in LLAMA.items() if name != "torch_dtype"})
    facts = world.inspect()
    assert facts.target_dtype == "float16"
    assert "weights are bfloat16, and SGLang serves it in float16" in facts.warnings[0]
    told = world.inspect(engine=["--dtype bfloat16", "--quantization fp8"])
    assert (told.target_dtype, told.warnings) == ("bfloat16", [])


def test_a_digest_changes_with_what_it_stands_for_and_with_nothing_else(world: World) -> None:
    before = world.inspect()
    assert world.inspect() == before
    (world.target / "README.md").write_text("new")
    assert world.inspect().target_digest == before.target_digest
    world.talk(99)
    assert world.inspect().data_digest != before.data_digest
    world.configure(LLAMA)
    assert world.inspect().target_digest != before.target_digest
    template = world.target / "chat_template.jinja"
    template.write_text(CHATML.replace("user", "User") + " ")
    assert world.inspect().chat_template_digest != before.chat_template_digest
    of_tools = world.target / "additional_chat_templates" / "tool_use.jinja"
    of_tools.parent.mkdir()
    of_tools.write_text(CHATML)
    with_tools = world.inspect().target_digest
    of_tools.write_text(CHATML + " ")
    assert world.inspect().target_digest != with_tools


# ------------------------------------------------------------------------------------------------------- target


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.target.rename(w.target.with_name("away")), "placement.volumes"),
        (lambda w: (w.target / "config.json").unlink(), "no config.json"),
        (lambda w: (w.target / "config.json").write_text("{"), "not JSON"),
        (lambda w: (w.target / "config.json").write_text("[]"), "not a JSON object"),
        (lambda w: w.configure({**LLAMA, "architectures": []}), "names no architecture"),
        (lambda w: w.configure({**LLAMA, "hidden_size": "64"}), "hidden_size"),
        (lambda w: w.configure({**LLAMA, "num_hidden_layers": 0}), "num_hidden_layers"),
        (lambda w: (w.target / "model.safetensors").unlink(), "no weights"),
        (lambda w: (w.target / "model.safetensors").write_bytes(b"\xff" * 100), "not a safetensors file"),
        (lambda w: (w.target / "model.safetensors").write_bytes(b""), "not a safetensors file"),
        (lambda w: (w.target / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"nope"), "not JSON"),
        (lambda w: (w.target / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b'{"a": 1}'), "entry of a"),
        (lambda w: (w.target / "model.safetensors.index.json").write_text("{}"), "is broken"),
        (
            lambda w: (w.target / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}'),
            "lacks b.safetensors",
        ),
        (lambda w: (w.target / "tokenizer.json").unlink(), "no tokenizer"),
    ],
)
def test_a_target_that_is_not_whole_is_named(world: World, change: Callable[[World], object], words: str) -> None:
    change(world)
    world.refused(ExitCode.BAD_INPUT, Reason.TARGET_UNREADABLE, "target.model", words)


def test_weights_that_were_copied_in_part_are_noticed(world: World) -> None:
    path = world.target / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    world.refused(ExitCode.BAD_INPUT, Reason.TARGET_UNREADABLE, "was cut")


@pytest.mark.parametrize("text", ['{"files": ["model.safetensors"]}', "[1]", "not JSON", '{"format": "other/v1"}'])
def test_a_manifest_that_another_tool_left_with_the_target_says_nothing(world: World, text: str) -> None:
    before = world.inspect().target_digest
    (world.target / "manifest.json").write_text(text)
    assert world.inspect().target_digest == before


EMBEDDING, HEAD = {"model.embed_tokens.weight": ("BF16", (1000, 64))}, {"lm_head.weight": ("BF16", (1000, 64))}


@pytest.mark.parametrize(
    ("tensors", "reason", "words"),
    [
        (HEAD, Reason.TARGET_UNREADABLE, "no tensor named *embed_tokens.weight"),
        (EMBEDDING, Reason.TARGET_UNREADABLE, "no tensor named *lm_head.weight"),
        (
            EMBEDDING | HEAD | {"audio.embed_tokens.weight": ("BF16", (8, 8))},
            Reason.TARGET_UNREADABLE,
            "model.embed_tokens.weight, audio.embed_tokens.weight, of which one is meant",
        ),
        (EMBEDDING | {"lm_head.weight": ("BF16", (1024, 64))}, Reason.TARGET_UNREADABLE, "shape [1024, 64]"),
        (HEAD | {"model.embed_tokens.weight": ("BF16", (1000, 32))}, Reason.TARGET_UNREADABLE, "= [1000, 64]"),
        (EMBEDDING | {"lm_head.weight": ("F8_E4M3", (1000, 64))}, Reason.TARGET_UNSUPPORTED, "quantized"),
        (HEAD | {"model.embed_tokens.weight": ("I32", (1000, 8))}, Reason.TARGET_UNSUPPORTED, "stored as I32"),
    ],
)
def test_an_embedding_or_head_that_training_could_not_read_is_named_before_a_gpu_is_taken(
    world: World, tensors: Mapping[str, tuple[str, tuple[int, ...]]], reason: Reason, words: str
) -> None:
    world.configure({**LLAMA, "tie_word_embeddings": False})
    world.weigh(tensors)
    world.refused(ExitCode.BAD_INPUT, reason, "target.model", words)


def test_an_index_that_names_a_tensor_where_it_is_not_is_noticed(world: World) -> None:
    world.weigh({"other": ("BF16", (1,))})
    index = {"weight_map": dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), "model.safetensors")}
    (world.target / "model.safetensors.index.json").write_text(json.dumps(index))
    world.refused(ExitCode.BAD_INPUT, Reason.TARGET_UNREADABLE, "lacks model.embed_tokens.weight")


@pytest.mark.parametrize("tied", [True, None])
def test_a_target_without_a_head_speaks_with_its_embedding(world: World, tied: bool | None) -> None:
    world.configure({**LLAMA, "tie_word_embeddings": tied})
    world.weigh(EMBEDDING)
    assert world.inspect().vocabulary_size == 1000


@pytest.mark.parametrize(
    ("architecture", "why"),
    [("MambaForCausalLM", "not among the architectures"), ("Gemma3ForCausalLM", "which is not a layer's output")],
)
def test_an_architecture_whose_states_are_not_known_to_be_its_layers_is_refused(
    world: World, architecture: str, why: str
) -> None:
    world.configure({**LLAMA, "architectures": [architecture]})
    world.refused(ExitCode.BAD_INPUT, Reason.TARGET_UNSUPPORTED, architecture, why, "LlamaForCausalLM")


@pytest.mark.parametrize("version", ["0.5.16", "nightly"])
def test_an_unsupported_version_is_refused(world: World, version: str) -> None:
    world.refused(ExitCode.BAD_CONFIGURATION, Reason.VERSION_UNSUPPORTED, version, sglang_version=version)


def test_a_small_target_must_name_its_layers(world: World) -> None:
    world.configure({**LLAMA, "num_hidden_layers": 4})
    world.refused(ExitCode.BAD_CONFIGURATION, Reason.LAYERS_REQUIRED, "auxiliaryLayers", "0 to 2")
    assert world.inspect(auxiliary_layers=[0, 1, 2]).auxiliary_layers == [0, 1, 2]


@pytest.mark.parametrize("layers", [[1, 15, 31], [-1, 15], [2, 1]])
def test_layers_that_cannot_be_captured_are_refused(world: World, layers: list[int]) -> None:
    world.refused(ExitCode.BAD_CONFIGURATION, Reason.LAYER_CONVENTION, "auxiliaryLayers", auxiliary_layers=layers)


def test_latent_attention_is_for_targets_that_have_it(world: World) -> None:
    world.refused(
        ExitCode.BAD_CONFIGURATION,
        Reason.INVALID_CONFIGURATION,
        "draft.attention",
        "LlamaForCausalLM has none",
        attention="Latent",
    )
    world.configure({**LLAMA, **LATENT, "architectures": ["DeepseekV3ForCausalLM"]})
    assert world.inspect(attention="Latent").draft_attention == "Latent"
    assert world.inspect().draft_attention == "Heads"


def test_a_context_that_nobody_names_is_asked_for(world: World) -> None:
    world.configure({name: value for name, value in LLAMA.items() if name != "max_position_embeddings"})
    world.refused(ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION, "serve.contextLength", context_length=None)
    assert world.inspect(context_length=512).context_length == 512


@pytest.mark.parametrize(
    ("said", "at_fault", "attention"),
    [
        ({"q_lora_rank": None}, "it says no q_lora_rank", "Latent"),
        ({"num_attention_heads": ...}, "it says no num_attention_heads", "Latent"),
        ({"num_attention_heads": None}, "it says no num_attention_heads", "Heads"),
        ({"intermediate_size": ...}, "it says no intermediate_size", "Heads"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "its rope says no factor", "Heads"),
        ({"rope_scaling": "llama3"}, "its rope_scaling or rope_parameters is not an object", "Heads"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps is 'tiny'", "Heads"),
    ],
)
def test_what_a_draft_is_made_of_is_looked_at_before_its_features_are_made(
    world: World, said: dict[str, Any], at_fault: str, attention: str
) -> None:
    """The training told it, hours later: of DeepSeek V2 Lite, which has no q_lora_rank, and a draft with latent attention."""
    config = {**LLAMA, **LATENT, "architectures": ["DeepseekV3ForCausalLM"]} if attention == "Latent" else LLAMA
    world.configure({name: value for name, value in {**config, **said}.items() if value is not ...})
    world.refused(ExitCode.BAD_INPUT, Reason.TARGET_UNSUPPORTED, at_fault, attention=attention)


def test_a_context_that_sglang_would_not_start_with_is_refused_before_anything_is_made(world: World) -> None:
    """It was a warning's end: features were made and a draft trained, and no server started."""
    at_fault = (ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION)
    world.refused(
        *at_fault, "serve.contextLength: 4097 is beyond the 4096 positions of the target", context_length=4097
    )
    assert world.inspect(context_length=4097, longer_context=True).context_length == 4097
    world.configure({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 4.0}})
    assert world.inspect(context_length=16384).context_length == 16384
    world.refused(*at_fault, "serve.contextLength: 16385 is beyond the 16384", context_length=16385)


def test_a_draft_vocabulary_larger_than_the_targets_is_refused(world: World) -> None:
    assert world.inspect(vocabulary_size=512).draft_vocabulary_size == 512
    world.refused(ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION, "1024", "1000", vocabulary_size=1024)


# --------------------------------------------------------------------------------------------------------- data


def test_missing_data_and_a_bad_line_are_named(world: World) -> None:
    world.data.write_text(world.data.read_text() + "{}\n")
    world.refused(ExitCode.BAD_INPUT, Reason.DATA_UNREADABLE, "line 101")
    world.data.unlink()
    world.refused(ExitCode.BAD_INPUT, Reason.DATA_UNREADABLE, str(world.data))


@pytest.mark.parametrize("count", [0, 1])
def test_data_that_leaves_nothing_to_learn_from_is_refused(world: World, count: int) -> None:
    world.talk(count)
    tool = {"messages": [{"role": "user", "content": "?"}, {"role": "tool", "content": "7"}]}
    world.data.write_text(world.data.read_text() + 2 * (json.dumps(tool) + "\n"))
    world.refused(
        ExitCode.BAD_INPUT,
        Reason.NO_USABLE_DATA,
        f"{count} distinct conversations",
        "Left out: 2 tool calls that are not clear",
    )


def test_a_target_without_a_chat_template_needs_one_in_the_object(world: World, tmp_path: Path) -> None:
    (world.target / "tokenizer_config.json").write_text("{}")
    world.refused(ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, "data.chatTemplate")
    own = tmp_path / "own.jinja"
    data = DataConfig(conversations=str(world.data), max_length=64, holdout=0.1, chat_template=str(own))
    world.refused(ExitCode.BAD_INPUT, Reason.TEMPLATE_MISSING, str(own), data=data)
    own.write_text(CHATML)
    assert world.inspect(data=data).chat_template_digest is not None
    assert world.inspect(data=None).chat_template_digest is None


def test_templates_are_found_as_transformers_finds_them(world: World) -> None:
    text = world.inspect().chat_template_digest
    named = [{"name": "tool_use", "template": "?"}, {"name": "default", "template": TEMPLATE}]
    (world.target / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert world.inspect().chat_template_digest == text
    (world.target / "chat_template.jinja").write_text(CHATML + "file")
    assert world.inspect().chat_template_digest != text


def test_the_day_is_part_of_what_features_are_made_from_though_only_a_template_for_tools_says_it(world: World) -> None:
    both = [
        {"name": "tool_use", "template": TEMPLATE},
        {"name": "default", "template": CHATML},
    ]
    days = []
    for templates in (CHATML, both):
        (world.target / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
        data = DataConfig(conversations=str(world.data), max_length=64, holdout=0.1)
        days.append(read_data(data, world.target, learned=True).template_day)
    assert days == [None, "2026-06-15"]


# ------------------------------------------------------------------------------------------------------ storage


def test_a_volume_that_is_too_small_says_what_would_fit(world: World) -> None:
    message = world.refused(
        ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL, feature_dtype="fp32", features_capacity=4_000_000
    )
    assert message == (
        "about 6,400 tokens x 3 auxiliary layers and the last, hidden 64, fp32 need 6.33 MiB; the features volume has "
        "3.81 MiB free and is 2.51 MiB short. Use a claim of 6.65 MiB, extract.dtype bf16 (3.20 MiB), "
        "extract.dtype fp8 (1.74 MiB) or data.maxSamples 57 (about 3,857 tokens)"
    )


def test_what_the_volume_already_holds_is_not_free(world: World) -> None:
    assert world.inspect(features_capacity=4_000_000)
    (world.features / "other").write_bytes(bytes(1_000_000))
    world.refused(ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL, features_capacity=4_000_000)


def test_a_claim_that_is_yet_to_be_made_anew_is_held_against_its_size(world: World) -> None:
    world.features.rmdir()
    world.refused(ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE, features_capacity=4_000_000)
    assert world.inspect(features_capacity=4_000_000, features_gone=True)
    world.refused(ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL, features_capacity=3_000_000, features_gone=True)


def test_a_large_target_may_also_keep_the_most_likely_tokens_alone() -> None:
    with pytest.raises(StageError) as refused:
        check_space(
            Wanted(87_800_000, 37_312, layers=3, hidden_size=7168, dtype="bf16", teacher="LastState"), 3 * 2**40
        )
    assert "need 4.58 TiB; the features volume has 3.00 TiB free and is 1.58 TiB short. Use" in refused.value.message
    assert (
        "extract.dtype fp8 (2.29 TiB), extract.dtype fp8 and extract.teacher TopK (1.75 TiB)" in refused.value.message
    )


def test_features_that_this_object_has_already_are_not_needed_twice(world: World) -> None:
    facts = world.inspect()
    mine = world.features / "llm" / "kimi" / "extract" / "key"
    mine.mkdir(parents=True)
    (mine / "train-00000.safetensors").write_bytes(bytes(3_000_000))
    assert world.inspect(features_capacity=4_000_000)
    made_from = world.extracted_from(facts)
    for inputs, fits in ((made_from, True), ({**made_from, "data": "older"}, False)):
        artifacts.publish(mine, stage="extract", key="key", made_from=inputs, numbers={}, provenance={})
        if fits:
            assert world.inspect(features_capacity=4_000_000)
        else:
            message = world.refused(ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL, features_capacity=4_000_000)
            assert re.search(rf"delete the features of former specs, 2[.]8. MiB: {mine}$", message)


def test_features_that_are_gone_are_not_needed_again_by_a_draft_that_is_trained(world: World) -> None:
    facts = world.inspect()
    made_from = world.extracted_from(facts)
    trained = world.drafts / "llm" / "kimi" / "train" / "key"
    trained.mkdir(parents=True)
    world.refused(ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL, features_capacity=1000)
    artifacts.publish(trained, stage="train", key="key", made_from=inherited(made_from), numbers={}, provenance={})
    assert world.inspect(features_capacity=1000).feature_bytes == facts.feature_bytes
    world.refused(ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL, features_capacity=1000, auxiliary_layers=[0, 1])


def test_the_file_system_itself_may_be_too_small(world: World) -> None:
    data = DataConfig(conversations=str(world.data), max_length=1 << 20, holdout=0.1)
    world.configure({**LLAMA, "vocab_size": 64, "hidden_size": 1 << 30})
    world.refused(ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL, "TiB", data=data)


def test_a_features_volume_that_is_not_mounted_is_named(world: World) -> None:
    world.features.rmdir()
    world.refused(ExitCode.BAD_INPUT, Reason.STORAGE_UNAVAILABLE, "storage.features")


# --------------------------------------------------------------------------------------------------- checkpoint


def test_a_checkpoint_that_fits_is_adopted_without_space_for_features(world: World) -> None:
    world.features.rmdir()
    facts = world.inspect(checkpoint=str(world.checkpoint), data=None)
    assert (facts.draft_vocabulary_size, facts.feature_bytes) == (320, None)
    again = world.inspect(checkpoint=str(world.checkpoint))
    assert (again.checkpoint_digest, again.conversations) == (facts.checkpoint_digest, 100)
    weights = world.checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert world.inspect(checkpoint=str(world.checkpoint)).checkpoint_digest != facts.checkpoint_digest


@pytest.mark.parametrize(
    ("config", "tensors", "reason"),
    [
        ({"intermediate_size": None}, {}, Reason.CONFIG_INVALID),
        (
            {
                "max_position_embeddings": 512,
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
            },
            {},
            Reason.CONTEXT_TOO_SHORT,
        ),
        ({"norm_before_residual": True}, {}, Reason.UNSUPPORTED_DRAFT),
        ({"target_hidden_size": 32}, {}, Reason.FEATURE_MISMATCH),
        ({}, {"lm_head.weight": None}, Reason.CHECKPOINT_INCOMPLETE),
        ({}, {"layers.0.mlp.up_proj.weight": ("BF16", (2, 2))}, Reason.CHECKPOINT_INCOMPLETE),
        ({}, {"d2t": None}, Reason.VOCABULARY_MAP),
    ],
)
def test_a_checkpoint_that_would_serve_at_accept_length_one_is_refused(
    world: World, config: Mapping[str, Any], tensors: Mapping[str, Any], reason: Reason
) -> None:
    world.draft({**DRAFT, **config}, **tensors)
    adopting = {"checkpoint": str(world.checkpoint), "data": None, "context_length": None}
    world.refused(ExitCode.REFUSED, reason, "draft.checkpoint", **adopting)


def test_an_adopted_draft_brings_its_own_layers(world: World) -> None:
    world.draft({**DRAFT, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}})
    facts = world.inspect(checkpoint=str(world.checkpoint), data=None)
    assert (facts.auxiliary_layers, facts.capture_ids, facts.warnings) == ([2, 16, 29], [2, 16, 29], [])
    world.refused(
        ExitCode.REFUSED,
        Reason.FEATURE_MISMATCH,
        "the object's are [1, 15, 28]",
        checkpoint=str(world.checkpoint),
        data=None,
        auxiliary_layers=[1, 15, 28],
    )


def test_what_conversion_mends_is_adopted_with_a_warning_where_there_is_a_doubt(world: World) -> None:
    doubtful = {"tie_word_embeddings": True, "max_position_embeddings": 512, "eagle_config": None}
    world.draft({**DRAFT, **doubtful, "architectures": ["Eagle3LlamaForCausalLM"]})
    facts = world.inspect(checkpoint=str(world.checkpoint), data=None, context_length=4096)
    assert facts.auxiliary_layers == [1, 15, 28]
    assert ["becomes the served context 4096" in warning for warning in facts.warnings] == [False, True]
    assert "does not say which layers" in facts.warnings[0]


def test_a_draft_to_go_on_from_brings_its_layers_and_its_vocabulary_and_data_is_extracted_for_it(world: World) -> None:
    world.draft({**DRAFT, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}})
    facts = world.inspect(init_from=str(world.checkpoint))
    assert (facts.auxiliary_layers, facts.draft_vocabulary_size) == ([2, 16, 29], 320)
    assert (facts.checkpoint_digest, facts.conversations) == (None, 100)
    assert facts.init_digest == world.inspect(checkpoint=str(world.checkpoint)).checkpoint_digest
    assert facts.feature_bytes is not None


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"vocab_size": 999}, Reason.CONFIG_INVALID, "vocab_size is 999, the target's is 1000"),
        ({"target_hidden_size": 32}, Reason.FEATURE_MISMATCH, "states of 32 numbers, the target's have 64"),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "short_factor": [1.0] * 8,
                    "long_factor": [2.0] * 8,
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 63,
                }
            },
            Reason.UNSUPPORTED_DRAFT,
            "data.maxLength is 64. Set data.maxLength to 63 at most",
        ),
        (
            {"rope_parameters": {"rope_type": "deepseek_yarn", "factor": 4.0, "rope_theta": 1e4}},
            Reason.UNSUPPORTED_DRAFT,
            "its rotary embedding is of type deepseek_yarn",
        ),
    ],
)
def test_a_draft_that_does_not_fit_cannot_be_gone_on_from(
    world: World, changes: dict[str, Any], reason: Reason, words: str
) -> None:
    world.draft(DRAFT | changes)
    world.refused(ExitCode.REFUSED, reason, "draft.initFrom: ", words, init_from=str(world.checkpoint))


def test_a_draft_of_longrope_is_gone_on_from_with_texts_that_are_turned_in_one_way(world: World) -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "rope_theta": 1e4}
    world.draft(DRAFT | {"rope_parameters": rope | {"original_max_position_embeddings": 64}})
    assert world.inspect(init_from=str(world.checkpoint)).init_digest


def test_a_draft_with_an_embedding_of_its_own_can_be_adopted_and_gone_on_from(world: World) -> None:
    smaller = {**DRAFT, "hidden_size": 32, "target_hidden_size": 64, "head_dim": 8}
    tensors = {name: ("BF16", shape) for name, shape in shapes(smaller).items()}
    world.draft(smaller, **tensors, **{"embed_tokens.weight": ("BF16", (1000, 32))})
    digest = world.inspect(checkpoint=str(world.checkpoint)).checkpoint_digest
    assert digest
    assert world.inspect(init_from=str(world.checkpoint)).init_digest == digest


def test_a_checkpoint_that_cannot_be_read_is_named(world: World) -> None:
    (world.checkpoint / "model.safetensors").rename(world.checkpoint / "pytorch_model.bin")
    world.refused(
        ExitCode.BAD_INPUT,
        Reason.CHECKPOINT_UNREADABLE,
        "is not a file of torch.save",
        checkpoint=str(world.checkpoint),
        data=None,
    )
    (world.checkpoint / "config.json").write_text("[")
    world.refused(ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE, checkpoint=str(world.checkpoint), data=None)
    world.refused(ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE, "/nowhere", checkpoint="/nowhere", data=None)


def test_a_target_that_answers_itself_is_reckoned_with_and_asked_where_it_ends(world: World) -> None:
    regenerate = Regenerate(max_tokens=20)
    data = DataConfig(conversations=str(world.data), max_length=1024, holdout=0.1, regenerate=regenerate)
    without = world.inspect(data=data.model_copy(update={"regenerate": None}))
    assert without.end_tokens is None
    (world.target / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 3]}))
    facts = world.inspect(data=data)
    assert facts.end_tokens == [3, 7]
    assert facts.expected_tokens is not None
    assert facts.expected_tokens >= 100 * 20
    assert world.inspect(data=data.model_copy(update={"expected_tokens": 5000})).expected_tokens == 5000


def test_what_came_from_a_hub_is_reported_with_its_commit(world: World) -> None:
    fetched = FetchResult(
        target=Fetched(repository="acme/tiny", commit="c" * 40, path=str(world.target), files=3, bytes=10)
    )
    facts = world.inspect(fetched=fetched)
    assert facts.fetched == fetched
    assert facts.target_folder("acme/tiny") == str(world.target)
    assert world.inspect().target_folder("/models/x") == "/models/x"
