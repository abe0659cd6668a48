"""Published drafts, converted, in SGLang's own model class: every parameter gets its value, and the logits are the reference's."""

import json
import os
import subprocess
from pathlib import Path

import environment
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3_api.artifacts import CONFIG
from eagle3_draft.convert import parity, run
from eagle3_draft.model import Draft, DraftConfig
from published.layouts import LAYOUTS, Original
from unit.convert import drafts
from unit.train import corpus

pytestmark = pytest.mark.timeout(600)

NAMES = ("EAGLE official", "ModelOpt", "speculators", "NeMo Automodel")
NEWER = "EAGLE-3.1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> drafts.Made:
    return drafts.make(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def original(made: drafts.Made) -> Original:
    return drafts.original_of(made)


@pytest.fixture(scope="module")
def norms() -> list[Tensor]:
    """EAGLE-3.1's norms of the auxiliary states."""
    return [1 + 0.3 * torch.randn(corpus.HIDDEN) for _ in corpus.LAYERS]


def newer(draft: Original, norms: list[Tensor], folder: Path) -> None:
    """A draft of EAGLE-3.1 as SpecForge leaves it, in the older names of its norms."""
    LAYOUTS["SpecForge"](draft, folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"use_aux_norm": True, "norm_output": True}))
    named = {f"aux_norm_{name}.weight": norm for name, norm in zip(("low", "mid", "high"), norms, strict=True)}
    weights = folder / "model.safetensors"
    save_file(load_file(weights) | named, weights)


@pytest.fixture(scope="module")
def inputs(made: drafts.Made) -> dict[str, Tensor]:
    """One held-out conversation: states, and the embeddings of the tokens that follow."""
    sample = parity.read_held_out(made.trained)[0]
    embedding = load_file(made.target / "model.safetensors")["model.embed_tokens.weight"]
    return {
        "features": sample.hidden[:-1].contiguous(),
        "embeds": embedding[sample.input_ids[1:].long()].contiguous(),
    }


@pytest.fixture(scope="module")
def loaded(
    made: drafts.Made,
    original: Original,
    norms: list[Tensor],
    inputs: dict[str, Tensor],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Tensor]]:
    """What SGLang has of each draft, and what it answers; all in one process."""
    root = tmp_path_factory.mktemp("published")
    folders = []
    for number, name in enumerate((*NAMES, NEWER)):
        published = root / f"published-{number}"
        published.mkdir()
        if name == NEWER:
            newer(original, norms, published)
        else:
            LAYOUTS[name](original, published)
        run(drafts.adopt_config(made, root / f"out-{number}", published))
        folders.append(root / f"out-{number}")
    save_file(inputs, root / "inputs.safetensors")
    python = environment.ensure() / "bin" / "python3"
    variables = {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    variables |= {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    script = Path(__file__).with_name("loading.py")
    command = [python, script, made.target, root / "inputs.safetensors", root, *folders]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: load_file(root / f"{number}.safetensors") for number, name in enumerate((*NAMES, NEWER))}


@torch.no_grad()
def reference(made: drafts.Made, original: Original, inputs: dict[str, Tensor]) -> Tensor:
    """The first step's logits by the target's ids, from the draft as it was trained."""
    draft = Draft(DraftConfig.model_validate_json((made.trained / CONFIG).read_bytes()))
    draft.load_state_dict(dict(original.weights))
    tokens = len(inputs["features"])
    # The model shifts embeddings itself; the last position has no token to come
    features = torch.cat([inputs["features"], inputs["features"][-1:]])
    embeds = torch.cat([inputs["embeds"][:1], inputs["embeds"]])
    rows = draft(features, embeds, [tokens + 1], [torch.arange(tokens)])[0]
    return torch.full((tokens, corpus.VOCABULARY), float("-inf")).index_copy(1, original.ids, rows)


@pytest.mark.parametrize("name", [*NAMES, NEWER])
def test_sglang_fills_every_parameter_of_a_converted_draft(loaded: dict[str, dict[str, Tensor]], name: str) -> None:
    assert {parameter: bool(value.isfinite().all()) for parameter, value in loaded[name].items()} == dict.fromkeys(
        loaded[name], True
    )


@pytest.mark.parametrize("name", NAMES)
def test_sglangs_layers_say_what_the_reference_says(
    made: drafts.Made, original: Original, inputs: dict[str, Tensor], loaded: dict[str, dict[str, Tensor]], name: str
) -> None:
    logits, ids = loaded[name]["logits"], loaded[name]["hot_token_id"]
    said = torch.full((len(logits), corpus.VOCABULARY), float("-inf")).index_copy(1, ids, logits)
    tolerance = 0.05 if name == "EAGLE official" else 1e-4
    assert torch.allclose(said, reference(made, original, inputs), atol=tolerance, rtol=0)


def test_the_newer_drafts_norms_reach_sglang(
    made: drafts.Made,
    original: Original,
    norms: list[Tensor],
    inputs: dict[str, Tensor],
    loaded: dict[str, dict[str, Tensor]],
) -> None:
    chunks = zip(inputs["features"].chunk(len(norms), -1), norms, strict=True)
    normed = torch.cat([torch.nn.functional.rms_norm(chunk, (len(norm),), norm, 1e-6) for chunk, norm in chunks], -1)
    logits, ids = loaded[NEWER]["logits"], loaded[NEWER]["hot_token_id"]
    said = torch.full((len(logits), corpus.VOCABULARY), float("-inf")).index_copy(1, ids, logits)
    assert torch.allclose(said, reference(made, original, inputs | {"features": normed}), atol=1e-4, rtol=0)
