"""Drafts that are more, or less, than EAGLE-3's one Llama layer, each in the layout of those who publish it.

As in ``layouts``, from public descriptions; the fields that make a draft another kind are ``DraftConfig``'s.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file, save_file

from eagle3_api.artifacts import CONFIG
from eagle3_draft.model.config import Latent, YarnScaling
from published.layouts import MODELOPT, Layout, Original, eagle_config, modelopt, specforge, speculators, write_config

LATENT_SIZES = Latent(q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10)

#: Latent attention on a target of four layers. SGLang cannot be told of layer 0 there, hence the embedding.
LATENT: dict[str, object] = {
    "layers": [-1, 1, 2],
    "latent": LATENT_SIZES,
    "kv_heads": 4,
    "head_dim": 20,
    "rope_scaling": YarnScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale_all_dim=1.0),
}


@dataclass(frozen=True)
class Kind:
    """One.

    Attributes:
        layout: writes it.
        switches: what its ``DraftConfig`` has, beside the plain draft's.
        shares_head: it has the target's head, and leaves it out.
        architecture: of its target.
    """

    layout: Layout
    switches: Mapping[str, object] = field(default_factory=dict)
    shares_head: bool = False
    architecture: str = "LlamaForCausalLM"


def latent(draft: Original, folder: Path) -> None:
    """lightseekorg and others: SGLang's class and notation, which for such targets names inputs; ``layers.0``, offsets."""
    ids = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in draft.layers]}
    write_config(folder, draft.config(architectures=["Eagle3DeepseekV2ForCausalLM"], eagle_config=ids))
    maps = {"d2t": draft.offsets, "t2d": draft.members}
    save_file(draft.renamed("midlayer.", "layers.0.") | maps | draft.embedded, folder / "model.safetensors")


def latent_by_sglang(draft: Original, folder: Path) -> None:
    """The same with the configuration that SGLang's class left behind: it calls every scaling its own yarn, and knows no truncate."""
    latent(draft, folder)
    rope = json.loads((folder / CONFIG).read_text())["rope_scaling"]
    _say(folder, rope_scaling=rope | {"rope_type": "deepseek_yarn", "truncate": False})


def modelopt_latent(draft: Original, folder: Path) -> None:
    """ModelOpt for Kimi: the same names, layers by their output, and neither head nor map, for it has the target's."""
    named = eagle_config(draft) | MODELOPT
    write_config(folder, draft.config(architectures=["Eagle3DeepseekV2ForCausalLM"], eagle_config=named))
    weights = draft.renamed("midlayer.", "layers.0.")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors")


def modelopt_headless(draft: Original, folder: Path) -> None:
    """ModelOpt without a head, though the size of the draft's vocabulary is stated: the target's is meant."""
    write_config(folder, draft.config(eagle_config=eagle_config(draft) | MODELOPT))
    weights = draft.renamed("midlayer.", "layers.0.")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors")


def modelopt_deep(draft: Original, folder: Path) -> None:
    """ModelOpt of several layers, before March 2026: ``midlayer.{i}``, and Llama's own norms from the second on."""
    weights = {
        name.replace("midlayer.", "midlayer.0.")
        .replace("layers.1.hidden_norm.", "midlayer.1.input_layernorm.")
        .replace("layers.1.", "midlayer.1."): tensor.clone()
        for name, tensor in draft.weights.items()
    }
    write_config(folder, draft.config(num_hidden_layers=2, eagle_config=eagle_config(draft) | MODELOPT))
    save_file(weights | {"d2t": draft.offsets}, folder / "model.safetensors")


def modelopt_deep_new(draft: Original, folder: Path) -> None:
    """The same since: ``layers.{i}``."""
    modelopt(draft, folder)
    stored = load_file(folder / "model.safetensors")
    weights = {name.replace("layers.1.hidden_norm.", "layers.1.input_layernorm."): t for name, t in stored.items()}
    save_file(weights, folder / "model.safetensors")
    _say(folder, num_hidden_layers=2)


def torchspec_whole(draft: Original, folder: Path) -> None:
    """TorchSpec for vLLM, its head uncut: ``layers.0``, a row for every token and so no map, the target's embedding, no layers."""
    _torchspec(draft, folder)


def torchspec_latent(draft: Original, folder: Path) -> None:
    """The same for Kimi: ModelOpt's fields in ``eagle_config``, where layers are named by their *input*; yarn in its older spelling."""
    named = eagle_config(draft) | {"eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in draft.layers]} | MODELOPT
    rope = dict(draft.sizes["rope_scaling"])
    _torchspec(
        draft,
        folder,
        architectures=["Eagle3DeepseekV2ForCausalLM"],
        model_type="kimi_k2",
        eagle_config=named,
        rope_scaling={"type": rope.pop("rope_type"), **rope},
    )


def _torchspec(draft: Original, folder: Path, **config: object) -> None:
    write_config(folder, draft.config(_torchspec_version="0.1.0", use_cache=True, **config))
    weights = draft.renamed("midlayer.", "layers.0.") | draft.embedded
    save_file(weights, folder / "model.safetensors", metadata={"torchspec_version": "0.1.0"})


def specforge_newer(draft: Original, folder: Path) -> None:
    """EAGLE-3.1 as SpecForge left it first: the norms of the states by the depth of their layers."""
    specforge(draft, folder)
    old = {f"fc_norm.{number}.": f"aux_norm_{name}." for number, name in enumerate(("low", "mid", "high"))}
    stored = load_file(folder / "model.safetensors")
    renamed = {
        next((new + name.removeprefix(fc) for fc, new in old.items() if name.startswith(fc)), name): t
        for name, t in stored.items()
    }
    save_file(renamed, folder / "model.safetensors")
    _say(folder, use_aux_norm=True, norm_output=True)


def speculators_newer(draft: Original, folder: Path) -> None:
    """EAGLE-3.1 as speculators trains it: a norm for each state, and the normed state fed back."""
    speculators(draft, folder)
    _say(folder, fc_norm=True, norm_before_fc=False, norm_output=True)


def speculators_normed(draft: Original, folder: Path) -> None:
    """speculators' other one: ``input_norm``, over the states side by side."""
    speculators(draft, folder)
    _say(folder, fc_norm=False, norm_before_fc=True, norm_output=False)


def specforge_proportional(draft: Original, folder: Path) -> None:
    """A draft for a target with Gemma's rotary embedding of a part of each head, of which it took over all but the part."""
    specforge(draft, folder)
    _say(folder, rope_parameters={"rope_type": "proportional", "rope_theta": 10_000.0})


#: A head for every token of the tests' target.
WHOLE = {"draft_vocabulary_size": 150}

KINDS: dict[str, Kind] = {
    "latent": Kind(latent, LATENT, architecture="DeepseekV3ForCausalLM"),
    "latent, as SGLang calls its rope": Kind(latent_by_sglang, LATENT, architecture="DeepseekV3ForCausalLM"),
    "ModelOpt, latent": Kind(modelopt_latent, LATENT | WHOLE, shares_head=True, architecture="DeepseekV3ForCausalLM"),
    "ModelOpt, no head": Kind(modelopt_headless, WHOLE, shares_head=True),
    "ModelOpt, two layers": Kind(modelopt_deep_new, {"depth": 2}),
    "ModelOpt, two layers, old": Kind(modelopt_deep, {"depth": 2}),
    "TorchSpec, for vLLM": Kind(torchspec_whole, WHOLE),
    "TorchSpec, latent, for vLLM": Kind(torchspec_latent, LATENT | WHOLE, architecture="DeepseekV3ForCausalLM"),
    "SpecForge, EAGLE-3.1": Kind(specforge_newer, {"fc_norm": True, "norm_output": True}),
    "SpecForge, an embedding of its own": Kind(specforge, {"hidden_size": 24, "head_dim": 8}),
    "SpecForge, proportional rope": Kind(specforge_proportional),
    "speculators, EAGLE-3.1": Kind(speculators_newer, {"fc_norm": True, "norm_output": True}),
    "speculators, norm_before_fc": Kind(speculators_normed, {"norm_before_fc": True}),
}


def _say(folder: Path, **fields: object) -> None:
    """Fields into a configuration that was written."""
    config = json.loads((folder / CONFIG).read_text())
    write_config(folder, config | fields)
