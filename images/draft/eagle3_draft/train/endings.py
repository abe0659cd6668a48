"""How the ranks of a training ended, and what of it the stage says.

A rank that fails leaves its outcome in a file, because the elastic launcher hands on an exit code at best. One that is killed
leaves nothing, and all others then fail too, of its silence. The launcher names the lowest rank that it finds ended, whichever
was the first: what they said is therefore put together here.

The file lies beside the artifact, where the launchers of all pods find it. Where that volume takes nothing, which may be what
the rank failed of, it lies in the pod: its own launcher at least says what it was.
"""

import hashlib
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName, TrainConfig
from eagle3_draft import child
from eagle3_draft.child import Outcome
from eagle3_draft.files import write_atomic
from eagle3_draft.stage import StageError
from eagle3_draft.termination import interrupted

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
    for file in _files(config, rank):
        with suppress(OSError):
            write_atomic(file, outcome.model_dump_json(by_alias=True).encode())
            break
    return outcome.code


def forget(config: TrainConfig) -> None:
    """Remove what the ranks of an earlier try left."""
    for rank in _ranks(config):
        for said in _files(config, rank):
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
            f"rank {', '.join(map(str, silent))} of the training died and said nothing{cause}. The next try goes on from the last checkpoint",
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
        f"another process of this training ended ({said.splitlines()[0][:200]}); the next try goes on from the last checkpoint",
    )


def _said(config: TrainConfig) -> dict[int, StageError]:
    """The outcome that each rank left, by rank, ascending."""
    found = {}
    for rank in _ranks(config):
        for file in _files(config, rank):
            with suppress(FileNotFoundError):
                outcome = Outcome.model_validate_json(file.read_bytes())
                report = outcome.report
                found[rank] = StageError(
                    outcome.code, report.reason or Reason.INTERNAL_ERROR, report.message, retry=report.retry
                )
    return found


def _ranks(config: TrainConfig) -> range:
    """Those of all pods."""
    return range(config.processes * max(1, len(config.hosts)))


def _files(config: TrainConfig, rank: int) -> tuple[Path, Path]:
    """Where a rank's outcome lies: on the volume of the artifact, else in the pod."""
    training = hashlib.sha256(config.folder.encode()).hexdigest()[:16]
    return (
        Path(config.folder) / f".outcome-{rank}.json",
        Path(tempfile.gettempdir()) / f"eagle3-{training}-outcome-{rank}.json",
    )
