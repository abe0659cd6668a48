"""speculators as the trainer of an Eagle3Draft (docs/trainers.md): our features in, its own training, its best checkpoint out.

usage: speculators_train.py [further flags of speculators' trainer]
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle3_draft.features import Features, Sample
from eagle3_draft.features.scaled import restored
from eagle3_draft.features.teaching import LastState


def main() -> None:
    config: dict[str, Any] = json.loads(Path(os.environ["EAGLE3_CONFIG"]).read_text())["config"]
    work, output = Path(os.environ["EAGLE3_WORK"]), Path(os.environ["EAGLE3_OUTPUT"])
    features = Features.open(Path(config["features"]))
    write_states(features, final_norm(Path(config["target"])), work / "data" / "hidden_states")
    write_conversations(features, work / "data")
    command = [sys.executable, *launcher(config["processes"]), "-m", "speculators.train", *flags(config, work)]
    if code := subprocess.run([*command, *sys.argv[1:]], check=False).returncode:
        sys.exit(code)
    shutil.copytree(work / "runs" / "checkpoint_best", output, dirs_exist_ok=True)


def write_states(features: Features, norm: Tensor, folder: Path) -> None:
    """One file a conversation, under the name by which speculators finds what its vLLM has stored."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(features.train):
        path = folder / f"hs_{number}.safetensors"
        if not path.exists():
            partial = path.with_suffix(".partial")
            save_file(states(sample, norm), partial)
            partial.rename(path)


def states(sample: Sample, norm: Tensor) -> dict[str, Tensor]:
    """A conversation's tokens, and (tokens, layers + 1, hidden): the layers' outputs and the last one before the final norm.

    Our last state is *after* that norm, which speculators applies itself. Divided by the norm's weight, a row has the mean
    square 1, so that the norm makes of it what it was.
    """
    teaching = sample.teaching
    if not isinstance(teaching, LastState):
        raise SystemExit("speculators learns from last hidden states: set extract.teacher to LastState")
    last = restored(teaching.last, teaching.last_scale, torch.float32) / norm
    layers = sample.states(torch.bfloat16).view(len(sample), -1, last.shape[-1])
    return {
        "token_ids": sample.input_ids.long(),
        "hidden_states": torch.cat([layers, last[:, None].bfloat16()], dim=1),
    }


def final_norm(target: Path) -> Tensor:
    """The weight of the target's final norm, (hidden), float32."""
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a handle is no mapping
                if name == "norm.weight" or name.endswith(".norm.weight"):
                    weight: Tensor = file.get_tensor(name).float()
                    if bool((weight == 0).any()):
                        raise SystemExit(f"{name} of the target has zeros: its states before the norm are lost")
                    return weight
    raise SystemExit(f"the target in {target} has no final norm that is called norm.weight")


def write_conversations(features: Features, folder: Path) -> None:
    """The data set that speculators' ``prepare_data.py`` makes, and how often each token is the assistant's."""
    from datasets import Dataset  # of speculators' own environment

    samples = list(features.train)
    data = Dataset.from_dict(
        {
            "input_ids": [sample.input_ids.tolist() for sample in samples],
            "loss_mask": [sample.loss_mask.tolist() for sample in samples],
            "seq_len": [len(sample) for sample in samples],
        }
    )
    data.set_format(type="torch")
    data.save_to_disk(str(folder))
    torch.save(frequencies(samples), folder / "token_freq.pt")


def frequencies(samples: list[Sample]) -> dict[int, int]:
    """How often each token is the assistant's."""
    return dict(Counter(token for sample in samples for token in sample.input_ids[sample.loss_mask.bool()].tolist()))


def launcher(processes: int) -> list[str]:
    """What starts the trainer. One process needs nothing, and with torchrun speculators asks for a GPU."""
    if processes == 1:
        return []
    return ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]


def flags(config: dict[str, Any], work: Path) -> list[str]:
    """What the object says, in speculators' words; and EAGLE-3 as SGLang serves it, without its defaults beyond that."""
    asked = {
        "--speculator-type": "eagle3",
        "--verifier-name-or-path": config["target"],
        "--data-path": work / "data",
        "--save-path": work / "runs",
        "--on-missing": "raise",
        "--draft-vocab-size": config["vocabularySize"],
        "--epochs": config["epochs"],
        "--lr": config["learningRate"],
        "--ttt-steps": config["unrollSteps"],
        "--total-seq-len": config["tokensPerStep"],
        "--seed": config["seed"],
    }
    # vLLM numbers layers by their input: one more than the layer whose output it is
    layers = ["--target-layer-ids", *(str(layer + 1) for layer in config["layers"])]
    served = ["--no-norm-before-residual", "--no-norm-before-fc", "--no-norm-output", "--full-attention-indices", "0"]
    return [str(word) for pair in asked.items() for word in pair] + layers + served + ["--save-best"]


if __name__ == "__main__":
    main()
