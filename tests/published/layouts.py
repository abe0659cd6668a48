"""One and the same draft in the layouts of those who publish drafts, built from their public descriptions.

Each function writes a folder as that family's tool leaves it: file names, prefixes, types, spellings, what is there and what is not.
Source: the families' export code, as named in ``eagle3_api.checkpoints.readers``.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True)
class Original:
    """A draft, in neutral terms.

    Attributes:
        weights: by SGLang's names.
        ids: the target's id of each row of the head; increasing.
        sizes: of the layer, as Transformers spells them, ``vocab_size`` (the target's) included.
        layers: whose outputs it reads.
        embedding: (vocabulary, hidden), which some families leave in the checkpoint; None where nobody knows it.
    """

    weights: Mapping[str, Tensor]
    ids: Tensor
    sizes: Mapping[str, Any]
    layers: tuple[int, ...]
    embedding: Tensor | None = None

    @property
    def offsets(self) -> Tensor:
        """d2t."""
        return self.ids - torch.arange(len(self.ids))

    @property
    def members(self) -> Tensor:
        """t2d."""
        return torch.zeros(self.sizes["vocab_size"], dtype=torch.bool).index_fill(0, self.ids, True)

    def config(self, **changes: Any) -> dict[str, Any]:
        """The older spelling of everything, as most families have it; a field that is ``...`` is left out."""
        whole = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "draft_vocab_size": len(self.ids),
            "tie_word_embeddings": False,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "torch_dtype": "bfloat16",
            **self.sizes,
            **changes,
        }
        return {name: value for name, value in whole.items() if value is not ...}

    @property
    def embedded(self) -> dict[str, Tensor]:
        """The embedding by its name, if it is known."""
        return {} if self.embedding is None else {"embed_tokens.weight": self.embedding.clone()}

    def renamed(self, old: str, new: str, prefix: str = "") -> dict[str, Tensor]:
        """The weights with other names."""
        return {prefix + name.replace(old, new): tensor.clone() for name, tensor in self.weights.items()}


def eagle(draft: Original, folder: Path) -> None:
    """yuhuili/EAGLE3-*: one .bin of torch.save in fp16, no embedding, no layers."""
    weights = {name: tensor.half() for name, tensor in draft.weights.items()}
    write_config(folder, draft.config(torch_dtype="float16"))
    torch.save(weights | {"d2t": draft.offsets, "t2d": draft.members}, folder / "pytorch_model.bin")


def eagle_sharded(draft: Original, folder: Path) -> None:
    """The same in two .bin files with an index, as Transformers split them."""
    weights = {name: tensor.half() for name, tensor in draft.weights.items()}
    write_config(folder, draft.config(torch_dtype="float16"))
    _shards(weights | {"d2t": draft.offsets, "t2d": draft.members}, folder, "pytorch_model", "bin", torch.save)


def specforge(draft: Original, folder: Path) -> None:
    """lmsys and others: safetensors in SGLang's own names, with the target's embedding."""
    write_config(folder, draft.config(eagle_config=eagle_config(draft)))
    save_file(_whole(draft) | draft.embedded, folder / "model.safetensors")


def sharded(draft: Original, folder: Path) -> None:
    """The same in two files with an index."""
    _shards(_whole(draft), folder, "model", "safetensors", save_file)
    write_config(folder, draft.config(eagle_config=eagle_config(draft)))


def training_state(draft: Original, folder: Path) -> None:
    """SpecForge in training: the draft under a prefix, beside the optimiser's state and the step."""
    state = {f"draft_model.{name}": tensor for name, tensor in _whole(draft).items()}
    optimizer = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(4)}}, "lr": 1e-4}
    torch.save({"model": state, "optimizer": optimizer, "epoch": 1, "run": "a"}, folder / "training_state.pt")
    write_config(folder, draft.config(eagle_config=eagle_config(draft)))


def modelopt(draft: Original, folder: Path) -> None:
    """ModelOpt since March 2026: ``layers.0``, no t2d, rows in order of frequency, so that offsets can be negative."""
    order = torch.randperm(len(draft.ids), generator=torch.Generator().manual_seed(3))
    weights = draft.renamed("midlayer.", "layers.0.")
    weights["lm_head.weight"] = weights["lm_head.weight"][order].contiguous()
    offsets = draft.ids[order] - torch.arange(len(order))
    assert offsets.min() < 0
    write_config(folder, draft.config(eagle_config=eagle_config(draft) | MODELOPT))
    save_file(weights | {"d2t": offsets}, folder / "model.safetensors")


def modelopt_old(draft: Original, folder: Path) -> None:
    """ModelOpt before: ``midlayer``, and nulls where it had nothing to say."""
    config = draft.config(eagle_config=eagle_config(draft) | MODELOPT, target_hidden_size=None, head_dim=None)
    write_config(folder, config)
    save_file({**draft.renamed("", ""), "d2t": draft.offsets}, folder / "model.safetensors")


def modelopt_memory(draft: Original, folder: Path) -> None:
    """ModelOpt in memory: the draft inside of the model, and the map in a file of its own."""
    base = {"model.norm.weight": torch.zeros(4), "lm_head.weight": torch.zeros(8, 4)}
    write_config(folder, draft.config(eagle_config=eagle_config(draft) | MODELOPT))
    save_file(draft.renamed("midlayer.", "layers.0.", "eagle_module.") | base, folder / "model.safetensors")
    torch.save(draft.offsets, folder / "d2t.pt")


def modelopt_first(draft: Original, folder: Path) -> None:
    """ModelOpt's first ones, in memory: the norms of what the layer reads beside it, and a head with a name of its own."""
    first = {
        "midlayer.hidden_norm.": "hidden_norm.",
        "midlayer.input_layernorm.": "input_embeds_norm.",
        "midlayer.": "layers.0.",
        "lm_head.": "eagle_lm_head.",
    }
    weights = {}
    for name, tensor in draft.weights.items():
        old, new = next(((old, new) for old, new in first.items() if name.startswith(old)), ("", ""))
        weights[f"eagle_module.{new}{name.removeprefix(old)}"] = tensor.clone()
    write_config(folder, draft.config(eagle_config=eagle_config(draft) | MODELOPT))
    save_file(weights, folder / "model.safetensors")
    torch.save(draft.offsets, folder / "d2t.pt")


def speculators(draft: Original, folder: Path) -> None:
    """speculators: the layer's sizes nested, layers at the top as inputs, ``layers.0``, what it kept of the verifier."""
    layer = {name: value for name, value in draft.config().items() if name not in ("architectures", "draft_vocab_size")}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "transformer_layer_config": layer | {"tie_word_embeddings": True},
        "draft_vocab_size": len(draft.ids),
        "norm_before_residual": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in draft.layers],
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "some/model"}},
    }
    write_config(folder, config)
    kept = draft.embedded | {"verifier_lm_head.weight": torch.zeros(4, 4)}
    maps = {"d2t": draft.offsets, "t2d": draft.members}
    save_file(draft.renamed("midlayer.", "layers.0.") | maps | kept, folder / "model.safetensors")


def automodel(draft: Original, folder: Path) -> None:
    """NeMo Automodel: ``model.layers.0``, the target's number of layers, absolute ids in a side file."""
    weights = draft.renamed("midlayer.", "layers.0.", "model.")
    weights["lm_head.weight"] = weights.pop("model.lm_head.weight")
    config = draft.config(
        architectures=["LlamaEagle3DraftModel"], num_hidden_layers=36, target_layer_ids=list(draft.layers)
    )
    write_config(folder, config)
    torch.save(weights, folder / "draft_model.pt")
    torch.save({"selected_token_ids": draft.ids, "step": 7}, folder / "eagle3_meta.pt")


def automodel_safetensors(draft: Original, folder: Path) -> None:
    """The same as it leaves it for serving: safetensors, and the ids alone in a file."""
    weights = draft.renamed("midlayer.", "layers.0.", "model.")
    weights["lm_head.weight"] = weights.pop("model.lm_head.weight")
    config = draft.config(
        architectures=["LlamaEagle3DraftModel"], num_hidden_layers=36, target_layer_ids=list(draft.layers)
    )
    write_config(folder, config)
    save_file(weights, folder / "model.safetensors")
    torch.save(draft.ids, folder / "speculative_token_map.pt")


def angelslim(draft: Original, folder: Path) -> None:
    """AngelSlim: SGLang's names under an architecture that SGLang does not know."""
    write_config(folder, draft.config(architectures=["Eagle3LlamaForCausalLM"], eagle_config=eagle_config(draft)))
    save_file(_whole(draft), folder / "model.safetensors")


def absolute(draft: Original, folder: Path) -> None:
    """d2t as absolute ids, as some exports have it, and the names that SGLang's own classes have."""
    weights = draft.renamed("midlayer.", "model.layers.0.")
    weights = {name if name.startswith(("model.", "lm_head.")) else f"model.{name}": t for name, t in weights.items()}
    write_config(folder, draft.config(eagle_config=eagle_config(draft)))
    save_file(weights | {"d2t": draft.ids.clone(), "t2d": draft.members}, folder / "model.safetensors")


def torchspec(draft: Original, folder: Path) -> None:
    """TorchSpec's export with its head cut: SGLang's names, the target's embedding, a version of its own, no layers."""
    write_config(folder, draft.config(_torchspec_version="0.1.0", use_sliding_window=False, sliding_window=None))
    save_file(_whole(draft) | draft.embedded, folder / "model.safetensors", metadata={"torchspec_version": "0.1.0"})


Layout = Callable[[Original, Path], None]

LAYOUTS: dict[str, Layout] = {
    "EAGLE official": eagle,
    "EAGLE official, sharded": eagle_sharded,
    "SpecForge": specforge,
    "SpecForge, sharded": sharded,
    "SpecForge training state": training_state,
    "ModelOpt": modelopt,
    "ModelOpt, old": modelopt_old,
    "ModelOpt, in memory": modelopt_memory,
    "ModelOpt, the first": modelopt_first,
    "speculators": speculators,
    "NeMo Automodel": automodel,
    "NeMo Automodel, safetensors": automodel_safetensors,
    "AngelSlim": angelslim,
    "TorchSpec": torchspec,
    "absolute ids": absolute,
}

#: Layouts that do not say which layers the draft reads.
SILENT = ("EAGLE official", "EAGLE official, sharded", "TorchSpec")

#: Layouts in fp16.
ROUNDED = ("EAGLE official", "EAGLE official, sharded")

#: What ModelOpt says beside them.
MODELOPT = {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False}


def eagle_config(draft: Original) -> dict[str, Any]:
    """Where SGLang and ModelOpt have the layers."""
    return {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(draft.layers)}


def _whole(draft: Original) -> dict[str, Tensor]:
    return {**draft.renamed("", ""), "d2t": draft.offsets, "t2d": draft.members}


def _shards(
    tensors: dict[str, Tensor], folder: Path, stem: str, kind: str, save: Callable[[dict[str, Tensor], Path], None]
) -> None:
    """Two files, and the index of what lies where."""
    names = sorted(tensors)
    files = {name: f"{stem}-0000{1 + 2 * i // len(names)}-of-00002.{kind}" for i, name in enumerate(names)}
    for file in sorted(set(files.values())):
        save({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / f"{stem}.{kind}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """config.json."""
    (folder / "config.json").write_text(json.dumps(config, indent=1))
