"""What the public trainers' own code wrote is read, and says after conversion what it said there.

The folders were made by ``published/tools.py`` in the tools' own environments; see there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3_api.checkpoints import Form, Served, Target, check, read_folder, read_form, report, resolve_layers
from eagle3_api.sglang import NEWEST, capture_ids
from eagle3_draft.cli import main
from eagle3_draft.convert.emit import emit
from eagle3_draft.convert.parity import read_converted
from eagle3_draft.model.config import Llama3Scaling, Scaling, YarnScaling
from published.installed import SPECULATORS, packages
from published.kinds import Kind
from published.layouts import modelopt
from unit.convert import drafts
from unit.train import corpus

MADE = Path(__file__).parents[2] / "published" / "made"
FAMILIES = {
    "speculators": "speculators",
    "specforge": "SpecForge or SGLang",
    "specforge-training": "SpecForge training state",
}
LAYERS = [1, 2, 4]
#: Of the texts that speculators is asked.
TOKENS, STEPS = 24, 3
#: Of positions, where Transformers spells them as SGLang does, and where it does not.
SCALINGS: tuple[Scaling, ...] = (
    Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
    YarnScaling(rope_type="yarn", factor=8.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.4),
)
TARGET = Target("LlamaForCausalLM", num_layers=8, hidden_size=16, vocabulary_size=80, context_length=256)
SERVED = Served(NEWEST, TARGET, tuple(LAYERS), 256)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """As much of a target as conversion reads where the draft has a head of its own: an embedding."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"vocab_size": 80, "hidden_size": 16, "bos_token_id": 1, "eos_token_id": 2})
    )
    save_file({"model.embed_tokens.weight": torch.zeros(80, 16)}, folder / "model.safetensors")
    return folder


def read(tool: str) -> Form:
    return read_form(read_folder(MADE / tool))


@pytest.mark.parametrize("tool", FAMILIES)
def test_a_tools_own_checkpoint_passes_every_rule(tool: str) -> None:
    form = read(tool)
    findings = check(form, SERVED)
    assert form.family == FAMILIES[tool]
    assert report.exit_code(findings) == 0, report.table(findings)
    assert resolve_layers(form, SERVED) == tuple(LAYERS)


@pytest.mark.parametrize("tool", FAMILIES)
@torch.no_grad()
def test_it_says_after_conversion_what_the_tools_own_forward_said(tool: str, target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    ids = capture_ids(LAYERS, TARGET.architecture, TARGET.num_layers, NEWEST)
    emit(read(tool), SERVED, ids, target, "float32", out)
    draft, _ = read_converted(out, LAYERS)
    said = load_file(MADE / f"{tool.partition('-')[0]}.safetensors")
    features, embeds = said["features"], said["embeds"]
    tokens = len(features)
    # The tools are given the embeddings one token ahead; the last position has no token to come
    features = torch.cat([features, features[-1:]])
    wanted = [torch.arange(tokens - step) for step in range(len(said["logits"]))]
    found = draft(features, embeds, [tokens + 1], wanted)
    for step, logits in enumerate(found):
        assert torch.allclose(logits, said["logits"][step][: tokens - step], atol=1e-4, rtol=1e-4), f"step {step}"


@pytest.fixture(scope="module")
def speculators() -> Path:
    """A folder with speculators, for PYTHONPATH."""
    return packages(SPECULATORS)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of the drafts' sizes: speculators' loader reads its embedding, its last norm and its head."""
    folder = tmp_path_factory.mktemp("verifier")
    config = LlamaConfig(
        vocab_size=80,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=256,
    )
    build: Any = LlamaForCausalLM
    build(config).save_pretrained(folder)
    return folder


def asked(speculators: Path, exported: Path, said: Path) -> list[tuple[float, float]]:
    """How far speculators' own forward of an export is from what was said, and how large that is; of each step."""
    done = subprocess.run(
        [sys.executable, "published/tools.py", "load", str(exported), str(said)],
        cwd=MADE.parents[1],
        env=os.environ | {"PYTHONPATH": str(speculators), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    apart = [(step[0], step[1]) for step in json.loads(done.stdout.splitlines()[-1])]
    assert len(apart) == STEPS
    return apart


@pytest.mark.long
@pytest.mark.parametrize("tool", ["specforge", "speculators"])
def test_what_is_exported_speculators_own_loader_loads_and_its_forward_says_what_the_tools_said(
    tool: str, speculators: Path, verifier: Path, tmp_path: Path
) -> None:
    assert main(["export", str(MADE / tool), str(tmp_path / "out"), "--target", str(verifier)]) == 0
    apart = asked(speculators, tmp_path / "out", MADE / f"{tool}.safetensors")
    assert all(difference < 1e-4 < 0.1 < size for difference, size in apart), apart


@pytest.mark.long
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling.rope_type)
@torch.no_grad()
def test_its_forward_says_what_ours_says_of_a_draft_with_rows_in_another_order_and_positions_scaled(
    made: drafts.Made, scaling: Scaling, speculators: Path, tmp_path: Path
) -> None:
    original, draft = drafts.original_of_kind(made, Kind(modelopt, {"rope_scaling": scaling}))
    (tmp_path / "published").mkdir()
    modelopt(original, tmp_path / "published")
    words = ["export", str(tmp_path / "published"), str(tmp_path / "out"), "--target", str(made.target)]
    assert main(words) == 0
    noise = torch.Generator().manual_seed(0)
    features = torch.randn(TOKENS, len(corpus.LAYERS) * corpus.HIDDEN, generator=noise)
    embeds = torch.randn(TOKENS + 1, corpus.HIDDEN, generator=noise)
    whole = torch.cat([features, features[-1:]])
    said = draft(whole, embeds, [TOKENS + 1], [torch.arange(TOKENS - step) for step in range(STEPS)])
    rows = [torch.nn.functional.pad(logits, (0, 0, 0, step)) for step, logits in enumerate(said)]
    save_file({"features": features, "embeds": embeds, "logits": torch.stack(rows)}, tmp_path / "said.safetensors")
    apart = asked(speculators, tmp_path / "out", tmp_path / "said.safetensors")
    assert all(difference < 1e-4 < 0.01 < size for difference, size in apart), apart
