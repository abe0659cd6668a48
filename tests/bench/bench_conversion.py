"""How fast a large draft is converted, and in how much memory.

    python tests/bench/bench_conversion.py [--scale 1.0] [--folder DIR]

A draft for Kimi-K2.5 (2.6 billion parameters: hidden size 7168, a head for all 163,840 tokens) with random weights is written,
converted in a process of its own, and thrown away. Memory is the most that process held beyond what it held before the
conversion; the disk's speed is that of copying the same file in the same pieces. Both are over when the disk has it all. They
take turns, three times, and the best of each counts: a virtual disk is several times faster in one minute than in the next.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from math import prod
from pathlib import Path

import torch

from eagle3_api.checkpoints import Served, Target, check, read_folder, read_form, report
from eagle3_api.checkpoints.safetensors import BITS, Tensor
from eagle3_api.sglang import NEWEST
from eagle3_draft.convert.emit import emit
from eagle3_draft.convert.weights import PIECE
from published import files, shapes

LAYERS = [2, 30, 58]
SECONDS, MEMORY, SHARE = 60.0, 2**30, 0.8
ROUNDS = 3


def main() -> int:
    """Measure, print, and hold against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the draft's width")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        root = Path(name)
        size = make(root, given.scale)
        print(json.dumps({"parameters": size // 2, "bytes": size}))
        copies, conversions = [], []
        for _ in range(ROUNDS):
            # Both in a fresh process: a virtual machine may have lent the memory that a deleted file leaves to others by then
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                copies.append(pool.apply(copy, (root / "draft" / "model.safetensors", root / "copy")))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                conversions.append(pool.apply(convert, (root,)))
            shutil.rmtree(root / "out")
        copied, seconds = min(copies), min(seconds for seconds, _, _ in conversions)
        memory, processor = max(memory for _, memory, _ in conversions), min(cpu for _, _, cpu in conversions)
    result = {
        "copy MB/s": round(size / copied / 1e6),
        "convert MB/s": round(size / seconds / 1e6),
        "seconds": round(seconds, 1),
        "share of the disk's speed": round(copied / seconds, 2),
        "seconds of the processor": round(processor, 1),
        "memory MiB": round(memory / 2**20),
        "all copies": [round(one, 1) for one in copies],
        "all conversions": [round(one, 1) for one, _, _ in conversions],
    }
    print(json.dumps(result, indent=1))
    return 0 if seconds < SECONDS and memory < MEMORY and copied / seconds > SHARE else 1


def make(root: Path, scale: float) -> int:
    """Write a target without weights to speak of, and a draft for it; returns the bytes of the draft's weights."""
    hidden = int(7168 * scale) // 64 * 64
    vocabulary = 163840
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": hidden,
        "intermediate_size": int(28672 * scale) // 64 * 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "head_dim": int(192 * scale) // 8 * 8,
        "vocab_size": vocabulary,
        "draft_vocab_size": vocabulary,
        "max_position_embeddings": 262144,
        "rope_theta": 50000.0,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in LAYERS]},
    }
    target = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": {"num_hidden_layers": 61, "hidden_size": hidden, "vocab_size": vocabulary},
    }
    for folder, content in ((root / "target", target), (root / "draft", config)):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(content))
    files.write(root / "target" / "model.safetensors", {"norm.weight": Tensor("BF16", (hidden,))})
    wanted = shapes.shapes(config)
    header, end = {}, 0
    for name, shape in wanted.items():
        size = prod(shape) * BITS["BF16"] // 8
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    files.write_raw(root / "draft" / "model.safetensors", json.dumps(header).encode())
    noise = (torch.randn(PIECE // 2) * 0.02).to(torch.bfloat16).view(torch.uint8).numpy().tobytes()
    with (root / "draft" / "model.safetensors").open("ab") as file:
        for written in range(0, end, PIECE):
            file.write(noise[: min(PIECE, end - written)])
    return end


def copy(source: Path, to: Path) -> float:
    """Seconds that the disk takes for the same bytes."""
    os.sync()
    begin = time.perf_counter()
    with source.open("rb", buffering=0) as file, to.open("wb", buffering=0) as out:
        while piece := file.read(PIECE):
            out.write(piece)
        os.fsync(out.fileno())
    seconds = time.perf_counter() - begin
    to.unlink()
    return seconds


def convert(root: Path) -> tuple[float, int, float]:
    """Seconds, bytes of memory, and seconds of the processor that the conversion takes."""
    torch.set_num_threads(1)
    served = Served(
        NEWEST,
        Target(
            "KimiK25ForConditionalGeneration",
            61,
            json.loads((root / "draft/config.json").read_text())["hidden_size"],
            163840,
        ),
        tuple(LAYERS),
        262144,
    )
    os.sync()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    before, begin, processor = _memory("VmRSS"), time.perf_counter(), time.process_time()
    form = read_form(read_folder(root / "draft"))
    findings = check(form, served)
    assert report.refusal(findings) is None, report.table(findings)
    (root / "out").mkdir()
    emit(form, served, [layer + 1 for layer in LAYERS], root / "target", "bfloat16", root / "out")
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    return seconds, _memory("VmHWM") - before, processor


def _memory(field: str) -> int:
    """Bytes that this process holds (VmRSS), or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    raise SystemExit(main())
