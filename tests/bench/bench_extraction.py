"""How fast hidden states are extracted, beside the two things that bound it, in one run.

    python tests/bench/bench_extraction.py TARGET [--tokens 3000000] [--forward 8192 32768] [--shape 8b] [--folder DIR]
                                           [--json FILE] [--flags SGLANG FLAGS]

It needs an environment with SGLang, and is run in it (PYTHONPATH=crds:images/draft). TARGET is a model's folder. Three rates, in
tokens/s of the same conversations:

- prefill: SGLang's own engine with the flags of the extraction, nothing captured, asked as the extraction asks; before the
  extraction and again after it, because what such a machine does in a second changes by a third within minutes;
- disk: as many bytes as the extraction stores, written and synced by dd, over the bytes of a token, likewise twice;
- extraction: the whole stage as its container runs it, from the first forward to the last synced file.

The bar: extraction at 0.9 of the lesser of the other two, of their means.

``--forward`` says how many tokens a forward takes, one measurement each; without it, it is as many as the stage chooses. The engine
that captures nothing is started once for all of them. ``--shape 8b`` takes of TARGET the tokenizer alone, and weights of
Llama-3.1-8B's shape that SGLang makes up. For each measurement there is a line of JSON, also in the file that ``--json`` names.
"""

import argparse
import asyncio
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from eagle3_api.estimate import bytes_per_token
from eagle3_api.jobs import DataConfig, ExtractConfig, ExtractResult, ObjectReference, Progress, Report
from eagle3_api.sglang import default_layers
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.inspect.target import target_digest, target_facts

BAR = 0.9
TOKENS_A_CONVERSATION = 700
BLOCK, BLOCKS_AHEAD = 64, 6

#: Conversations that are prefilled again and again.
PREFILLED = 2048

WORDS = "the of and to in is that it was for on are with as his they at be this have from or one had by"
NOTHING = {"max_new_tokens": 0, "temperature": 0.0}

#: Of a stage, its start included: what takes longer is ended, and told of by its own progress.
STAGE_SECONDS = 200.0

#: Two engines at a time share the GPU, and neither needs more of it. That forwards are logged costs a tenth of a millisecond each.
FLAGS = ("--max-total-tokens", "300000", "--log-level", "info")

PREFILL_LOG = "prefill.log"

_FORWARD = re.compile(r"Prefill batch.*#new-seq: (\d+), #new-token: (\d+)")

#: Llama-3.1-8B's, but for its tokenizer.
SHAPES = {
    "8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
}


def main() -> int:
    """Measure, print, and hold against the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--tokens", type=int, default=3_000_000)
    parser.add_argument("--dtype", default="bf16", choices=["fp8", "bf16", "fp32"])
    parser.add_argument("--forward", type=int, nargs="+", default=[], help="tokens of a forward, one measurement each")
    parser.add_argument("--shape", choices=SHAPES, help="weights of this shape in place of TARGET's")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each prefill")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--json", type=Path, help="a line for each measurement")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of SGLang; they come last")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        try:
            shares = [one["share"] for one in measurements(given, Path(name))]
        except BrokenProcessPool:
            raise SystemExit(
                f"prefill failed: {(Path(name) / PREFILL_LOG).read_text(errors='replace')[-4000:]}"
            ) from None
    return 0 if min(shares) >= BAR else 1


def measurements(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """One for each size of forwards, told as it is made."""
    flags = [*FLAGS, *given.flags]
    path = given.target
    if given.shape:
        path, flags = shaped(folder / "target", given.target, SHAPES[given.shape]), ["--load-format", "dummy", *flags]
    target = target_facts(path)
    data = conversations(folder / "data.jsonl", given.tokens // TOKENS_A_CONVERSATION)
    layers = default_layers(target.num_layers) or list(range(min(3, target.num_layers - 1)))
    stages = [
        stage(path, data, folder, layers, given.dtype, [*flags, *sized(size)]) for size in given.forward or [None]
    ]
    token_bytes = bytes_per_token(target.hidden_size, len(layers), given.dtype, stages[0].teacher)
    found = []
    with ProcessPoolExecutor(1, get_context("spawn")) as other:  # not a Pool: its processes may not have children
        largest = max(zip(given.forward or [0], stages, strict=True), key=lambda one: one[0])[1]
        tokens = other.submit(start, largest, data, folder, token_bytes).result()
        for size, config in zip(given.forward or [None], stages, strict=True):
            one = measured(config, folder, tokens, token_bytes, partial(other.submit, prefill, size, given.seconds))
            print(json.dumps(one), flush=True)
            if given.json:
                with given.json.open("a") as file:
                    file.write(json.dumps(one) + "\n")
            found.append(one)
        other.submit(end).result()
    return found


def measured(
    config: ExtractConfig, folder: Path, tokens: int, token_bytes: int, rate: Callable[[], Future[dict[str, Any]]]
) -> dict[str, Any]:
    """One extraction between two prefills and two files of zeros; each rate is told at once, for a machine may be taken away."""

    def prefilled() -> dict[str, Any]:
        found = rate().result()
        tell("prefill", found["tokens_per_second"], found["forwards"])
        return found

    def disk() -> int:
        found = round(written(folder / "dd", tokens * token_bytes) / token_bytes)
        tell("disk", found, f"at {token_bytes:,} bytes a token")
        return found

    before, disk_before = prefilled(), disk()
    extracted = extraction(config, folder, tokens)
    tell("extraction", extracted["tokens_per_second"], extracted)
    shutil.rmtree(config.folder, ignore_errors=True)
    disks, prefills = [disk_before, disk()], [before, prefilled()]
    bound = min(mean(one["tokens_per_second"] for one in prefills), mean(disks))
    share = extracted["tokens_per_second"] / bound
    print(f"share       {share:.2f} of the lesser; the bar is {BAR}", flush=True)
    return {
        "tokens": tokens,
        "token_bytes": token_bytes,
        "arguments": config.arguments,
        "prefill": prefills,
        "disk": disks,
        "extraction": extracted,
        "share": share,
    }


def tell(what: str, tokens_per_second: float, more: object) -> None:
    print(f"{what:11} {tokens_per_second:12,.0f} tokens/s; {more}", flush=True)


# ------------------------------------------------------------------------------------------------------- what is extracted


def conversations(path: Path, count: int) -> Path:
    """Conversations of words that no tokenizer is surprised by; what they say does not change the work."""
    draw = random.Random(0)
    with path.open("w") as file:
        for number in range(count):
            length = draw.randint(TOKENS_A_CONVERSATION // 2, TOKENS_A_CONVERSATION * 3 // 2)
            said = " ".join(draw.choices(WORDS.split(), k=length - 40))
            messages = [{"role": "user", "content": f"number {number}"}, {"role": "assistant", "content": said}]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def shaped(folder: Path, tokenizer: Path, shape: dict[str, Any]) -> Path:
    """A target of a shape, with the tokenizer of another. Its file of weights has the right size and holds nothing."""
    folder.mkdir()
    for path in tokenizer.iterdir():
        if path.suffix in (".json", ".jinja") and path.name not in ("config.json", "generation_config.json"):
            shutil.copy(path, folder)
    (folder / "config.json").write_text(json.dumps(shape))
    hidden, vocabulary = shape["hidden_size"], shape["vocab_size"]
    middle, heads = shape["intermediate_size"], shape["head_dim"] * shape["num_key_value_heads"]
    shapes = {"model.embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden), "model.norm": (hidden,)}
    for layer in range(shape["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.{name}_proj": (hidden, hidden) for name in "qo"}
        shapes |= {f"{at}.self_attn.{name}_proj": (heads, hidden) for name in "kv"}
        shapes |= {f"{at}.mlp.{name}_proj": (middle, hidden) for name in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj": (hidden, middle)}
        shapes |= {f"{at}.{name}_layernorm": (hidden,) for name in ("input", "post_attention")}
    header, begin = {}, 0
    for name, sizes in shapes.items():
        stop = begin + 2 * sizes[0] * (sizes[1] if len(sizes) == 2 else 1)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": sizes, "data_offsets": [begin, stop]}
        begin = stop
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + begin)
    return folder


def sized(tokens: int | None) -> list[str]:
    """The flags with which a forward takes so many tokens; none where the stage is to choose."""
    said = str(tokens)
    return [] if tokens is None else ["--chunked-prefill-size", said, "--max-prefill-tokens", said]


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


# --------------------------------------------------------------------------------------------------------- measuring


def extraction(config: ExtractConfig, folder: Path, tokens: int) -> dict[str, Any]:
    """The stage's rate by its own result, or by its progress where it was ended; its forwards; and how busy it was."""
    (folder / "config.json").write_text(json.dumps({"config": config.to_json()}))
    said, log = folder / "message", folder / "stage.log"
    said.unlink(missing_ok=True)
    variables = {"EAGLE3_CONFIG": str(folder / "config.json"), "EAGLE3_TERMINATION_LOG": str(said)}
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("wb") as out:
        command = [sys.executable, "-m", "eagle3_draft", "extract"]
        process = subprocess.Popen(command, env=os.environ | variables, stdout=out, stderr=out)
        try:
            process.wait(STAGE_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = log.read_text(errors="replace")
    report = Report.parse(said.read_text()) if said.exists() else None
    middle = tokens * progressed(text)
    if report is not None and report.ok:
        rate, whole = ExtractResult.model_validate(report.result).tokens_per_second, True
    elif middle:
        rate, whole = middle, False
    else:
        raise SystemExit(f"the extraction failed: {report.message if report else 'no report'}\n{text[-4000:]}")
    return {
        "tokens_per_second": round(rate),
        "of_progress": round(middle),
        "whole": whole,
        "seconds": time.monotonic() - began,
        "processor_seconds": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
        "forwards": forwards(text, tokens / rate),
    }


def progressed(log: str) -> float:
    """The share of all conversations that were finished in a second, from the first that was to the last."""
    every = [line for line in map(Progress.last, log.splitlines()) if line is not None and line.done > 0]
    if len(every) < 2 or every[-1].time <= every[0].time:
        return 0.0
    return (every[-1].done - every[0].done) / (every[-1].time - every[0].time)


def forwards(log: str, seconds: float) -> dict[str, float]:
    """What SGLang's log says of the forwards that took so long together."""
    every = [(int(requests), int(tokens)) for requests, tokens in _FORWARD.findall(log)]
    if not every:
        return {}
    return {
        "count": len(every),
        "requests": round(mean(requests for requests, _ in every), 1),
        "tokens": round(mean(tokens for _, tokens in every)),
        "milliseconds": round(1000 * seconds / len(every), 2),
    }


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

    engine: ClassVar[Any] = None
    ids: ClassVar[list[list[int]]] = []
    forward_tokens: ClassVar[Path]
    log: ClassVar[Path]
    own: ClassVar[int]


def start(config: ExtractConfig, data: Path, folder: Path, token_bytes: int) -> int:
    """Start it, and warm it up with the first conversations. How many tokens all of them have, about."""
    from sglang.srt.entrypoints.engine import Engine

    from eagle3_draft.data.rendering import Renderer
    from eagle3_draft.data.tokenizer_files import chat_template
    from eagle3_draft.extract.sglang_engine import server_arguments, settled

    Prefill.log, Prefill.forward_tokens = folder / PREFILL_LOG, folder / "forward-tokens"
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(Prefill.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())
    target = Path(config.target)
    renderer = Renderer.load(target, chat_template(target, None), config.data.max_length)
    every = Conversations.read(data)
    Prefill.ids = [
        renderer.conversation(every[index].messages).input_ids.tolist() for index in range(min(PREFILLED, len(every)))
    ]
    arguments = server_arguments(config, token_bytes)
    Prefill.own = settled(arguments)["chunked_prefill_size"]

    resize(Prefill.own)

    class Resizable(Engine):  # type: ignore[misc]
        run_scheduler_process_func = staticmethod(partial(run_scheduler, Prefill.forward_tokens))

    Prefill.engine = Resizable(server_args=arguments)
    prefill(None, 5.0)
    return round(mean(map(len, Prefill.ids)) * len(every))


def run_scheduler(forward_tokens: Path, *args: Any, **kwargs: Any) -> None:
    """SGLang's scheduler, whose forwards take as many tokens as a file says when each is put together."""
    from sglang.srt.managers.scheduler import Scheduler, run_scheduler_process

    put_together = Scheduler.get_new_batch_prefill

    def resized(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.chunked_prefill_size = self.max_prefill_tokens = int(forward_tokens.read_text())
        return put_together(self, *args, **kwargs)

    Scheduler.get_new_batch_prefill = resized
    run_scheduler_process(*args, **kwargs)


def resize(forward_tokens: int) -> None:
    """Have its forwards take so many tokens from now on."""
    aside = Prefill.forward_tokens.with_suffix(".new")  # its scheduler looks again and again
    aside.write_text(str(forward_tokens))
    aside.rename(Prefill.forward_tokens)


def prefill(forward_tokens: int | None, seconds: float) -> dict[str, Any]:
    """Its rate over the conversations, again and again until the time is over."""
    resize(forward_tokens or Prefill.own)
    before = Prefill.log.stat().st_size
    tokens, took = Prefill.engine.loop.run_until_complete(asked(seconds))
    with Prefill.log.open(errors="replace") as log:
        log.seek(before)
        return {"tokens_per_second": round(tokens / took), "forwards": forwards(log.read(), took)}


async def asked(seconds: float) -> tuple[int, float]:
    """Tokens that were computed, and in what time; some blocks of conversations are asked for at a time."""
    began, tokens = time.monotonic(), 0
    room = asyncio.Semaphore(BLOCKS_AHEAD)

    async def compute(block: list[list[int]]) -> None:
        try:
            await Prefill.engine.async_generate(input_ids=block, sampling_params=NOTHING)
        finally:
            room.release()

    async with asyncio.TaskGroup() as computing:
        for first in cycle(range(0, len(Prefill.ids), BLOCK)):
            await room.acquire()
            if time.monotonic() - began > seconds:
                break
            block = Prefill.ids[first : first + BLOCK]
            tokens += sum(map(len, block))
            computing.create_task(compute(block))
    return tokens, time.monotonic() - began


def end() -> None:
    """End its processes."""
    Prefill.engine.shutdown()


if __name__ == "__main__":
    sys.exit(main())
