"""Real SGLang servers, for one test or for a module of them: on the CPU in their own environment, or in the caller's."""

import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import environment

from tiny.flags import SERVE_ARGUMENTS

START_SECONDS = 180.0


def speculating(draft: Path, steps: int, topk: int = 1, size: int | None = None) -> list[str]:
    """The flags of a server that drafts a chain; with ``topk`` branches a tree, of which ``size`` tokens are verified at once."""
    words: dict[str, object] = {
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": draft,
        "--speculative-num-steps": steps,
        "--speculative-eagle-topk": topk,
        "--speculative-num-draft-tokens": size or steps + 1,
    }
    return [str(word) for pair in words.items() for word in pair]


def generate(url: str, prompt: list[int], tokens: int, **sampling: Any) -> Any:
    """A server's greedy answer to tokens."""
    parameters = {"temperature": 0, "max_new_tokens": tokens, **sampling}
    body = {"input_ids": prompt, "sampling_params": parameters}
    request = urllib.request.Request(  # noqa: S310
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        return json.load(answer)


@contextmanager
def sglang(target: Path, log: Path, *flags: str, variables: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a server on the CPU, once it is healthy. Its process group ends with the block.

    Args:
        target: what it serves.
        log: file that receives its output.
        flags: besides those that the CPU needs.
        variables: of the environment, likewise.
    """
    python = environment.ensure() / "bin" / "python3"
    needed = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "TRITON_INTERPRET": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    told = (*SERVE_ARGUMENTS, "--enable-metrics", "--random-seed", "0", *flags)
    with launched(python, target, log, *told, variables=needed | dict(variables or {})) as url:
        yield url


@contextmanager
def launched(
    python: Path,
    target: Path,
    log: Path,
    *flags: str,
    variables: Mapping[str, str],
    seconds: float = START_SECONDS,
) -> Iterator[str]:
    """A server's address, once it is healthy. Its process group ends with the block.

    Args:
        python: of an environment with SGLang.
        target: what it serves.
        log: file that receives its output.
        flags: besides the model's path and the port.
        variables: of the environment, besides this process's.
        seconds: that the start may take.
    """
    port = _free_port()
    command: list[str | Path] = [python, "-m", "sglang.launch_server", "--model-path", target]
    command += ["--port", str(port), *flags]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=os.environ | dict(variables), stdout=out, stderr=out, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log, seconds)
            yield url
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        assert process.poll() is None, f"SGLang ended with {process.returncode}:\n{_tail(log)}"
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:  # noqa: S310
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"SGLang is not healthy after {seconds:.0f} s:\n{_tail(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group; whoever is left after that is killed, schedulers that lost their parent among them."""
    for number, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])


def _free_port() -> int:
    """A port that nobody uses. Below those that the kernel gives to connections: it must stay free until the server has loaded."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
