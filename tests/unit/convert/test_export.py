"""A draft leaves in the layout of speculators, and is the same draft when it comes back."""

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eagle3_api.artifacts import CONFIG, WEIGHTS
from eagle3_api.checkpoints import Form, Served, check, read_folder, read_form, report, resolve_layers
from eagle3_api.checkpoints.form import Latent
from eagle3_api.checkpoints.vocabulary import read_map
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_api.sglang import NEWEST
from eagle3_draft.cli import main
from eagle3_draft.convert.export import write_speculators
from eagle3_draft.errors import StageError
from eagle3_draft.model.config import DraftConfig, config_of
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.rope import Rotary
from eagle3_draft.tensors import whole
from published.layouts import LAYOUTS, Original

TARGET_VOCABULARY = 96
VERIFIER = {"name_or_path": "org/model", "architectures": ["LlamaForCausalLM"]}

#: What is the draft itself: everything but where it came from.
SAME = (
    "hidden_size",
    "intermediate_size",
    "heads",
    "kv_heads",
    "head_dim",
    "target_hidden_size",
    "vocabulary_size",
    "draft_vocabulary_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "activation",
    "depth",
    "fc_norm",
    "norm_before_fc",
    "norm_output",
    "unsupported",
)


def make(
    *,
    heads: tuple[int, int] = (2, 1),
    head_dim: int = 8,
    norm: str | None = None,
    norm_output: bool = False,
    layers: Sequence[int] = (1, 2, 4),
    ids: Sequence[int] = range(64),
    theta: float = 1e4,
    rope: Mapping[str, Any] | None = None,
    positions: int = 128,
    seed: int = 0,
) -> Original:
    """A draft of a kind that speculators can say."""
    sizes = DraftConfig(
        hidden_size=16,
        target_hidden_size=16,
        layers=list(layers),
        intermediate_size=24,
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=theta,
        vocabulary_size=TARGET_VOCABULARY,
        draft_vocabulary_size=len(ids),
        max_position_embeddings=positions,
        fc_norm=norm == "fc_norm",
        norm_before_fc=norm == "norm_before_fc",
        norm_output=norm_output,
    )
    draft = Draft(sizes)
    draft.initialise(seed)
    layer: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": theta,
        "rope_scaling": rope,
        "max_position_embeddings": positions,
        "vocab_size": TARGET_VOCABULARY,
    }
    layer |= {name: True for name in ("fc_norm", "norm_before_fc", "norm_output") if getattr(sizes, name)}
    return Original(dict(draft.state_dict()), torch.tensor(ids), layer, tuple(layers))


YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

#: Rotary embeddings of every kind that this product's own forward and speculators' both turn by.
ROPES: dict[str, dict[str, Any] | None] = {
    "default": None,
    "of pictures": {"rope_type": "default", "mrope_section": [1, 1, 2]},
    "of pictures, by its other name": {"rope_type": "mrope", "mrope_section": [1, 1, 2]},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": LLAMA3 | {"original_max_position_embeddings": 16},
    "llama3, all positions the original ones": LLAMA3,
    "yarn": YARN,
    "yarn, all positions the original ones": {"rope_type": "yarn", "factor": 4.0},
    "yarn, another ramp": YARN | {"beta_fast": 4.0, "beta_slow": 2.0, "truncate": False},
    "yarn, stretched more": YARN | {"attn_factor": 1.3},
    "yarn, unstretched, as Kimi's": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, weighed": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "attn_factor": 0.9},
    "yarn, one weight, which does not count": YARN | {"mscale": 0.7},
    "yarn, stretched as Transformers says it": YARN | {"attention_factor": 1.1},
}

vocabularies = st.tuples(st.permutations(range(TARGET_VOCABULARY)), st.booleans()).flatmap(
    lambda drawn: st.sampled_from([64, TARGET_VOCABULARY]).map(
        lambda size: sorted(drawn[0][:size]) if drawn[1] else drawn[0][:size]
    )
)
drafts = st.builds(
    make,
    heads=st.sampled_from([(2, 1), (2, 2), (4, 2)]),
    head_dim=st.sampled_from([4, 8]),
    norm=st.sampled_from(["fc_norm", "norm_before_fc", None]),
    norm_output=st.booleans(),
    layers=st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(sorted),
    ids=vocabularies,
    theta=st.sampled_from([1e4, 5e5]),
    rope=st.sampled_from(list(ROPES.values())),
    positions=st.sampled_from([128, 4096]),
    seed=st.integers(0, 99),
)


def published(draft: Original, folder: Path) -> Form:
    LAYOUTS["SpecForge"](draft, folder)
    return read_form(read_folder(folder))


def values(form: Form) -> dict[str, torch.Tensor]:
    """Of every tensor, by the canonical names; the head's rows by the target's tokens, NaN where it has none."""
    tensors = {name: whole(stored) for name, stored in form.tensors.items() if name != "embed_tokens.weight"}
    reading, head = read_map(form, TARGET_VOCABULARY), tensors["lm_head.weight"]
    ids = torch.tensor(reading.ids if reading is not None else range(TARGET_VOCABULARY))
    rows = torch.full((TARGET_VOCABULARY, head.shape[1]), math.nan, dtype=head.dtype)
    return tensors | {"lm_head.weight": rows.index_copy(0, ids, head)}


def turns(rotary: Any) -> torch.Tensor:
    """Cosines and sines of the first positions: (2, positions, numbers of a head that turn)."""
    positions = torch.arange(100)
    if isinstance(rotary, Rotary):
        return torch.stack([part[:, 0] for part in rotary.at(positions)])
    return torch.stack([part[0] for part in rotary(torch.zeros(1), positions[None])])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(draft=drafts)
def test_a_draft_that_leaves_and_comes_back_is_the_same_draft(draft: Original) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        here, there = Path(temporary, "here"), Path(temporary, "there")
        here.mkdir()
        ours = published(draft, here)
        write_speculators(ours, draft.layers, there, verifier=VERIFIER)
        theirs = read_form(read_folder(there))
        served = Served(NEWEST)
        findings = check(theirs, served)
        assert report.refusal(findings) is None, report.table(findings)
        assert theirs.family == "speculators"
        assert resolve_layers(theirs, served) == draft.layers
        assert {name: getattr(theirs, name) for name in SAME} == {name: getattr(ours, name) for name in SAME}
        before, after = values(ours), values(theirs)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name].nan_to_num(9), after[name].nan_to_num(9)) for name in before)
        back = read_map(theirs, TARGET_VOCABULARY)
        # Its trainer takes its teacher's columns in this order, and no map where all tokens are known
        assert (back.ids if back is not None else list(range(TARGET_VOCABULARY))) == sorted(draft.ids.tolist())
        here_turns, there_turns = (
            turns(Rotary(config_of(form, draft.layers), torch.device("cpu"))) for form in (ours, theirs)
        )
        torch.testing.assert_close(there_turns, here_turns, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ROPES)
def test_speculators_turns_positions_as_sglang_does(tmp_path: Path, name: str) -> None:
    draft = make(rope=ROPES[name])
    (tmp_path / "here").mkdir()
    ours = published(draft, tmp_path / "here")
    write_speculators(ours, draft.layers, tmp_path / "there", verifier=VERIFIER)
    layer = json.loads((tmp_path / "there" / CONFIG).read_text())["transformer_layer_config"]
    theirs = LlamaRotaryEmbedding(LlamaConfig(**layer))
    here = Rotary(config_of(ours, draft.layers), torch.device("cpu"))
    torch.testing.assert_close(turns(theirs), turns(here), atol=1e-6, rtol=0)


def test_what_is_written_is_what_vllm_looks_for(tmp_path: Path) -> None:
    draft = make()
    (tmp_path / "here").mkdir()
    write_speculators(published(draft, tmp_path / "here"), draft.layers, tmp_path / "there", verifier=VERIFIER, steps=5)
    config = json.loads((tmp_path / "there" / CONFIG).read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["eagle_aux_hidden_state_layer_ids"] == [layer + 1 for layer in draft.layers]
    assert config["speculators_config"]["verifier"] == VERIFIER
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    assert "layers.0.self_attn.q_proj.weight" in load_file(tmp_path / "there" / WEIGHTS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda form: replace(form, depth=2), "2 decoder layers"),
        (lambda form: replace(form, latent=Latent(8, 8, 8, 8, 8)), "attention is latent"),
        (lambda form: replace(form, output_bias=True), "biases"),
        (lambda form: replace(form, fc_norm=True, norm_before_fc=True), "contradiction"),
        (lambda form: replace(form, rope={"rope_type": "deepseek_yarn", "factor": 8.0}), "type deepseek_yarn"),
        (lambda form: replace(form, rope={"rope_type": "proportional"}), "type proportional"),
        (lambda form: replace(form, rope={"rope_type": "dynamic", "alpha": 8.0}), "dynamic by alpha"),
        (lambda form: replace(form, rope=YARN | {"extrapolation_factor": 0.5}), "extrapolation_factor"),
    ],
)
def test_what_speculators_would_read_as_another_draft_is_refused(
    tmp_path: Path, change: Callable[[Form], Form], words: str
) -> None:
    draft = make()
    (tmp_path / "here").mkdir()
    form = change(published(draft, tmp_path / "here"))
    with pytest.raises(StageError, match=words) as no:
        write_speculators(form, draft.layers, tmp_path / "there", verifier=VERIFIER)
    assert (no.value.code, no.value.reason) == (ExitCode.REFUSED, Reason.UNSUPPORTED_DRAFT)
    assert not (tmp_path / "there").exists()


def test_the_command_writes_it_and_says_how_to_serve_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft = make()
    (tmp_path / "here").mkdir()
    published(draft, tmp_path / "here")
    code = main(["export", str(tmp_path / "here"), str(tmp_path / "there"), "--verifier", "org/model"])
    assert code in (0, 1)
    said = capsys.readouterr().out
    assert f'"model": "{tmp_path / "there"}"' in said
    assert "vllm serve" in said
    assert (
        json.loads((tmp_path / "there" / CONFIG).read_text())["speculators_config"]["verifier"]["name_or_path"]
        == "org/model"
    )


@pytest.mark.parametrize("command", ["convert", "export"])
@pytest.mark.parametrize("out", ["the draft", "a link to it", "another folder"])
def test_the_commands_write_over_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, out: str
) -> None:
    """Onto itself a draft was emptied: its file was opened for writing while it was read."""
    here = tmp_path / "the draft"
    here.mkdir()
    published(make(), here)
    (tmp_path / "a link to it").symlink_to(here)
    (tmp_path / "another folder").mkdir()
    (tmp_path / "another folder" / CONFIG).write_text("{}")
    before = {file: file.read_bytes() for file in sorted(tmp_path.glob("*/*"))}
    code = main([command, str(here), str(tmp_path / out), "--target", str(tmp_path / "target")])
    assert code == ExitCode.BAD_CONFIGURATION
    assert f"{tmp_path / out} is there and not empty, and nothing is written over" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in sorted(tmp_path.glob("*/*"))} == before


def test_the_command_writes_nothing_for_a_target_that_nobody_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path), str(tmp_path / "there")]) == ExitCode.BAD_CONFIGURATION
    assert "--verifier ORG/NAME" in capsys.readouterr().err
    assert not (tmp_path / "there").exists()


def test_a_shared_head_needs_the_target_that_it_is_shared_with(tmp_path: Path) -> None:
    draft = make()
    (tmp_path / "here").mkdir()
    LAYOUTS["SpecForge"](draft, tmp_path / "here")
    config = json.loads((tmp_path / "here" / CONFIG).read_text())
    (tmp_path / "here" / CONFIG).write_text(json.dumps(config | {"draft_vocab_size": None}))
    tensors = load_file(tmp_path / "here" / WEIGHTS)
    save_file(
        {n: t for n, t in tensors.items() if n not in ("lm_head.weight", "d2t", "t2d")}, tmp_path / "here" / WEIGHTS
    )
    with pytest.raises(StageError, match="name the target") as no:
        write_speculators(
            read_form(read_folder(tmp_path / "here")), draft.layers, tmp_path / "there", verifier=VERIFIER
        )
    assert no.value.reason == Reason.INVALID_CONFIGURATION
