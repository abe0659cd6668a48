"""Somebody else's trainer: it is run, and what it leaves becomes what a training begins with that has no step of its own.

So its draft is read as any published layout is, measured by the same replay on the same held-out features, and published in
the same form. ``docs/trainers.md`` is the contract.
"""

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.jobs import FATAL_EXIT_CODES, PROGRESS_MARK, ExitCode, TrainConfig
from eagle3_draft.errors import StageError
from eagle3_draft.files import write_atomic
from eagle3_draft.inspect.checkpoint import checkpoint_digest
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.runtime.termination import Termination, interrupted

#: The variables that it finds its way by, besides the configuration.
OUTPUT_VARIABLE = "EAGLE3_OUTPUT"
WORK_VARIABLE = "EAGLE3_WORK"

#: Its last lines, which a failure quotes.
LAST_LINES = 12

#: The trainer has ended; how long its output may still be drained, should a process in a group of its own hold it open.
DRAIN_SECONDS = 2.0

#: Characters of a line that becomes a progress message.
_SHOWN = 120

#: What its exit codes that forbid another try mean.
_REASONS = {
    ExitCode.BAD_CONFIGURATION: Reason.INVALID_CONFIGURATION,
    ExitCode.NON_FINITE: Reason.NON_FINITE,
    ExitCode.DOES_NOT_FIT: Reason.OUT_OF_MEMORY,
}


def train(config: TrainConfig, command: Sequence[str]) -> TrainConfig:
    """Run the trainer to its end.

    Args:
        config: of the stage; the trainer reads the same.
        command: of the trainer.

    Returns:
        The configuration of a training that begins with its checkpoint and takes no step.

    Raises:
        StageError: it failed (NonFinite and others, by its exit code), was interrupted, or left no checkpoint that can be
            read (CheckpointUnreadable).
    """
    work = Path(config.scratch) / ".trainer"
    output, kept = work / "output", work / "work"
    for folder in (output, kept):
        folder.mkdir(parents=True, exist_ok=True)
    done = work / "digest"  # the pod may be lost while the draft is measured, and training it took days
    if not done.exists():
        _run(command, os.environ | {OUTPUT_VARIABLE: str(output), WORK_VARIABLE: str(kept)})
    digest = checkpoint_digest(output, f"what train.trainer left in ${OUTPUT_VARIABLE}")
    write_atomic(done, digest.encode())
    return config.model_copy(update={"init_from": str(output), "init_digest": digest, "epochs": 0})


def _run(command: Sequence[str], environment: dict[str, str]) -> None:
    with Termination() as termination:
        process = _started(command, environment)
        relay = _Relay(process)
        with termination.passed_on_to(process.pid):
            code = process.wait()
        told = termination.received
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left running: a logger's service, workers
    last = relay.end()
    if told:  # also where it ended with 0, as one does that has saved where it is
        raise interrupted("runs train.trainer again")
    if code == 0:
        return
    quoted = "\n".join(last)
    message = f"train.trainer ended with code {code}. Its last words:\n{quoted}"
    if code in FATAL_EXIT_CODES:
        known = ExitCode(code) if code in set(ExitCode) else ExitCode.REFUSED
        raise StageError(known, _REASONS.get(known, Reason.JOB_FAILED), message)
    raise StageError(ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED, message)


def _started(command: Sequence[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )
    except OSError as error:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"train.trainer.command: {command[0]!r} cannot be started in its image: {error.strerror}",
        ) from None


class _Relay:
    """Passes a trainer's output on, in a thread: a process that it left may hold the output open for ever.

    It need not print progress lines: a line of any kind shows that it is alive, and becomes a progress line now and then.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="trainer's output", daemon=True)
        self._thread.start()

    def end(self) -> Sequence[str]:
        """The trainer has ended: its last lines, once they were passed on."""
        self._thread.join(DRAIN_SECONDS)
        self._over = True
        return list(self._last)

    def _run(self) -> None:
        progress = ProgressReporter(1, "of the training")
        own = False
        for line in self._process.stdout or ():
            if self._over:
                return
            sys.stdout.write(line)
            sys.stdout.flush()
            own |= PROGRESS_MARK in line
            if (text := line.strip()) and PROGRESS_MARK not in line:
                self._last.append(text)
                if not own:
                    progress.update(0, text[:_SHOWN])
