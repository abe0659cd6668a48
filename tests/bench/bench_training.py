"""How fast a draft is trained, on one GPU or several: the tables of docs/benchmarks/training.md.

    python tests/bench/bench_training.py [W8-ones W8-half WK-ones ...] [--profile FOLDER]

A run is a shape, a loss mask, and options, joined by dashes. It does whole optimizer steps of the product's own trainer, with
FSDP2, on random features that lie on the GPU: documents of 2048 tokens, 4 warm-up steps, 12 timed ones, the median from
start to start. It prints a line of JSON: tokens/s counts every token of all packs, mfu is the matrix products' part of
``PEAK``, had every row been unrolled (so that a mask can lift it over 1).

    ones, half     every token counts, or every other turn of 256
    fp8            the unroll's matrix products in FP8
    mixed          documents of 180 to 2900 tokens, not of 2048
    t16384         tokens of a GPU's step (8192)
    x2             on two GPUs, each with as many tokens
    replicate      the draft as a whole on each of them, not cut up (``train.sharding``)
    deterministic  with sums in a fixed order (``train.deterministic``)
    disk           the whole train stage, from a feature store on the disk that TMPDIR names (``from_disk``)

With PEERS naming a folder that holds SpecForge and speculators, ``sf-W8-ones`` and ``sp-W8-ones`` time these (``peers``).
Name runs in turn, ours, theirs, ours: the GPU is held back by its power, and readings move by 2 to 3 % with its heat.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist

from bench import from_disk
from eagle3_api.draft_size import DraftSize
from eagle3_draft.features import Sample, mapped, teach
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.model.factor import FACTORS
from eagle3_draft.train.batches import pack
from eagle3_draft.train.learning import Learning
from eagle3_draft.train.portions import Portion, count
from eagle3_draft.train.worker import be_deterministic

#: Dense bf16 products of this size on random data, FLOP/s: what one H200 was seen to sustain at its best.
PEAK = 790e12

UNROLL, DOCUMENT, TURN = 7, 2048, 256
PEERS = {"sf": "specforge", "sp": "speculators"}
MIXED = (2900, 300, 1500, 180, 2300, 1012)
WARM_UP, TIMED = 4, 12

#: Where the ranks of a run meet.
MEETING = ("--master-addr", "127.0.0.1", "--master-port", "29513")


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
        """Of the draft's matrix products for one token."""
        size = DraftSize(self.hidden, self.intermediate, self.heads, self.kv_heads, self.head_dim)
        return size.operations(states=3, depth=1, vocabulary=self.draft_vocabulary, unroll_steps=UNROLL)


SHAPES = {
    "W8": Shape(hidden=4096, intermediate=14336, heads=32, vocabulary=128256),  # Llama-3.1-8B
    "W1": Shape(hidden=2048, intermediate=8192, heads=32, head_dim=64, vocabulary=128256),  # Llama-3.2-1B
    "WK": Shape(hidden=7168, intermediate=18432, heads=64, vocabulary=163840),  # Kimi-K2.5
    "tiny": Shape(hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocabulary=640, draft_vocabulary=128),
}


class Inputs:
    """Random features of documents, a target's embedding and head, and a draft's vocabulary."""

    def __init__(self, shape: Shape, device: torch.device, *, mask: str, documents: Sequence[int]) -> None:
        torch.manual_seed(0)
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.ids = torch.randperm(shape.vocabulary)[: shape.draft_vocabulary].sort().values
        self.head = torch.randn(shape.vocabulary, shape.hidden, device=device, dtype=kind) / shape.hidden**0.5
        self.head[self.ids] *= 3  # as on real text, nearly every most likely token is one that the draft knows
        self.samples = []
        for length in documents:
            place = torch.arange(length)
            last = torch.randn(length, shape.hidden, dtype=kind)
            told = teach("LastState", last.to(device), lambda rows: rows @ self.head.T, shape.vocabulary)
            self.samples.append(
                Sample(
                    input_ids=torch.randint(0, shape.vocabulary, (length,), dtype=torch.int32),
                    loss_mask=(place // TURN % 2 if mask == "half" else torch.ones(length)).to(torch.uint8),
                    hidden=torch.randn(length, 3 * shape.hidden, dtype=kind),
                    teaching=mapped(told, torch.Tensor.cpu),
                )
            )

    def for_peers(self, shape: Shape) -> dict[str, torch.Tensor]:
        """The same, laid out as the peers want it: documents of one length, one a line."""
        members = torch.zeros(shape.vocabulary, dtype=torch.bool)
        members[self.ids] = True
        parts = {
            "ids": torch.stack([sample.input_ids for sample in self.samples]).long(),
            "mask": torch.stack([sample.loss_mask for sample in self.samples]).long(),
            "hidden": torch.stack([sample.hidden for sample in self.samples]),
            "last": torch.stack([vars(sample.teaching)["last"] for sample in self.samples]),
            "members": members,
            "offsets": self.ids - torch.arange(len(self.ids)),
        }
        return {name: part.to(self.head.device) for name, part in parts.items()} | {"head": self.head}


class Ours:
    """Our trainer's step on one batch, as ``worker`` launches it."""

    def __init__(
        self, shape: Shape, inputs: Inputs, device: torch.device, *, precision: str, shards: int | None
    ) -> None:
        on_gpu = device.type == "cuda"
        dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
        embedding = torch.randn(shape.vocabulary, shape.hidden, device=device, dtype=inputs.head.dtype)
        self.learning = Learning(
            shape.draft,
            device,
            embedding=embedding,
            head=inputs.head,
            ids=inputs.ids,
            seed=0,
            factor=FACTORS[precision],
            shards=shards,
        )
        knows = self.learning.teacher.knows.cpu()
        batch = pack(inputs.samples, UNROLL, knows=knows, multiple=self.learning.multiple)
        self.portion = Portion(batch, count(inputs.samples, knows, UNROLL)).to(device)
        self.notes = torch.zeros(2, device=device)

    def step(self) -> torch.Tensor:
        """One optimizer step; its loss."""
        return self.learning.step([self.portion], 1, 1e-5, self.notes)[0]


def measure(step: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """Time optimizer steps."""
    on_gpu = device.type == "cuda"
    began = time.perf_counter()
    first = float(step())
    for _ in range(WARM_UP - 1):
        step()
    warm_up = time.perf_counter() - began
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    events: Any = [torch.Event("cuda", enable_timing=True) for _ in range(TIMED + 1)] if on_gpu else []
    starts = []
    for number in range(TIMED + 1):
        if on_gpu:
            events[number].record()
        starts.append(time.perf_counter())
        if number < TIMED:
            last = step()
    drawn, clock = (torch.cuda.power_draw() / 1000, torch.cuda.clock_rate()) if on_gpu else (0.0, 0)
    loss = float(last)  # waits for the steps
    if loss == first:
        raise RuntimeError("nothing was learned")
    if on_gpu:
        starts = [events[0].elapsed_time(event) / 1000 for event in events]
    times = [1000 * (end - start) for start, end in pairwise(starts)]
    return {
        "ms": round(statistics.median(times), 1),
        "ms_min": round(min(times), 1),
        "ms_max": round(max(times), 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if on_gpu else 0.0,
        "watt": round(drawn),
        "sm_mhz": clock,
        "warm_up_s": round(warm_up, 1),
        "loss_first": round(first, 4),
        "loss": round(loss, 4),
    }


def profile(step: Callable[[], Any], name: str, folder: Path) -> None:
    """Keep a table of where a step's time goes, by kernel."""
    with torch.profiler.profile() as profiler:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = {}
    for event in profiler.events():
        if event.device_type == torch.profiler.DeviceType.CUDA and not event.name.startswith(
            ("FSDP::", "Optimizer.step")
        ):
            kernels.setdefault(event.name[:110], []).append(event.device_time / 1000)
    table = sorted(((sum(times) / 2, len(times) / 2, kernel) for kernel, times in kernels.items()), reverse=True)
    lines = [f"{ms:9.3f} ms {count:6.1f} x {kernel}" for ms, count, kernel in table]
    (folder / f"{name}.txt").write_text("\n".join(lines))


def run(name: str, folder: Path | None) -> None:
    """One run, or one rank of it, in this process."""
    parts = name.split("-")
    peer = parts.pop(0) if parts[0] in PEERS else ""
    shape, mask, options = SHAPES[parts[0]], parts[1], parts[2:]
    tokens = next((int(option[1:]) for option in options if option[0] == "t"), 8192)
    documents = MIXED if "mixed" in options else [DOCUMENT] * (tokens // DOCUMENT)
    precision = "fp8" if "fp8" in options else "bf16"
    if "disk" in options:  # the stage starts its ranks by itself
        gpus = next((int(option[1:]) for option in options if option[0] == "x"), 1)
        measured = from_disk.measure(shape.draft, documents, unroll=UNROLL, precision=precision, gpus=gpus)
        print(json.dumps({"run": name} | measured), flush=True)
        return
    if "deterministic" in options:
        be_deterministic()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    inputs = Inputs(shape, device, mask=mask, documents=documents)
    if peer:
        module = importlib.import_module("peers")
        step = getattr(module, PEERS[peer])(shape, inputs.for_peers(shape), unroll=UNROLL)
    else:
        shards = 1 if "replicate" in options else None
        step = Ours(shape, inputs, device, precision=precision, shards=shards).step
    measured = measure(step, device)
    rate = ranks * sum(documents) / measured["ms"] * 1000
    mfu = rate / ranks * shape.flops / PEAK
    if rank == 0:
        print(json.dumps({"run": name, "tokens_per_second": round(rate), "mfu": round(mfu, 3)} | measured), flush=True)
    if folder:
        profile(step, f"{name}-{rank}" if rank else name, folder)
    if dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    """Run what is asked for, each in a process of its own, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=["W8-ones", "W8-half"])
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="where tables of kernels go")
    parser.add_argument("--here", action="store_true", help="in this process: the one run that is named")
    arguments = parser.parse_args()
    if arguments.here:
        run(arguments.runs[0], arguments.profile)
        return
    folder = ["--profile", str(arguments.profile)] if arguments.profile else []
    for name in arguments.runs:
        ranks = next((option[1:] for option in name.split("-") if option[0] == "x"), "1")
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", ranks, *MEETING] if "disk" not in name else []
        done = subprocess.run(
            [sys.executable, *launcher, __file__, name, "--here", *folder], capture_output=True, text=True, check=False
        )
        results = [line for line in done.stdout.splitlines() if line.startswith("{")]
        print("\n".join(results) or f"{name} failed:\n{done.stderr[-4000:]}", flush=True)


if __name__ == "__main__":
    main()
