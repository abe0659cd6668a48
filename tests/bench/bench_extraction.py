"""How fast hidden states are extracted, beside the two things that bound it, in one run.

    python tests/bench/bench_extraction.py TARGET [--tokens 3000000] [--folder DIR] [--flags SGLANG FLAGS]

It needs an environment with SGLang, and is run in it (PYTHONPATH=crds:images/draft). TARGET is a model's folder. Three rates, in
tokens/s of the same conversations:

- prefill: SGLang's own engine with the flags of the extraction, nothing captured; before the extraction and again after it, because
  what such a machine does in a second changes by a third within minutes;
- disk: as many bytes as the extraction stores, written and synced by dd, over the bytes of a token;
- extraction: the whole stage as its container runs it, from the first forward to the last synced file.

The bar: extraction at 0.9 of the lesser of the other two, of prefill's mean.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from eagle3_api.estimate import bytes_per_token
from eagle3_api.jobs import DataConfig, ExtractConfig, ExtractResult, ObjectReference, Report
from eagle3_api.sglang import capture_arguments, default_layers
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.inspect.target import read_target, target_digest

BAR = 0.9
TOKENS_A_CONVERSATION = 700
WARM_UP, BLOCK = 512, 512
NOTHING = {"max_new_tokens": 0, "temperature": 0.0}


def main() -> int:
    """Measure, print, and hold against the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--tokens", type=int, default=3_000_000)
    parser.add_argument("--dtype", default="bf16", choices=["fp8", "bf16", "fp32"])
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of SGLang; they come last")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        target = read_target(given.target)
        data = conversations(folder / "data.jsonl", given.tokens // TOKENS_A_CONVERSATION)
        layers = default_layers(target.num_layers) or list(range(min(3, target.num_layers - 1)))
        config = stage(given.target, data, folder, layers, given.dtype, given.flags)
        with ProcessPoolExecutor(1, get_context("spawn")) as other:  # not a Pool: its processes may not have children
            other.submit(start, config, str(data)).result()
            rates = [other.submit(prefill).result()]
            extracted, seconds = extraction(config, folder)
            rates.append(other.submit(prefill).result())
            other.submit(end).result()
        token_bytes = bytes_per_token(target.hidden_size, len(layers), given.dtype, config.teacher)
        shutil.rmtree(config.folder)
        disk = written(folder / "dd", extracted.bytes) / token_bytes
    bound = min(mean(rates), disk)
    print(f"{extracted.tokens:,} tokens, {extracted.conversations:,} conversations, {extracted.bytes / 2**30:.2f} GiB")
    print(f"prefill     {rates[0]:12,.0f} tokens/s before, {rates[1]:,.0f} after; nothing captured")
    print(f"disk        {disk:12,.0f} tokens/s of {token_bytes:,} bytes")
    print(
        f"extraction  {extracted.tokens_per_second:12,.0f} tokens/s, {extracted.engine}; {seconds:.0f} s with the start"
    )
    print(f"share       {extracted.tokens_per_second / bound:.2f} of the lesser; the bar is {BAR}")
    return 0 if extracted.tokens_per_second >= BAR * bound else 1


def conversations(path: Path, count: int) -> Path:
    """Conversations of words that no tokenizer is surprised by; what they say does not change the work."""
    words = (
        "the",
        "of",
        "and",
        "to",
        "in",
        "is",
        "that",
        "it",
        "was",
        "for",
        "on",
        "are",
        "with",
        "as",
        "his",
        "they",
        "at",
        "be",
        "this",
        "have",
        "from",
        "or",
        "one",
        "had",
        "by",
    )
    draw = random.Random(0)
    with path.open("w") as file:
        for number in range(count):
            length = draw.randint(TOKENS_A_CONVERSATION // 2, TOKENS_A_CONVERSATION * 3 // 2)
            said = " ".join(draw.choices(words, k=length - 40))
            messages = [{"role": "user", "content": f"number {number}"}, {"role": "assistant", "content": said}]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def stage(target: Path, data: Path, folder: Path, layers: list[int], dtype: str, flags: Sequence[str]) -> ExtractConfig:
    """The stage's configuration, for the SGLang of this environment."""
    from sglang.version import __version__

    return ExtractConfig(
        owner=ObjectReference(namespace="bench", name="bench", uid="u"),
        key="e" * 16,
        folder=str(folder / "features"),
        target=str(target),
        target_digest=target_digest(target),
        data=DataConfig(conversations=str(data), max_length=2048, holdout=0.01),
        data_digest=Conversations.read(data).sha256,
        layers=layers,
        dtype=dtype,
        sglang_version=__version__,
        arguments=list(flags),
    )


def extraction(config: ExtractConfig, folder: Path) -> tuple[ExtractResult, float]:
    """What the stage says of itself, and the seconds from its start to its end."""
    (folder / "config.json").write_text(json.dumps({"config": config.to_json()}))
    said = folder / "message"
    variables = {"EAGLE3_CONFIG": str(folder / "config.json"), "EAGLE3_TERMINATION_LOG": str(said)}
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "eagle3_draft", "extract"], env=os.environ | variables, check=False)
    report = Report.parse(said.read_text())
    if report is None or not report.ok:
        raise SystemExit(f"the extraction failed: {report.message if report else 'no report'}")
    return ExtractResult.model_validate(report.result), time.monotonic() - began


def written(path: Path, size: int) -> float:
    """Bytes a second that dd writes and syncs."""
    blocks = max(1, size // 2**24)
    began = time.monotonic()
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=16M", f"count={blocks}", "conv=fdatasync"]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.monotonic() - began
    path.unlink()
    return blocks * 2**24 / seconds


class Prefill:
    """SGLang's engine in a process of its own, from which nothing is taken."""

    engine: Any = None
    ids: ClassVar[list[list[int]]] = []


def start(config: ExtractConfig, data: str) -> None:
    """Start it, and warm it up."""
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.server_args import prepare_server_args

    from eagle3_draft.data.rendering import Renderer
    from eagle3_draft.data.tokenizer_files import chat_template

    target = Path(config.target)
    renderer = Renderer.load(target, chat_template(target, None), config.data.max_length)
    every = Conversations.read(Path(data))
    Prefill.ids = [renderer.conversation(every[index].messages).input_ids.tolist() for index in range(len(every))]
    words = ["--model-path", config.target, "--log-level", "warning", *capture_arguments(config.arguments)]
    Prefill.engine = Engine(server_args=prepare_server_args(words))
    Prefill.engine.generate(input_ids=Prefill.ids[:WARM_UP], sampling_params=NOTHING)


def prefill() -> float:
    """Its tokens/s over the conversations."""
    began = time.monotonic()
    for first in range(0, len(Prefill.ids), BLOCK):
        Prefill.engine.generate(input_ids=Prefill.ids[first : first + BLOCK], sampling_params=NOTHING)
    return sum(map(len, Prefill.ids)) / (time.monotonic() - began)


def end() -> None:
    """End its processes."""
    Prefill.engine.shutdown()


if __name__ == "__main__":
    sys.exit(main())
