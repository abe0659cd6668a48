"""How fast features are written and read, beside dd: the tables of docs/benchmarks/store.md.

    python tests/bench/bench_store.py [--folder DIR] [--mebibytes 2048]

Features of Llama-3.1-8B's shape (hidden 4096, three layers) with random states are written as Extract writes them and read as
Train reads them: conversations in shuffled order, several a step, the next step expected meanwhile. dd moves the same bytes on the
same disk, in pieces of 64 MiB, and both copy what they read into memory that is there. Caches are cold: both are over when the
disk has it all (fsync), and before each reading the kernel is told to forget the files (POSIX_FADV_DONTNEED; what was written is on the
disk, and nothing of it is mapped). They take turns, and the
middle one of the rounds' shares counts: a virtual disk is several times faster in one minute than in the next. The first epoch verifies every conversation.
Beside the disk all of the machine's cores may be used; what is packed from memory, and SHA-256 alone, is read on one.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import torch

from eagle3_api.estimate import bytes_per_token
from eagle3_api.features import FeatureDtype
from eagle3_draft.extract.making import WRITERS
from eagle3_draft.features import Features, FeatureWriter, Header, LastState, Sample, Split, plan_shards, tensors
from eagle3_draft.train.batches import epoch_steps, pack

HIDDEN, LAYERS, DOCUMENT, STEP = 4096, [1, 15, 28], 1024, 8192
KEY = "ab" * 32
ROUNDS = 5

#: Of dd's speed; and what a consumer takes, MB/s.
SHARE, CONSUMER = 0.8, 200.0


def header(dtype: FeatureDtype) -> Header:
    """Of what is written."""
    return Header(
        layers=LAYERS,
        hidden_size=HIDDEN,
        dtype=dtype,
        teacher="LastState",
        vocabulary_size=128_256,
        tokenizer_digest="t" * 64,
        chat_template_digest="c" * 64,
    )


def new_sample(header: Header) -> Sample:
    """A conversation of random states; what it says does not matter to a disk."""
    kind = header.torch_dtype
    return Sample(
        input_ids=torch.zeros(DOCUMENT, dtype=torch.int32),
        loss_mask=torch.ones(DOCUMENT, dtype=torch.uint8),
        hidden=torch.randn(DOCUMENT, len(LAYERS) * HIDDEN).to(kind),
        teaching=LastState(
            torch.randn(DOCUMENT, HIDDEN).to(kind), torch.zeros(DOCUMENT, dtype=torch.int32), torch.zeros(DOCUMENT)
        ),
    )


def write(folder: Path, header: Header, size: int) -> float:
    """Write a store of about so many bytes; seconds."""
    one, per_token = new_sample(header), bytes_per_token(HIDDEN, len(LAYERS), header.dtype, header.teacher)
    lengths = [DOCUMENT] * (size // (DOCUMENT * per_token))
    ids = one.input_ids.tolist()
    began = time.perf_counter()
    writer = FeatureWriter(folder, header)
    with ThreadPoolExecutor(WRITERS) as threads:
        shards = [(number, len(shard)) for number, shard in enumerate(plan_shards(lengths, per_token))]
        list(threads.map(lambda shard: writer.write(Split.TRAIN, shard[0], [ids] * shard[1], [one] * shard[1]), shards))
    writer.publish(key=KEY, made_from={}, numbers={}, provenance={})
    return time.perf_counter() - began


def copied(source: Path, target: Path) -> float:
    """dd's seconds for a file from memory onto the disk."""
    return _seconds("dd", f"if={source}", f"of={target}", "bs=64M", "conv=fsync")


def dumped(folder: Path) -> float:
    """dd's seconds for reading all shards of a store."""
    return sum(_seconds("dd", f"if={path}", "of=/dev/null", "bs=64M") for path in sorted(folder.glob("*.safetensors")))


class Buffer:
    """Takes samples as dd takes a file: into memory that is there."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def __call__(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            for tensor in tensors(sample).values():
                content = tensor.flatten().view(torch.uint8)
                if len(content) > len(self._memory):
                    self._memory = torch.zeros_like(content)
                self._memory[: len(content)].copy_(content)


def read(folder: Path, epochs: int, take: Callable[[Sequence[Sample]], object], *, cold: bool) -> list[float]:
    """Read a store as the trainer's reader does; seconds of each epoch, of which the first verifies every conversation.

    Args:
        folder: of the store.
        epochs: how often.
        take: what is done with the samples of a step.
        cold: whether the kernel has nothing of the files in memory before each.
    """
    features = Features.open(folder)
    lengths = features.train.lengths.tolist()
    seconds = []
    for epoch in range(epochs):
        if cold:
            features.train._open.clear()  # the kernel keeps what is mapped
            forget(folder)
        began = time.perf_counter()
        steps = list(epoch_steps(lengths, STEP, seed=0, epoch=epoch))
        for number, step in enumerate(steps, start=1):
            for following in steps[number : number + 1]:
                features.train.expect(following)
            take(features.train.read(step))
        seconds.append(time.perf_counter() - began)
    return seconds


def forget(folder: Path) -> None:
    """Have the kernel drop what it keeps of the files."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _seconds(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def against_dd(root: Path, size: int) -> dict[str, list[float]]:
    """Writing and reading, by turns with dd: MB/s of each round."""
    found: dict[str, list[float]] = {name: [] for name in ("write", "dd write", "first", "later", "dd read")}
    store, source = root / "store", Path("/dev/shm") / f"bench-store-{os.getpid()}"
    for _ in range(ROUNDS):
        shutil.rmtree(store, ignore_errors=True)
        found["write"].append(write(store, header("bf16"), size))
        stored = sum(path.stat().st_size for path in store.iterdir())
        with source.open("wb") as file:
            for path in sorted(store.glob("*.safetensors")):
                file.write(path.read_bytes())
        try:
            found["dd write"].append(copied(source, root / "copy"))
        finally:
            source.unlink()
        (root / "copy").unlink()
        forget(store)
        found["dd read"].append(dumped(store))
        first, later = read(store, 2, Buffer(), cold=True)
        found["first"].append(first)
        found["later"].append(later)
    return {name: [stored / one / 1e6 for one in seconds] for name, seconds in found.items()}


def fed(root: Path, dtype: FeatureDtype, size: int) -> dict[str, float]:
    """What one core packs of features that the kernel has in memory: MB/s as stored, and tokens/s."""
    store = root / dtype
    write(store, header(dtype), size)
    stored = sum(path.stat().st_size for path in store.iterdir())
    _, *later = read(store, 1 + ROUNDS, lambda samples: pack(samples, 7), cold=False)
    tokens = int(Features.open(store).train.lengths.sum())
    return {"MB/s": round(stored / min(later) / 1e6), "tokens/s": round(tokens / min(later))}


def verified_by_one_core(root: Path, size: int) -> dict[str, dict[str, int]]:
    """What a first epoch, which verifies every conversation, gives a consumer from a cold disk, packed, by dtype: MB/s as stored.

    Also by the processor's time, in which what others do with the core does not count, nor waiting for the disk.
    """
    found = {}
    for dtype in ("bf16", "fp8"):
        store = root / f"cold-{dtype}"
        write(store, header(dtype), size)
        stored = sum(path.stat().st_size for path in store.iterdir())
        seconds, busy = [], []
        for _ in range(ROUNDS):
            before = time.process_time()
            seconds += read(store, 1, lambda samples: pack(samples, 7), cold=True)
            busy.append(time.process_time() - before)
        rates = {"MB/s": median(seconds), "MB/s of processor": median(busy)}
        found[dtype] = {name: round(stored / one / 1e6) for name, one in rates.items()}
        shutil.rmtree(store)
    return found


def hashed(seconds: float = 2.0) -> float:
    """MB/s of SHA-256."""
    piece, digest, count = os.urandom(2**26), hashlib.sha256(), 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        digest.update(piece)
        count += 1
    return count * len(piece) / (time.perf_counter() - began) / 1e6


def main() -> int:
    """Measure, print, and hold against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--mebibytes", type=int, default=2048, help="of a store")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cores = os.sched_getaffinity(0)
    size = given.mebibytes * 2**20
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        disk = against_dd(Path(name), size)
        shutil.rmtree(Path(name) / "store")
        os.sched_setaffinity(0, {min(cores)})
        sha256 = hashed()
        cold = verified_by_one_core(Path(name), size // 4)
        consumers = {dtype: fed(Path(name), dtype, size // 4) for dtype in ("bf16", "fp8")}
    pairs = {"write": ("write", "dd write"), "first epoch": ("first", "dd read"), "later epochs": ("later", "dd read")}
    shares = {
        name: median(mine / dd for mine, dd in zip(disk[ours], disk[theirs], strict=True))
        for name, (ours, theirs) in pairs.items()
    }
    print(json.dumps({f"{name} MB/s": [round(rate) for rate in rates] for name, rates in disk.items()}))
    print(json.dumps({f"{name}, share of dd": round(share, 2) for name, share in shares.items()}))
    print(json.dumps({"cores": len(cores), "SHA-256 on one, MB/s": round(sha256)}))
    print(json.dumps({"first epoch, cold, one core, MB/s": cold, "from memory, one core": consumers}))
    reached = min(shares.values()) >= SHARE
    fed_by_one = [cold[dtype]["MB/s"] for dtype in cold] + [consumers[dtype]["MB/s"] for dtype in consumers]
    return 0 if reached and min(fed_by_one) >= CONSUMER else 1


if __name__ == "__main__":
    raise SystemExit(main())
