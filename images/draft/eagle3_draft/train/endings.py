"""How the ranks of a training ended, and what of it the stage says.

A rank that fails leaves its outcome in a file, because the elastic launcher hands on an exit code at best. One that is killed
leaves nothing, and all others then fail too, of its silence. The launcher names the lowest rank that it finds ended, whichever
was the first: what they said is therefore put together here.

The file lies in the pod, for its own launcher, and beside the artifact, where those of the other pods find it. That volume may take
nothing, or hang, which may be what the rank failed of: then each pod says at least what its own ranks met.
"""

import hashlib
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName, TrainConfig
from eagle3_draft.errors import StageError
from eagle3_draft.files import write_atomic
from eagle3_draft.runtime import child
from eagle3_draft.runtime.child import Outcome
from eagle3_draft.runtime.termination import interrupted

T = TypeVar("T")

#: The volume of the artifact is waited for so long: SIGTERM's grace may be running.
VOLUME_SECONDS = 10.0

#: What gloo, which raises no error of its own kind, says of a rank that is gone.
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")

#: What a process died of without a word, by its exit code: the signal, and what it looks like.
_DEATHS = {
    -signal.SIGABRT: "SIGABRT: so NCCL ends a rank that waits for another in vain",
    -signal.SIGBUS: "SIGBUS: a volume that cannot be read any more, or a full /dev/shm, looks like this",
    -signal.SIGKILL: "SIGKILL: a lack of memory looks like this",
    -signal.SIGSEGV: "SIGSEGV: a fault in native code looks like this",
}


def leave(config: TrainConfig, rank: int, error: BaseException) -> ExitCode:
    """Leave the outcome of a rank that failed; returns its exit code."""
    outcome = child.failure(StageName.TRAIN, config.key, _left_alone(error) or error)
    said = outcome.model_dump_json(by_alias=True).encode()
    with suppress(OSError):
        write_atomic(_in_pod(config, rank), said)
    _unless_it_hangs(lambda: write_atomic(_on_volume(config, rank), said))
    return outcome.code


def forget(config: TrainConfig) -> None:
    """Remove what the ranks of an earlier try left."""
    for rank in _ranks(config):
        for said in (_in_pod(config, rank), _on_volume(config, rank)):
            said.unlink(missing_ok=True)


def of_failure(config: TrainConfig, here: range, first: int, code: int) -> StageError:
    """What the stage ends with when a rank failed.

    A rank that knows why it ended is believed before one that was left alone, and a rank that died without a word is named
    before those that only noticed: for a kill as for a lost pod another try may go better.

    Args:
        config: of the stage.
        here: the ranks of this pod. Those of another may not have written yet.
        first: the one that the launcher found ended.
        code: its exit code, less than 0 for a signal.
    """
    said = _said(config)
    for rank in sorted(said, key=lambda rank: rank != first):
        if said[rank].reason != Reason.JOB_FAILED:
            return said[rank]
    if silent := [rank for rank in here if rank not in said]:
        cause = f"; rank {first} of {_DEATHS[code]}" if first in silent and code in _DEATHS else ""
        return StageError(
            ExitCode.ENGINE_CRASHED,
            Reason.JOB_FAILED,
            f"rank {', '.join(map(str, silent))} of the training died and said nothing{cause}. The next try continues from the last checkpoint",
        )
    return said[first]


def of_interruption(config: TrainConfig) -> StageError:
    """What the stage ends with when the pod was told to end."""
    for told in _said(config).values():
        if told.code == ExitCode.INTERRUPTED:
            return told
    return interrupted("goes on from the last checkpoint")


def _left_alone(error: BaseException) -> StageError | None:
    """What an error means if it came of the end of another rank: it may be tried again, whatever ended that one."""
    said = str(error)
    if isinstance(error, StageError):
        return None
    if not (isinstance(error, dist.DistError) or any(words in said for words in _LOST)):
        return None
    return StageError(
        ExitCode.ENGINE_CRASHED,
        Reason.JOB_FAILED,
        f"another process of this training ended ({said.splitlines()[0][:200]}); the next try continues from the last checkpoint",
    )


def _said(config: TrainConfig) -> dict[int, StageError]:
    """The outcome that each rank left, by rank, ascending."""
    own = _read({rank: _in_pod(config, rank) for rank in _ranks(config)})
    rest = {rank: _on_volume(config, rank) for rank in _ranks(config) if rank not in own}
    return dict(sorted((own | (_unless_it_hangs(lambda: _read(rest)) or {})).items()))


def _read(files: Mapping[int, Path]) -> dict[int, StageError]:
    """The outcomes in those of the files that are there."""
    found = {}
    for rank, file in files.items():
        with suppress(FileNotFoundError):
            outcome = Outcome.model_validate_json(file.read_bytes())
            report = outcome.report
            found[rank] = StageError(
                outcome.code, report.reason or Reason.INTERNAL_ERROR, report.message, retry=report.retry
            )
    return found


def _unless_it_hangs(action: Callable[[], T]) -> T | None:
    """What it returns; None where the volume does not let it, or not in time. Nothing waits for it then, nor does the process's end."""
    done: Future[T] = Future()

    def act() -> None:
        try:
            done.set_result(action())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=act, name="outcome", daemon=True).start()
    try:
        return done.result(VOLUME_SECONDS)
    except OSError:  # TimeoutError is one
        return None


def _ranks(config: TrainConfig) -> range:
    """Those of all pods."""
    return range(config.processes * max(1, len(config.hosts)))


def _in_pod(config: TrainConfig, rank: int) -> Path:
    """A rank's outcome, for its own launcher."""
    training = hashlib.sha256(config.folder.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"eagle3-{training}-outcome-{rank}.json"


def _on_volume(config: TrainConfig, rank: int) -> Path:
    """A rank's outcome, for the launchers of all pods."""
    return Path(config.folder) / f".outcome-{rank}.json"
