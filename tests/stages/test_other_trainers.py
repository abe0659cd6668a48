"""The examples for other trainers with those trainers themselves, as published, on a CPU: installed where they are not yet."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

from eagle3_api.artifacts import REPORT, WEIGHTS
from eagle3_api.jobs import ExitCode
from eagle3_draft.convert import run as convert
from published.installed import SPECFORGE, SPECULATORS, packages
from served.extraction import python_path
from stages.supervised import supervised
from unit.convert import drafts
from unit.train import corpus

pytestmark = [pytest.mark.stages, pytest.mark.long, pytest.mark.timeout(1200)]

PATIENCE = 1000
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Trainer:
    """One.

    Attributes:
        distributions: what it needs beside what is installed here.
        arguments: what a CPU needs: no kernels for GPUs, no FSDP1, and for speculators float32.
        epochs: SpecForge takes a step a conversation, and a second for it in Triton's interpreter.
        first: a folder to be found before all others.
    """

    distributions: Sequence[str]
    arguments: str
    epochs: int
    first: Path | None = None


TRAINERS = {
    "speculators": Trainer(
        SPECULATORS,
        "--draft-arch llama --num-workers 0 --hidden-states-dtype float32 --draft-attn-impl sdpa "
        "--loss-implementation eager",
        epochs=12,
        first=Path(__file__).with_name("without_gpu"),
    ),
    "specforge": Trainer(SPECFORGE, "training.fsdp_sharding=NO_SHARD training.attention_backend=sdpa", epochs=10),
}


def command(name: str) -> list[str]:
    """The example's script as a container would run it, in a Python that has the trainer."""
    trainer = TRAINERS[name]
    first = [trainer.first] if trainer.first is not None else []
    path = os.pathsep.join([python_path(*first), str(packages(trainer.distributions))])
    variables = {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1"}
    script = REPOSITORY / "examples" / "trainers" / f"{name}_train.py"
    told = [f"{name}={value}" for name, value in variables.items()]
    return ["env", *told, sys.executable, str(script), *trainer.arguments.split()]


@pytest.mark.parametrize("name", TRAINERS)
def test_what_another_trainer_learnt_from_our_features_is_measured_and_converted(name: str, tmp_path: Path) -> None:
    made = corpus.make(tmp_path, train=48, held_out=6)
    settings = {"epochs": TRAINERS[name].epochs, "tokens_per_step": 160, "learning_rate": 3e-3}
    config = corpus.train_config(made, tmp_path, trainer=command(name), **settings)
    with supervised(config, tmp_path / "pod") as process:
        assert process.wait(PATIENCE) == ExitCode.DONE, (tmp_path / "pod" / "log").read_text()[-4000:]
    result = json.loads((tmp_path / "draft" / REPORT).read_text())["result"]
    assert result["steps"] == 0  # none of ours
    assert result["accuracy"][0] > 0.2, "it has learnt nothing of what the target says: other layers, or another norm?"
    trained = drafts.Made(made.target, tmp_path / "draft")
    convert(drafts.convert_config(trained, tmp_path / "converted", trained_key=config.key))
    assert "midlayer.self_attn.q_proj.weight" in load_file(tmp_path / "converted" / WEIGHTS)
