"""How fast the stage Convert is with a large draft, and in how much memory.

    python tests/bench/bench_conversion.py [--scale 1.0] [--folder DIR] [--rounds 3] [--kinds published trained]

A draft for Kimi-K2.5 (2.6 billion parameters: hidden size 7168, a head for all 163,840 tokens) with random weights goes through
the whole stage, twice: as a checkpoint from elsewhere in bf16 (which is not asked anything: no target runs here), and as what Train
leaves, in float32, with held-out features. Each run is a process of its own. Memory is the most of it that the kernel could not
have back (RssAnon, looked at every few milliseconds) beyond what it had before the stage, torch and Transformers imported. The disk's
speed is that of copying the checkpoint by dd, through the kernel's cache, as it does by itself and the bar means it, and past the cache;
copies and conversion take turns, and the best of each counts: a virtual disk is several times faster in one minute than in the next.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eagle3_api.artifacts import CONFIG, HELD_OUT, PROMPTS, REPORT, VOCABULARY, WEIGHTS
from eagle3_api.checkpoints.safetensors import BITS, Tensor
from eagle3_api.jobs import ConvertConfig, ObjectReference, TrainResult
from eagle3_api.sglang import NEWEST
from eagle3_draft import convert
from eagle3_draft.inspect.checkpoint import checkpoint_digest
from eagle3_draft.inspect.target import target_digest
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.storage import artifacts
from eagle3_draft.tensors import PIECE
from eagle3_draft.train import held_out
from eagle3_draft.train.vocabulary import Vocabulary
from published import files, shapes
from unit.train import corpus

LAYERS = [2, 30, 58]
VOCABULARY_SIZE, CONTEXT, UNROLL_STEPS = 163840, 262144, 7
SECONDS, ABOVE_THE_LARGEST, SHARE = 60.0, 2**30, 0.8
KEY = "c0" * 32


def main() -> int:
    """Measure, print, and hold against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the draft's width")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--rounds", type=int, default=3, help="of copy and conversion")
    parser.add_argument("--kinds", nargs="+", choices=MADE, default=[*MADE], help="of drafts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        root = Path(name)
        sizes = sized(given.scale)
        make_target(root, sizes)
        for kind in ("published", *given.kinds):
            if not (root / kind).exists():
                MADE[kind](root, sizes)
        source = root / "published" / WEIGHTS
        size, largest = source.stat().st_size, sizes.draft_vocabulary_size * sizes.hidden_size * 2
        print(json.dumps({"parameters": size // 2, "bytes": size, "largest tensor MiB": round(largest / 2**20)}))
        copies: dict[str, list[float]] = {way: [] for way in COPIES}
        runs: dict[str, list[Run]] = {kind: [] for kind in given.kinds}
        for _ in range(given.rounds):
            for way, done in copies.items():
                done.append(copy(source, root / "copy", COPIES[way]))
            for kind, measured in runs.items():
                measured.append(_apart(stage, (root, kind)))
    for way, done in copies.items():
        print(json.dumps({f"copy {way}": [round(one, 1) for one in done], "MB/s": round(size / min(done) / 1e6)}))
    fastest = {way: min(done) for way, done in copies.items()}
    good = True
    for kind, measured in runs.items():
        seconds, memory = min(run["seconds"] for run in measured), max(run["memory"] for run in measured)
        result = {
            "seconds": [round(run["seconds"], 1) for run in measured],
            "seconds of the processor": round(min(run["processor"] for run in measured), 1),
            "memory MiB": round(memory / 2**20),
            "share of a copy's speed": {way: round(copied / seconds, 2) for way, copied in fastest.items()},
        }
        print(json.dumps({kind: result}, indent=1))
        good = good and memory < largest + ABOVE_THE_LARGEST
        good = good and (kind == "trained" or (seconds < SECONDS and fastest[CACHED] / seconds > SHARE))
    return 0 if good else 1


Run = dict[str, float]


def _apart(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What it returns in a fresh process: a virtual machine may have lent the memory that a deleted file leaves to others by then."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


# ------------------------------------------------------------------------------------------------------------- made


def sized(scale: float) -> DraftConfig:
    """The sizes of the draft, its width scaled."""
    hidden = int(7168 * scale) // 64 * 64
    return DraftConfig(
        hidden_size=hidden,
        target_hidden_size=hidden,
        layers=LAYERS,
        intermediate_size=int(28672 * scale) // 64 * 64,
        heads=64,
        kv_heads=64,
        head_dim=int(192 * scale) // 8 * 8,
        rms_norm_eps=1e-6,
        rope_theta=50000.0,
        vocabulary_size=VOCABULARY_SIZE,
        draft_vocabulary_size=VOCABULARY_SIZE,
        max_position_embeddings=CONTEXT,
    )


def make_target(root: Path, sizes: DraftConfig) -> None:
    """As much of a target as conversion reads: its configuration, its tokenizer, and an embedding of zeros."""
    hidden = sizes.hidden_size
    text: dict[str, Any] = {"num_hidden_layers": 61, "hidden_size": hidden, "vocab_size": VOCABULARY_SIZE}
    text |= {"max_position_embeddings": CONTEXT, "dtype": "bfloat16", "tie_word_embeddings": False}
    corpus.new_tokenizer().save_pretrained(root / "target")
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text}
    (root / "target" / CONFIG).write_text(json.dumps(config))
    matrix = Tensor("BF16", (VOCABULARY_SIZE, hidden))
    names = ("model.embed_tokens.weight", "lm_head.weight")
    files.write_sparse(root / "target" / "model.safetensors", dict.fromkeys(names, matrix))


def make_published(root: Path, sizes: DraftConfig) -> None:
    """The draft as others publish it, in bf16."""
    (root / "published").mkdir()
    config = _as_published(sizes)
    (root / "published" / CONFIG).write_text(json.dumps(config))
    _fill(root / "published" / WEIGHTS, shapes.shapes(config), "BF16")


def make_trained(root: Path, sizes: DraftConfig, conversations: int = held_out.CONVERSATIONS) -> None:
    """The draft as Train leaves it, in float32, with some held-out conversations: it is right nowhere, and says so."""
    folder = root / "trained"
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(sizes.to_json()))
    _fill(folder / WEIGHTS, shapes.shapes(_as_published(sizes)), "F32")
    Vocabulary(torch.arange(VOCABULARY_SIZE), VOCABULARY_SIZE).save(folder / VOCABULARY)
    tokens = conversations * held_out.TOKENS
    noise = torch.randn(held_out.TOKENS, len(LAYERS) * sizes.hidden_size).to(torch.bfloat16)
    save_file(
        {
            "input_ids": torch.randint(VOCABULARY_SIZE, (tokens,), dtype=torch.int32),
            "loss_mask": (torch.arange(tokens) % held_out.TOKENS >= held_out.TOKENS // 4).to(torch.uint8),
            "top_tokens": torch.randint(VOCABULARY_SIZE, (tokens, 1), dtype=torch.int32),
            "top_log_probabilities": torch.zeros(tokens, 1, dtype=torch.float16),
            "hidden": noise.repeat(conversations, 1),
            "offsets": torch.tensor([0, *accumulate([held_out.TOKENS] * conversations)]),
        },
        folder / HELD_OUT,
    )
    (folder / PROMPTS).write_text('{"messages": [], "input_ids": [1, 3]}\n')
    (folder / REPORT).write_text("{}")
    result = TrainResult(
        steps=1,
        tokens=1,
        loss=12.0,
        accuracy=[0.0] * UNROLL_STEPS,
        expected_accept_lengths=[1.0],
        held_out=1000,
        vocabulary_size=VOCABULARY_SIZE,
        vocabulary_coverage=1.0,
        tokens_per_second=1.0,
    )
    made_from = {"target": target_digest(root / "target")}
    artifacts.publish(folder, stage="train", key=KEY, made_from=made_from, numbers=result.to_json(), provenance={})


def _as_published(sizes: DraftConfig) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "vocab_size": sizes.vocabulary_size,
        "draft_vocab_size": sizes.draft_vocabulary_size,
        "max_position_embeddings": sizes.max_position_embeddings,
        "rope_theta": sizes.rope_theta,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in sizes.layers]},
    }


def _fill(path: Path, wanted: Mapping[str, tuple[int, ...]], dtype: str) -> None:
    """Write a safetensors file of small random numbers: the same again after some megabytes."""
    header, end = {}, 0
    for name, shape in sorted(wanted.items()):
        size = prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    files.write_raw(path, text + b" " * (-len(text) % 8))
    kind = {"BF16": torch.bfloat16, "F32": torch.float32}[dtype]
    noise = (torch.randn(PIECE // kind.itemsize) * 0.02).to(kind).view(torch.uint8).numpy().tobytes()
    with path.open("ab") as file:
        for written in range(0, end, PIECE):
            file.write(noise[: min(PIECE, end - written)])


#: By what they are called.
MADE: dict[str, Callable[[Path, DraftConfig], None]] = {"published": make_published, "trained": make_trained}


# --------------------------------------------------------------------------------------------------------- measured


#: Flags of dd.
CACHED = "through the cache"
COPIES: dict[str, list[str]] = {CACHED: [], "past the cache": ["oflag=direct"]}


def copy(source: Path, to: Path, flags: Sequence[str]) -> float:
    """Seconds that dd and the disk take for the same bytes."""
    os.sync()
    begin = time.perf_counter()
    command = ["dd", f"if={source}", f"of={to}", "bs=8M", "conv=fdatasync", *flags]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - begin
    to.unlink()
    return seconds


def stage(root: Path, kind: str) -> Run:
    """Seconds, seconds of the processor, and bytes of memory that the whole stage takes.

    Args:
        root: with what was made.
        kind: of the draft: ``published`` or ``trained``.
    """
    brought: dict[str, Any] = {"checkpoint": str(root / kind)}
    if kind == "published":
        brought["checkpoint_digest"] = checkpoint_digest(root / kind)
    else:
        brought = {"trained": str(root / kind), "trained_key": KEY}
    config = ConvertConfig(
        owner=ObjectReference(namespace="n", name="draft", uid="u"),
        key=KEY,
        folder=str(root / "out"),
        target=str(root / "target"),
        target_digest=target_digest(root / "target"),
        layers=LAYERS,
        sglang_version=str(NEWEST),
        context_length=CONTEXT,
        **brought,
    )
    corpus.new_tokenizer()  # what it imports is not the stage's
    os.sync()
    with peak() as memory:
        begin, processor = time.perf_counter(), time.process_time()
        convert.run(config, load=None)
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    shutil.rmtree(root / "out")
    return {"seconds": seconds, "processor": processor, "memory": float(memory[0])}


@contextmanager
def peak() -> Iterator[list[int]]:
    """Bytes that this process holds at most, beyond what it held before; what it maps of files is not counted."""
    most, before, over = [0], _anonymous(), threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            most[0] = max(most[0], _anonymous() - before)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    raise SystemExit(main())
