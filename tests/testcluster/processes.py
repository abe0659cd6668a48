"""The cluster's processes: started apart from the caller, found again by a mark in their environment.

A file with a process id lies after a crash, and is not there yet when a run is killed at the wrong line; the mark is
part of the process itself, and its children inherit it.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testcluster.wait import wait_for

MARK = "EAGLE3_TESTCLUSTER_PROCESS_OF"


class ProcessEndedError(RuntimeError):
    """A process of the cluster ended by itself; the message has the end of its log."""


class Processes:
    """Starts the processes of the cluster in `folder`, and watches those that it started.

    With `tied` they end with the thread that starts them, so that even a killed test run leaves none.
    """

    def __init__(self, folder: Path, logs: Path, *, tied: bool) -> None:
        self._folder = folder
        self._logs = logs
        self._prefix = tied_to(os.getpid()) if tied else []
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str | Path], *, pass_fds: Sequence[int] = ()) -> int:
        """Starts a process that writes to logs/NAME.log; returns its id."""
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self._prefix, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=pass_fds,
                env={**_without_proxies(os.environ), MARK: str(self._folder)},
            )
        self._started[name] = process
        return process.pid

    def check(self) -> None:
        """Raises ProcessEndedError if one of them has ended."""
        for name, process in self._started.items():
            if (status := process.poll()) is not None:
                raise ProcessEndedError(f"{name} ended with status {status}; the end of its log:\n{self.log_end(name)}")

    def log_end(self, name: str, lines: int = 20) -> str:
        return "\n".join((self._logs / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])

    def log_ends(self) -> str:
        """The last lines of each log there is."""
        names = sorted(path.stem for path in self._logs.glob("*.log"))
        return "\n".join(f"--- {name}\n{self.log_end(name, lines=5)}" for name in names)

    def end(self) -> None:
        """Kills every process that carries the mark of the folder, whoever started it, and waits for its end.

        Killed, not asked: all their state goes with the folder, and an API server that is asked to end waits ten
        seconds for the watches of a node that is gone.
        """

        times_none_was_seen = 0

        def none_left() -> bool:
            nonlocal times_none_was_seen
            left = list(marked(self._folder))
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started.values():
                process.poll()  # buries it
            # A process that is just becoming another program shows no environment for a moment.
            times_none_was_seen = 0 if left else times_none_was_seen + 1
            return times_none_was_seen == 2

        wait_for(f"the end of the processes of {self._folder}", 30, none_left)
        self._started.clear()


def tied_to(parent: int) -> list[str]:
    """What to write before a command so that it ends with the process `parent`, which starts it.

    The kernel tells only of an end that comes after it was asked to; whether the parent ended before, the child looks.
    """
    return ["setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$0" ] || exit 1; exec "$@"', str(parent)]


def _without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """All that these processes talk to is on this machine."""
    return {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}


def marked(folder: Path) -> Iterator[int]:
    """The ids of the processes of the cluster in `folder`."""
    mark = f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def run(*command: str | Path, stdin: str | None = None, env: dict[str, str] | None = None) -> str:
    """Runs a program to its end and returns what it printed; raises RuntimeError with what it said if it fails."""
    arguments = [str(part) for part in command]
    done = subprocess.run(
        arguments, input=stdin, text=True, capture_output=True, check=False, env={**os.environ, **(env or {})}
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-4000:]
        raise RuntimeError(f"{' '.join(arguments)[:500]}: status {done.returncode}: {said}")
    return done.stdout
