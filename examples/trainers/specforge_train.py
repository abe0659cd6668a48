"""SpecForge 0.3 as the trainer of an Eagle3Draft (docs/trainers.md): our features in, its offline training, its export out.

usage: specforge_train.py [SpecForge's own overrides, such as training.learning_rate=0.00005]
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from eagle3_draft.features import Features, Sample
from eagle3_draft.features.scaled import restored
from eagle3_draft.features.teaching import LastState

#: Files in one folder.
FOLDER = 2000

#: Of the target's configuration, what the draft's begins with.
SIZES = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "bos_token_id", "eos_token_id",
)  # fmt: skip


def main() -> None:
    config: dict[str, Any] = json.loads(Path(os.environ["EAGLE3_CONFIG"]).read_text())["config"]
    work, output = Path(os.environ["EAGLE3_WORK"]), Path(os.environ["EAGLE3_OUTPUT"])
    write_features(Features.open(Path(config["features"])), work / "features")
    (work / "draft.json").write_text(json.dumps(draft_config(config)))
    (work / "run.json").write_text(json.dumps(run_config(config, work)))  # which SpecForge reads as it reads YAML
    specforge("train", "--config", str(work / "run.json"), *resume(work), *sys.argv[1:])
    (checkpoint,) = (work / "runs").glob("*-latest")
    draft = ["--draft-config", str(work / "draft.json"), "--output-dir", str(output)]
    specforge("export", "--to", "sglang", "--checkpoint", str(checkpoint), *draft)


def specforge(*words: str) -> None:
    """Run SpecForge's command; where it fails this ends as it did, with its words the last ones."""
    if code := subprocess.run([sys.executable, "-m", "specforge.cli", *words], check=False).returncode:
        sys.exit(code)


def write_features(features: Features, folder: Path) -> None:
    """One file a conversation, as SpecForge's ``prepare_hidden_states.py`` writes them; what is there already stays."""
    for number, sample in enumerate(features.train):
        path = folder / f"rows_{number // FOLDER * FOLDER}-{(number // FOLDER + 1) * FOLDER}" / f"data_{number}.ckpt"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        torch.save(feature_file(sample), partial)
        partial.rename(path)


def feature_file(sample: Sample) -> dict[str, torch.Tensor]:
    """A conversation: the layers' outputs side by side, and the state that the target's head multiplies."""
    teaching = sample.teaching
    if not isinstance(teaching, LastState):
        raise SystemExit("SpecForge learns from last hidden states: set extract.teacher to LastState")
    return {
        "input_ids": sample.input_ids.long(),
        "loss_mask": sample.loss_mask.long(),
        "hidden_state": restored(teaching.last, teaching.last_scale, torch.bfloat16)[None],
        "aux_hidden_state": sample.states(torch.bfloat16)[None],
    }


def draft_config(config: dict[str, Any]) -> dict[str, Any]:
    """The draft's architecture, from the target's."""
    target = json.loads((Path(config["target"]) / "config.json").read_text())
    text = target.get("text_config") or target
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "draft_vocab_size": config["vocabularySize"],
        **{name: text[name] for name in SIZES if name in text},
    }


def run_config(config: dict[str, Any], work: Path) -> dict[str, Any]:
    """SpecForge's run: what the object says, in its words."""
    return {
        "run_id": "draft",
        "output_dir": str(work / "runs"),
        "model": {
            "target_model_path": str(indexed(Path(config["target"]), work / "target")),
            "draft_model_config": str(work / "draft.json"),
            "torch_dtype": "bfloat16",
        },
        "data": {"hidden_states_path": str(work / "features"), "cache_dir": str(work / "cache")},
        "training": {
            "strategy": "eagle3",
            "num_epochs": config["epochs"],
            "learning_rate": config["learningRate"],
            "ttt_length": config["unrollSteps"],
            "seed": config["seed"],
            "save_interval": 1000,
        },
        "deployment": {
            "mode": "local_colocated",
            "trainer": {"nnodes": 1, "nproc_per_node": config["processes"]},
        },
    }


def indexed(target: Path, folder: Path) -> Path:
    """The target with an index of its tensors, through which alone SpecForge finds the head: small ones have none."""
    if any(target.glob("*.index.json")):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, str] = {}
    for path in target.iterdir():
        link = folder / path.name
        if not link.exists():
            link.symlink_to(path.resolve())
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                names |= dict.fromkeys(file.keys(), path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


def resume(work: Path) -> Sequence[str]:
    """Go on from the last checkpoint of an earlier try, if there is one."""
    return [f"training.resume_from={found}" for found in (work / "runs").glob("*-latest")]


if __name__ == "__main__":
    main()
