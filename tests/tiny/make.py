"""Train the tiny target and write it, with its conversations.

    python -m tiny.make OUT [--steps N]      (with tests/ on PYTHONPATH, where there are torch and transformers)

Writes OUT/models/tiny-target (a Hugging Face folder), OUT/data/train.jsonl (one conversation a line) and OUT/quality.json
in one to two minutes of one core.  The same seeds give the same files on the same machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import once
from tiny.grammar import conversations

STEPS = 340
CONVERSATIONS = 1200

#: What a target must reach: the share of greedy answers that are the grammar's likeliest to the last word, and the share
#: of their words before the first that differs.
FLOORS = {"exact_answers": 0.75, "correct_words": 0.85}

_SOURCES = ("grammar.py", "tokenizer.py", "train.py", "make.py")


def cached(python: str | Path = sys.executable) -> Path:
    """The folder of a target made by these sources; makes it with ``python`` if this machine has none yet.

    ``python`` needs torch and transformers; the caller needs neither.
    """
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256(b"\0".join((here / name).read_bytes() for name in _SOURCES)).hexdigest()

    def train(folder: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(here.parent)}
        subprocess.run([python, "-m", "tiny.make", folder], env=environment, stdout=sys.stderr, check=True)

    return once.made(f"tiny-{digest[:12]}", train)


def make(out: Path, steps: int = STEPS) -> dict[str, float]:
    """Train a target, write everything below ``out``, and return its loss and quality."""
    import torch

    from tiny.tokenizer import new_tokenizer
    from tiny.train import new_model, quality, train

    torch.set_num_threads(1)
    tokenizer, model = new_tokenizer(), new_model()
    loss = train(model, tokenizer, steps)
    measured = {"loss": loss, **quality(model, tokenizer)}
    print("tiny target:", ", ".join(f"{name} {value:.3f}" for name, value in measured.items()), flush=True)
    if steps >= STEPS and any(measured[name] < floor for name, floor in FLOORS.items()):
        raise SystemExit(f"the tiny target did not learn enough; it must reach {FLOORS}")
    model.save_pretrained(out / "models" / "tiny-target")
    tokenizer.save_pretrained(out / "models" / "tiny-target")
    (out / "data").mkdir(parents=True, exist_ok=True)
    with (out / "data" / "train.jsonl").open("w") as file:
        for messages in conversations(seed=1, count=CONVERSATIONS):
            file.write(json.dumps({"messages": messages}) + "\n")
    (out / "quality.json").write_text(json.dumps(measured) + "\n")
    for path in out.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # safetensors writes for the owner only; pods run as another user
    return measured


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description="Train the tiny target and write it, with its conversations.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    make(arguments.out, arguments.steps)


if __name__ == "__main__":
    main()
