"""The container's first process: it starts the stage as its child and tells the operator how that ended.

It imports neither torch nor an engine, so it survives whatever they do: an engine may kill the process that started it,
crash the interpreter or hang at its end. What the child left in its result file counts; without one, the stage crashed.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, Report, StageName
from eagle3_draft.errors import StageError
from eagle3_draft.runtime import child
from eagle3_draft.runtime.child import Outcome
from eagle3_draft.runtime.termination import Termination, interrupted

#: Bytes of the child's last words that a report may carry.
LAST_WORDS = 1500

#: The child is gone; how long its error output may still be drained, should a process of its hold it open.
DRAIN_SECONDS = 2.0

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def supervise(
    stage: StageName, command: Sequence[str], *, config: Path, result: Path, termination_log: Path
) -> ExitCode:
    """Run a stage's child to its end and leave the report as the container's termination message.

    Args:
        stage: what runs.
        command: starts the child.
        config: the stage's configuration, checked before anything is started.
        result: the file in which the child leaves its outcome.
        termination_log: where the kubelet reads the termination message.

    Returns:
        The exit code of the container.
    """
    termination = Termination()
    try:
        key = child.load_config(stage, config).key
    except StageError as error:
        outcome = child.failure(stage, "", error)
    else:
        outcome = _run(stage, key, command, result, termination)
    _leave(outcome, termination_log)
    return outcome.code


class _LastWords:
    """Copies a stream to standard error and remembers its end."""

    def __init__(self, descriptor: int) -> None:
        self._end = b""
        self._thread = threading.Thread(target=self._copy, args=(descriptor,), daemon=True)
        self._thread.start()

    def _copy(self, descriptor: int) -> None:
        while chunk := os.read(descriptor, 65536):
            self._end = (self._end + chunk)[-LAST_WORDS:]
            with suppress(OSError):
                os.write(sys.stderr.fileno(), chunk)

    def text(self) -> str:
        """The last lines, once the stream has ended or ``DRAIN_SECONDS`` are over."""
        self._thread.join(DRAIN_SECONDS)
        lines = _COLOUR.sub("", self._end.decode(errors="replace")).splitlines()
        return "\n".join("".join(filter(str.isprintable, line)) for line in lines if line.strip())


def _run(stage: StageName, key: str, command: Sequence[str], result: Path, termination: Termination) -> Outcome:
    # By this an engine's crashed process ends the stage. What was started in the background of a script has it ignored, and would
    # wait for that engine for ever
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    ours, theirs = os.pipe()
    process = subprocess.Popen(command, stderr=theirs, process_group=0)
    os.close(theirs)
    last_words = _LastWords(ours)
    with termination.passed_on_to(process.pid):
        process.returncode = _reap_until(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what an engine left running
    try:
        return Outcome.model_validate_json(result.read_bytes())
    except FileNotFoundError:
        problem = "left no result"
    except (OSError, ValidationError) as error:
        problem = f"left a result that cannot be read ({type(error).__name__})"
    if termination.received:
        return child.failure(stage, key, interrupted())
    return _failed(
        stage,
        key,
        ExitCode.ENGINE_CRASHED,
        Reason.JOB_FAILED,
        f"the process {_how_it_ended(process.returncode)} and {problem}. "
        + (f"Its last words:\n{said}" if (said := last_words.text()) else "It said nothing"),
    )


def _reap_until(pid: int) -> int:
    """Reap children, also orphans that the container's first process inherits, until this one has ended.

    Returns:
        Its exit code, or minus the number of the signal that killed it.
    """
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _failed(stage: StageName, key: str, code: ExitCode, reason: Reason, message: str) -> Outcome:
    return Outcome(code=code, report=Report(stage=stage, key=key, ok=False, reason=reason, message=message))


def _leave(outcome: Outcome, termination_log: Path) -> None:
    report = outcome.report
    if not report.ok:
        sys.stderr.write(f"{report.stage} failed, {report.reason}: {report.message}\n")
    try:
        termination_log.write_text(report.dump(), encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"the report cannot be left in {termination_log}: {error}\n")
