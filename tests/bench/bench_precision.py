"""What products in FP8 cost in accept length: the figures in docs/benchmarks/training.md.

    PYTHONPATH=tests python tests/bench/bench_precision.py [--seeds 2] [--epochs 3]

Drafts for the tiny target (tests/tiny) are trained with the product's own step in each precision, on the CPU, which rounds as a
GPU does, and measured by replay on the same held-out conversations.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from bench.bench_teacher import Tiny, measured
from eagle3_draft.model.factor import FACTORS
from tiny.make import cached


def main() -> None:
    """Extract, train, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29518", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    made = cached()
    tiny = Tiny(made / "models" / "tiny-target", made / "data" / "train.jsonl")
    with tempfile.TemporaryDirectory() as name:
        features = tiny.extract(Path(name), "fp32", "LastState")
        for seed in range(given.seeds):
            for precision, factor in FACTORS.items():
                found = measured(tiny.learn(features, seed, given.epochs, factor), features)
                row = {
                    "seed": seed,
                    "precision": precision,
                    "accept length": [round(length, 3) for length in found.accept_length],
                    "right": [round(share, 4) for share in found.accuracy],
                    "loss": round(found.loss, 4),
                }
                print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
