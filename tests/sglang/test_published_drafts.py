"""Converted drafts in SGLang's own model class: every parameter gets its value, and what they say is what the reference says."""

import os
import re
import subprocess
from functools import partial
from pathlib import Path

import environment
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3_api.artifacts import CONFIG, WEIGHTS
from eagle3_draft.convert import parity, run
from eagle3_draft.model import Draft, DraftConfig
from eagle3_draft.model.attention import Cache
from eagle3_draft.model.config import LinearScaling, Llama3Scaling, YarnScaling
from eagle3_draft.model.rope import Rotary
from published.kinds import KINDS, LATENT
from published.layouts import LAYOUTS, ROUNDED, Original
from unit.convert import drafts
from unit.train import corpus

pytestmark = pytest.mark.timeout(600)

LATENT_TARGET = "DeepseekV3ForCausalLM"

#: Drafts of our own, each with what EAGLE-3's has not.
VARIANTS: dict[str, dict[str, object]] = {
    "a norm for each state": {"fc_norm": True},
    "a norm before fc": {"norm_before_fc": True},
    "normed states fed back": {"norm_output": True},
    "biases": {"fc_bias": True, "output_bias": True},
    "a bias of fc alone": {"fc_bias": True},
    "no groups, narrow heads": {"heads": 2, "head_dim": 24},
    "groups, wide heads": {"heads": 4, "kv_heads": 2, "head_dim": 24},
    "linear rope": {"rope_scaling": LinearScaling(rope_type="linear", factor=4.0)},
    "llama3 rope": {
        "rope_scaling": Llama3Scaling(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
        )
    },
    "yarn rope": {"rope_scaling": YarnScaling(rope_type="yarn", factor=8.0, original_max_position_embeddings=16)},
    "yarn rope, all said": {
        "rope_scaling": YarnScaling(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            beta_fast=4.0,
            beta_slow=2.0,
            attn_factor=0.9,
            mscale=0.7,
            mscale_all_dim=0.4,
            truncate=False,
        )
    },
    "one state": {"layers": [0]},
    "one state, with norms and biases that nobody reads": {
        "layers": [0],
        "fc_norm": True,
        "norm_before_fc": True,
        "fc_bias": True,
    },
    "two states, both norms, biases, yarn": {
        "layers": [0, 1],
        "fc_norm": True,
        "norm_before_fc": True,
        "fc_bias": True,
        "output_bias": True,
        "rope_scaling": YarnScaling(rope_type="yarn", factor=8.0, original_max_position_embeddings=16),
    },
    "three layers": {"depth": 3},
    "latent attention": LATENT,
    "latent attention, plain rope": LATENT | {"rope_scaling": None},
    "latent attention, EAGLE-3.1": LATENT
    | {
        "fc_norm": True,
        "norm_output": True,
        "fc_bias": True,
        "rope_scaling": YarnScaling(
            rope_type="yarn",
            factor=8.0,
            original_max_position_embeddings=16,
            beta_fast=4.0,
            mscale=1.0,
            mscale_all_dim=0.6,
        ),
    },
    "all": {"depth": 2, "fc_norm": True, "norm_before_fc": True, "norm_output": True, "output_bias": True},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> drafts.Made:
    return drafts.make(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def original(made: drafts.Made) -> Original:
    return drafts.original_of(made)


@pytest.fixture(scope="module")
def inputs(made: drafts.Made) -> dict[str, Tensor]:
    """One held-out conversation: states, and the tokens that follow with their embeddings."""
    sample = parity.read_held_out(made.trained)[0]
    embedding = load_file(made.target / "model.safetensors")["model.embed_tokens.weight"]
    following = sample.input_ids[1:].long()
    return {
        "features": sample.hidden[:-1].contiguous(),
        "tokens": following,
        "embeds": embedding[following].contiguous(),
    }


@pytest.fixture(scope="module")
def kinds(made: drafts.Made) -> dict[str, tuple[Original, Draft]]:
    return {name: drafts.original_of_kind(made, kind) for name, kind in KINDS.items()}


def made_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def loaded(
    made: drafts.Made,
    original: Original,
    kinds: dict[str, tuple[Original, Draft]],
    inputs: dict[str, Tensor],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Tensor]]:
    """What SGLang has of each draft, and what it answers; all in one process."""
    root = tmp_path_factory.mktemp("published")
    latent = drafts.for_architecture(made, root / "latent-target", LATENT_TARGET)
    folders = []
    for number, switches in enumerate(VARIANTS.values()):
        for_target = latent if "latent" in switches else made
        variant = drafts.with_switches(for_target, root / f"variant-{number}", switches)
        layers = switches.get("layers", corpus.LAYERS)
        run(drafts.convert_config(variant, root / f"converted-{number}", layers=layers))
        folders.append(root / f"converted-{number}")
    for name, layout in LAYOUTS.items():
        layout(original, made_folder(root / f"published {name}"))
        drafts.adopt(made, root / f"out {name}", root / f"published {name}")
        folders.append(root / f"out {name}")
    for name, kind in KINDS.items():
        kind.layout(kinds[name][0], made_folder(root / f"published {name}"))
        for_target = latent if kind.architecture == LATENT_TARGET else made
        layers = kinds[name][0].layers
        drafts.adopt(for_target, root / f"out {name}", root / f"published {name}", layers=list(layers))
        folders.append(root / f"out {name}")
    save_file(inputs, root / "inputs.safetensors")
    python = environment.ensure() / "bin" / "python3"
    variables = {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    variables |= {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    script = Path(__file__).with_name("loading.py")
    command = [python, script, made.target, root / "inputs.safetensors", root, *folders]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    trained = {f"variant {name}": load_file(root / f"variant-{n}" / WEIGHTS) for n, name in enumerate(VARIANTS)}
    names = (*VARIANTS, *LAYOUTS, *KINDS)
    return trained | {name: load_file(root / f"{number}.safetensors") for number, name in enumerate(names)}


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
    return by_target_ids(rows, original.ids)


@pytest.mark.parametrize("name", [*LAYOUTS, *KINDS, *VARIANTS])
def test_sglang_fills_every_parameter_of_a_converted_draft(loaded: dict[str, dict[str, Tensor]], name: str) -> None:
    empty = {parameter for parameter, value in loaded[name].items() if not value.isfinite().all()}
    # SGLang's deeper layers have a norm of embeddings, which they never read
    unread = re.compile(r"model\.layers\.[1-9]\.input_layernorm\.weight")
    assert not [parameter for parameter in empty if not unread.fullmatch(parameter)]


@torch.no_grad()
@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_draft_says_in_sglang_what_it_said_in_training(
    made: drafts.Made, inputs: dict[str, Tensor], loaded: dict[str, dict[str, Tensor]], name: str
) -> None:
    sizes = DraftConfig.model_validate_json((made.trained / CONFIG).read_bytes()).model_copy(update=VARIANTS[name])
    draft = Draft(sizes)
    draft.load_state_dict(loaded[f"variant {name}"])
    features = inputs["features"][:, : len(sizes.layers) * corpus.HIDDEN]
    logits, fed_back = first_step(draft, features, inputs["embeds"])
    close = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
    close(loaded[name]["logits"], logits)
    close(loaded[name]["fed_back"], fed_back)


@pytest.mark.parametrize("name", LAYOUTS)
def test_sglangs_layers_say_what_the_reference_says(
    made: drafts.Made, original: Original, inputs: dict[str, Tensor], loaded: dict[str, dict[str, Tensor]], name: str
) -> None:
    tolerance = 0.05 if name in ROUNDED else 1e-4
    assert torch.allclose(
        by_target_ids(loaded[name]["logits"], loaded[name]["hot_token_id"]),
        reference(made, original, inputs),
        atol=tolerance,
        rtol=0,
    )


@pytest.mark.parametrize("name", KINDS)
def test_a_published_draft_of_another_kind_says_in_sglang_what_it_said_where_it_was_trained(
    kinds: dict[str, tuple[Original, Draft]],
    inputs: dict[str, Tensor],
    loaded: dict[str, dict[str, Tensor]],
    name: str,
) -> None:
    original, draft = kinds[name]
    embedding = original.embedding
    assert embedding is not None
    logits, fed_back = first_step(draft, inputs["features"], embedding[inputs["tokens"]])
    whole = draft.config.draft_vocabulary_size == draft.config.vocabulary_size
    assert whole == ("hot_token_id" not in loaded[name])
    ids = loaded[name].get("hot_token_id", original.ids)
    close = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
    close(by_target_ids(loaded[name]["logits"], ids), by_target_ids(logits, original.ids))
    close(loaded[name]["fed_back"], fed_back)


def by_target_ids(logits: Tensor, ids: Tensor) -> Tensor:
    """(tokens, draft vocabulary) -> (tokens, vocabulary); tokens that the draft does not know are impossible."""
    return torch.full((len(logits), corpus.VOCABULARY), float("-inf")).index_copy(1, ids, logits)


@torch.no_grad()
def first_step(draft: Draft, features: Tensor, embeds: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of one text's first step, and the states that the next one would read."""
    hidden, tokens = draft.reduce(features), len(features)
    turn = Rotary(draft.config, hidden.device).at(torch.arange(tokens))
    for layer in draft.decoder_layers:
        hidden = layer(embeds, hidden, turn, Cache(), [tokens])
    normed = draft.norm(hidden)
    return draft.lm_head(normed), normed if draft.config.norm_output else hidden
