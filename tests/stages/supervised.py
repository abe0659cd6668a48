"""A stage as a container runs it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eagle3_api.jobs import JobEnvelope, TrainConfig

#: Seconds after which a process that should have come somewhere is given up.
PATIENCE = 240


@contextmanager
def supervised(config: TrainConfig, folder: Path, *, index: int = 0) -> Iterator[subprocess.Popen[str]]:
    """The stage as a container runs it, in a process group of its own; in one of several pods, the one of this index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(JobEnvelope(config=config).model_dump_json(by_alias=True))
    environment = os.environ | {
        "EAGLE3_CONFIG": str(folder / "config.json"),
        "EAGLE3_TERMINATION_LOG": str(folder / "termination-log"),
        "OMP_NUM_THREADS": "1",
        "JOB_COMPLETION_INDEX": str(index),
        "TMPDIR": str(folder),  # as each pod has its own
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "eagle3_draft", "train"], env=environment, stdout=log, stderr=log, text=True
        )
        try:
            yield process
        finally:
            for pid in [*descendants(process.pid), process.pid]:
                kill(pid)
            process.wait(PATIENCE)


def wait_for(process: subprocess.Popen[str], reached: Callable[[], bool], what: str) -> None:
    """Wait until something is so, as long as the process runs."""
    for _ in range(PATIENCE * 20):
        if reached():
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"{what} was not reached; exit code {process.poll()}")


def wait_for_step(process: subprocess.Popen[str], config: TrainConfig, step: int) -> None:
    """Wait until a checkpoint of this step or a later one is published."""

    def reached() -> bool:
        return any(int(path.name[6:]) >= step for path in Path(config.scratch).glob(".step-*[0-9]"))

    wait_for(process, reached, f"step {step}")


def descendants(pid: int) -> list[int]:
    """All processes below one, the nearest first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            children.setdefault(int(_fields(path)[1]), []).append(int(path.parent.name))
    found, below = [], [pid]
    while below:
        below = [child for parent in below for child in sorted(children.get(parent, []))]
        found += below
    return found


def ranks(pid: int) -> list[int]:
    """The ranks of a supervised training, in their order. What each of them starts for itself, to compile kernels, is not one."""
    return [one for one in descendants(pid) if b"spawn_main" in command_line(one)]


def command_line(pid: int) -> bytes:
    """Of a process; empty where it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def has_ended(pid: int) -> bool:
    """Whether a process has, with all its threads, be its parent aware of it or not."""
    try:
        state, *others = _fields(Path(f"/proc/{pid}/stat"))
    except FileNotFoundError:
        return True
    threads = int(others[16])
    return state == "Z" and threads <= 1


def _fields(stat: Path) -> list[str]:
    """What /proc/<pid>/stat says from the state on; the next is the parent's pid."""
    return stat.read_text().rpartition(")")[2].split()


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
