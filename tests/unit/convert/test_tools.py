"""What the public trainers' own code wrote is read, and says after conversion what it said there.

The folders were made by ``published/tools.py`` in the tools' own environments; see there.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_api.checkpoints import Form, Served, Target, check, read_folder, read_form, report, resolve_layers
from eagle3_api.sglang import NEWEST, capture_ids
from eagle3_draft.convert.emit import emit
from eagle3_draft.convert.parity import read_converted

MADE = Path(__file__).parents[2] / "published" / "made"
FAMILIES = {
    "speculators": "speculators",
    "specforge": "SpecForge or SGLang",
    "specforge-training": "SpecForge training state",
}
LAYERS = [1, 2, 4]
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
