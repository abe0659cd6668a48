"""How long the demo's training takes on a CPU, which is to be under two minutes: a figure of docs/benchmarks/training.md.

    OMP_NUM_THREADS=1 PYTHONPATH=tests:images/sglang-cpu python tests/bench/bench_demo.py

Features of the tiny target are extracted from more conversations than the demo keeps, and the whole stage trains from them as in its
pod: launcher, reading, steps, checkpoints, evaluations by replay, the artifact. One JSON line; exit code 1 where the bar is missed.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from bench.bench_teacher import Tiny
from eagle3_api.jobs import ObjectReference, TrainConfig
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_draft.inspect.target import target_digest
from eagle3_draft.train import run
from testbed.tiny import manifest
from tiny.make import cached

BAR_SECONDS = 120


def main() -> int:
    """Extract, train, print."""
    spec = Eagle3DraftSpec.model_validate(manifest()["spec"])
    made = cached()
    tiny = Tiny(made / "models" / "tiny-target", made / "data" / "train.jsonl")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        features = tiny.extract(folder / "features", "fp32", "LastState")
        config = TrainConfig(
            owner=ObjectReference(namespace="bench", name="tiny", uid="u"),
            key="de" * 32,
            folder=str(folder / "draft"),
            scratch=str(folder / "scratch"),
            features=str(folder / "features"),
            features_key=features.manifest.key,
            target=str(tiny.model),
            target_digest=target_digest(tiny.model),
            layers=spec.draft.auxiliary_layers or [],
            vocabulary_size=spec.draft.vocabulary_size or 0,
            epochs=spec.train.epochs,
            tokens_per_step=spec.train.tokens_per_step,
            learning_rate=spec.train.learning_rate,
            unroll_steps=spec.train.unroll_steps,
            seed=spec.train.seed,
            checkpoint_interval=10.0,
        )
        before, begin = _cpu_seconds(), time.monotonic()
        result = run(config)
        seconds = time.monotonic() - begin
    row = {
        "seconds": round(seconds, 1),
        "CPU seconds": round(_cpu_seconds() - before, 1),
        "steps": result.steps,
        "tokens": result.tokens,
        "tokens/s": round(result.tokens_per_second),
        "accept length": [round(length, 3) for length in result.expected_accept_lengths],
    }
    print(json.dumps(row))
    return 0 if seconds < BAR_SECONDS else 1


def _cpu_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    sys.exit(main())
