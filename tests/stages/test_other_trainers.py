"""The examples for other trainers with those trainers themselves, as published, on a CPU. By hand: neither is installed here.

    SPECULATORS=PYTHON SPECFORGE=PYTHON .venv/bin/pytest -m long tests/stages/test_other_trainers.py

Each names a Python of 3.11 or newer that imports the trainer and what it needs (``docs/trainers.md`` has the versions).
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file

from eagle3_api.artifacts import REPORT, WEIGHTS
from eagle3_api.jobs import ExitCode
from eagle3_draft.convert import run as convert
from stages.supervised import supervised
from unit.convert import drafts
from unit.train import corpus

pytestmark = [pytest.mark.stages, pytest.mark.long, pytest.mark.timeout(1200)]

PATIENCE = 1000
REPOSITORY = Path(__file__).parents[2]
WITHOUT_GPU = Path(__file__).with_name("without_gpu")

#: What a CPU needs of each: no kernels for GPUs, no FSDP1, and for speculators float32.
ARGUMENTS = {
    "speculators": "--draft-arch llama --num-workers 0 --hidden-states-dtype float32 --draft-attn-impl sdpa "
    "--loss-implementation eager",
    "specforge": "training.fsdp_sharding=NO_SHARD training.attention_backend=sdpa",
}


#: SpecForge takes a step a conversation, and a second for it in Triton's interpreter.
EPOCHS = {"speculators": 12, "specforge": 10}


def command(trainer: str) -> Sequence[str]:
    """The example's script as a container would run it, in the trainer's own Python."""
    python = os.environ.get(trainer.upper())
    if python is None:
        pytest.skip(f"{trainer.upper()} names no Python that has {trainer}")
    paths = [str(REPOSITORY / "crds"), str(REPOSITORY / "images" / "draft"), os.environ.get("PYTHONPATH", "")]
    if trainer == "speculators":
        paths.insert(0, str(WITHOUT_GPU))
    variables = {"PYTHONPATH": ":".join(filter(None, paths)), "TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1"}
    script = REPOSITORY / "examples" / "trainers" / f"{trainer}_train.py"
    return [
        "env",
        *(f"{name}={value}" for name, value in variables.items()),
        python,
        str(script),
        *ARGUMENTS[trainer].split(),
    ]


@pytest.mark.parametrize("trainer", ARGUMENTS)
def test_what_another_trainer_learnt_from_our_features_is_measured_and_converted(trainer: str, tmp_path: Path) -> None:
    made = corpus.make(tmp_path, train=48, held_out=6)
    settings = {"epochs": EPOCHS[trainer], "tokens_per_step": 160, "learning_rate": 3e-3}
    config = corpus.train_config(made, tmp_path, trainer=list(command(trainer)), **settings)
    with supervised(config, tmp_path / "pod") as process:
        assert process.wait(PATIENCE) == ExitCode.DONE, (tmp_path / "pod" / "log").read_text()[-4000:]
    result = json.loads((tmp_path / "draft" / REPORT).read_text())["result"]
    assert result["steps"] == 0  # none of ours
    assert result["accuracy"][0] > 0.2, "it has learnt nothing of what the target says: other layers, or another norm?"
    trained = drafts.Made(made.target, tmp_path / "draft")
    convert(drafts.convert_config(trained, tmp_path / "converted", trained_key=config.key))
    assert "midlayer.self_attn.q_proj.weight" in load_file(tmp_path / "converted" / WEIGHTS)
