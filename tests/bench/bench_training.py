"""How fast a draft is trained, on one GPU: the table of docs/benchmarks/training.md.

    python tests/bench/bench_training.py [W8-ones W8-half WK-ones ...] [--profile FOLDER]

A run is a shape, a loss mask, and options, joined by dashes. It does whole optimizer steps of the product's own trainer, with
FSDP2 over one rank, on random features that lie on the GPU: documents of 2048 tokens, 4 warm-up steps, 12 timed ones, the
median from start to start. It prints a line of JSON: tokens/s counts every token of the pack, mfu is the matrix products'
part of ``PEAK``, had every row been unrolled (so that a mask can lift it over 1).

    ones, half     every token counts, or every other turn of 256
    whole          the target's most likely tokens are found in every step, not once beforehand (in TRAIN's first epoch)
    mixed          documents of 180 to 2900 tokens, not of 2048
    t16384         tokens of a step (8192)

With PEERS naming a folder that holds SpecForge and speculators, runs named ``sf-...`` and ``sp-...`` time these in turn with
ours (``peers``).
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist

from eagle3_draft.features import Sample
from eagle3_draft.model import DraftConfig
from eagle3_draft.train.batches import Batch, pack
from eagle3_draft.train.learning import Learning

#: Dense bf16 products of this size on random data, FLOP/s: what one H200 was seen to sustain at its best.
PEAK = 790e12

UNROLL, DOCUMENT, TURN = 7, 2048, 256
MIXED = (2900, 300, 1500, 180, 2300, 1012)
WARM_UP, TIMED = 4, 12


@dataclass(frozen=True)
class Shape:
    """Sizes of a target, of whose width its draft is."""

    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    kv_heads: int = 8
    head_dim: int = 128
    draft_vocabulary: int = 32000

    @property
    def draft(self) -> DraftConfig:
        """The draft's."""
        return DraftConfig(
            hidden_size=self.hidden,
            target_hidden_size=self.hidden,
            layers=[1, 15, 28],
            intermediate_size=self.intermediate,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            rms_norm_eps=1e-5,
            rope_theta=500000.0,
            vocabulary_size=self.vocabulary,
            draft_vocabulary_size=self.draft_vocabulary,
            max_position_embeddings=DOCUMENT,
        )

    @property
    def flops(self) -> int:
        """Of the draft's matrix products for one token: 2 a multiply-add, forward and both gradients of every step."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = 2 * self.hidden * (queries + 2 * keys) + queries * self.hidden + 3 * self.hidden * self.intermediate
        return UNROLL * 6 * (layer + self.draft_vocabulary * self.hidden) + 4 * 3 * self.hidden**2


SHAPES = {
    "W8": Shape(hidden=4096, intermediate=14336, heads=32, vocabulary=128256),  # Llama-3.1-8B
    "WK": Shape(hidden=7168, intermediate=18432, heads=64, vocabulary=163840),  # Kimi-K2.5
    "tiny": Shape(hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocabulary=640, draft_vocabulary=128),
}


def new_learning(shape: Shape, device: torch.device) -> Learning:
    """A draft, and a target's embedding and head, all random."""
    torch.manual_seed(0)
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    ids = torch.randperm(shape.vocabulary)[: shape.draft_vocabulary].sort().values
    head = torch.randn(shape.vocabulary, shape.hidden, device=device, dtype=kind) / shape.hidden**0.5
    head[ids] *= 3  # as on real text, nearly every most likely token is one that the draft knows
    embedding = torch.randn(shape.vocabulary, shape.hidden, device=device, dtype=kind)
    return Learning(shape.draft, device, embedding=embedding, head=head, ids=ids, seed=0)


def new_batch(shape: Shape, learning: Learning, *, mask: str, documents: Sequence[int], whole: bool) -> Batch:
    """Random features of documents of these lengths, on the device."""
    kind = learning.dtype
    samples = []
    for length in documents:
        place = torch.arange(length)
        samples.append(
            Sample(
                input_ids=torch.randint(0, shape.vocabulary, (length,), dtype=torch.int32),
                loss_mask=(place // TURN % 2 if mask == "half" else torch.ones(length)).to(torch.uint8),
                hidden=torch.randn(length, 3 * shape.hidden, dtype=kind),
                last=torch.randn(length, shape.hidden, dtype=kind),
            )
        )
    batch = pack(samples, UNROLL, multiple=learning.multiple).to(learning.device)
    if whole:
        return batch
    return Batch(**{**vars(batch), "greedy": learning.teacher.answer(batch.last).greedy})


def measure(shape: Shape, learning: Learning, batch: Batch) -> dict[str, float]:
    """Time optimizer steps on one batch."""
    on_gpu = learning.device.type == "cuda"
    notes = torch.zeros(2, device=learning.device)
    began = time.perf_counter()
    for _ in range(WARM_UP):
        first = learning.step(batch, 1e-5, notes)
    warm = (first.tolist(), time.perf_counter() - began)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    starts: list[float] = []
    events: Any = [torch.Event("cuda", enable_timing=True) for _ in range(TIMED + 1)] if on_gpu else []
    for number in range(TIMED + 1):
        if on_gpu:
            events[number].record()
        starts.append(time.perf_counter())
        if number < TIMED:
            last = learning.step(batch, 1e-5, notes)
    queued = (starts[-1] - starts[0]) / TIMED
    drawn = torch.cuda.power_draw() / 1000 if on_gpu else 0.0
    clock = torch.cuda.clock_rate() if on_gpu else 0
    values = last.tolist()
    if values[0] == warm[0][0]:
        raise RuntimeError("nothing was learned")
    if on_gpu:
        starts = [events[0].elapsed_time(event) / 1000 for event in events]
    times = [end - start for start, end in pairwise(starts)]
    tokens = len(batch.input_ids)
    rate = tokens / statistics.median(times)
    return {
        "tokens_per_second": round(rate),
        "ms": round(1000 * statistics.median(times), 1),
        "ms_min": round(1000 * min(times), 1),
        "ms_max": round(1000 * max(times), 1),
        "host_ms": round(1000 * queued, 1),
        "mfu": round(rate * shape.flops / PEAK, 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if on_gpu else 0.0,
        "watt": drawn,
        "sm_mhz": clock,
        "tokens": tokens,
        "rows": len(batch.rows.rows),
        "warm_up_s": round(warm[1], 1),
        "loss_first": round(warm[0][0], 4),
        "loss": round(values[0], 4),
        "norm": round(values[1], 4),
    }


def profile(learning: Learning, batch: Batch, name: str, folder: Path) -> None:
    """Print where a step's time goes, by kernel, and keep the table."""
    notes = torch.zeros(2, device=learning.device)
    with torch.profiler.profile() as profiler:
        for _ in range(2):
            learning.step(batch, 1e-5, notes)
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = {}
    for event in profiler.events():
        if event.device_type == torch.profiler.DeviceType.CUDA:
            kernels.setdefault(event.name[:110], []).append(event.device_time / 1000)
    table = sorted(((sum(times) / 2, len(times) / 2, kernel) for kernel, times in kernels.items()), reverse=True)
    lines = [f"{ms:9.3f} ms {count:6.1f} x {kernel}" for ms, count, kernel in table]
    (folder / f"{name}.txt").write_text("\n".join(lines))
    print(f"{sum(row[0] for row in table):.1f} ms of kernels, {sum(row[1] for row in table):.0f} launches")
    print("\n".join(lines[:40]), flush=True)


def run(names: list[str], folder: Path | None) -> None:
    """Time our runs, those of one shape with one draft."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    learnings: dict[str, Learning] = {}
    for name in names:
        shape, mask, *options = name.split("-")
        if shape not in learnings:
            learnings.clear()
            learnings[shape] = new_learning(SHAPES[shape], device)
        tokens = next((int(option[1:]) for option in options if option.startswith("t")), 8192)
        documents = MIXED if "mixed" in options else [DOCUMENT] * (tokens // DOCUMENT)
        batch = new_batch(SHAPES[shape], learnings[shape], mask=mask, documents=documents, whole="whole" in options)
        print(json.dumps({"run": name} | measure(SHAPES[shape], learnings[shape], batch)), flush=True)
        if folder:
            profile(learnings[shape], batch, name, folder)
    dist.destroy_process_group()


def main() -> None:
    """Run what is asked for, one after the other, ours in one process as long as no peer stands between."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=["W8-ones", "W8-half"])
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="where tables of kernels go")
    arguments = parser.parse_args()
    run(arguments.runs, arguments.profile)


if __name__ == "__main__":
    main()
