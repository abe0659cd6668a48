"""A draft leaves in the layout of speculators, and is the same draft when it comes back."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eagle3_api.artifacts import CONFIG, WEIGHTS
from eagle3_api.checkpoints import Form, Served, check, read_folder, read_form, report, resolve_layers
from eagle3_api.checkpoints.form import Latent
from eagle3_api.checkpoints.vocabulary import read_map
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_api.sglang import NEWEST
from eagle3_draft.cli import main
from eagle3_draft.convert.export import write_speculators
from eagle3_draft.model import Draft, DraftConfig
from eagle3_draft.stage import StageError
from eagle3_draft.tensors import pieces
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
    "rope",
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
        "max_position_embeddings": positions,
        "vocab_size": TARGET_VOCABULARY,
    }
    layer |= {name: True for name in ("fc_norm", "norm_before_fc", "norm_output") if getattr(sizes, name)}
    return Original(dict(draft.state_dict()), torch.tensor(ids), layer, tuple(layers))


vocabularies = st.permutations(range(TARGET_VOCABULARY)).flatmap(
    lambda order: st.sampled_from([64, TARGET_VOCABULARY]).map(lambda size: sorted(order[:size]))
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
    positions=st.sampled_from([128, 4096]),
    seed=st.integers(0, 99),
)


def published(draft: Original, folder: Path) -> Form:
    LAYOUTS["SpecForge"](draft, folder)
    return read_form(read_folder(folder))


def values(form: Form) -> dict[str, torch.Tensor]:
    """Of every tensor, by the canonical names."""
    whole = {name: stored for name, stored in form.tensors.items() if name != "embed_tokens.weight"}
    return {name: torch.cat([piece.clone() for piece in pieces(stored)]) for name, stored in whole.items()}


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
        assert all(torch.equal(before[name], after[name]) for name in before)
        back, ids = read_map(theirs, TARGET_VOCABULARY), draft.ids.tolist()
        assert (back.ids if back is not None else list(range(TARGET_VOCABULARY))) == ids


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
