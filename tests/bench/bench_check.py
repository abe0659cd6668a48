"""How long ``kubectl eagle3 check`` takes, by the clock and from a cold start of Python.

    python tests/bench/bench_check.py [--folder DIR] [--rounds 10]

A draft of Kimi-K2.5's width (hidden size 7168, 32,000 of 163,840 tokens) is held against a target of 599 GB: 64 shards with 115,200
tensors, of which the headers are real and the values are holes. Every run is the installed command in a process of its own; before
each the kernel is told to forget the target's files. The first finds nothing compiled, as after an installation that does not compile.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from eagle3_api.artifacts import CONFIG
from published import files, shapes
from published.targets import large_target

BAR = 1.0  # seconds, the middle one of the rounds
HIDDEN, VOCABULARY, DRAFT_VOCABULARY, CONTEXT = 7168, 163840, 32000, 262144

TARGET: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "num_hidden_layers": 61,
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
    },
}
DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": HIDDEN,
    "intermediate_size": 18432,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 128,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": DRAFT_VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rope_theta": 50000.0,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
}


def main() -> int:
    """Measure, print, and hold against the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        root = Path(name)
        target = large_target(root / "target", TARGET)
        draft = make_draft(root / "draft")
        command: list[str | Path] = [
            Path(sys.executable).with_name("kubectl-eagle3"),
            "check",
            draft,
            "--target",
            target,
        ]
        # What is compiled is kept apart, so that the first run has to do it
        environment = os.environ | {"PYTHONPYCACHEPREFIX": str(root / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
        os.sync()
        runs = []
        for _ in range(given.rounds + 1):
            forget(target)
            runs.append(run(command, environment))
        size = sum(file.stat().st_size for file in target.iterdir())
    again = [seconds for seconds, _ in runs[1:]]
    result = {
        "bytes of the target": size,
        "seconds, nothing compiled": round(runs[0][0], 2),
        "seconds": {"best": round(min(again), 2), "middle": round(median(again), 2), "worst": round(max(again), 2)},
        "seconds of the processor": round(min(processor for _, processor in runs[1:]), 2),
    }
    print(json.dumps(result, indent=1))
    return 0 if median(again) < BAR else 1


def make_draft(folder: Path) -> Path:
    """Its header and its vocabulary's map are real, its weights are holes."""
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(DRAFT))
    maps = {"t2d": bytes([1] * DRAFT_VOCABULARY + [0] * (VOCABULARY - DRAFT_VOCABULARY))}
    tensors = shapes.tensors(DRAFT)
    known = {name: tensor for name, tensor in tensors.items() if name in ("d2t", "t2d")}
    files.write(folder / "model-00001-of-00002.safetensors", known, maps)
    files.write_sparse(
        folder / "model-00002-of-00002.safetensors", {n: t for n, t in tensors.items() if n not in known}
    )
    return folder


def forget(folder: Path) -> None:
    """Let the kernel drop what it has of a folder's files."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(command: list[str | Path], environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):  # warnings are no failure
        raise RuntimeError(f"{done.returncode}: {done.stdout}{done.stderr}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
