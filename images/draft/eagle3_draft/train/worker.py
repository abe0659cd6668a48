"""One rank, from its start to its end: what the elastic launcher runs."""

import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
import torch.distributed as dist

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName, TrainConfig, TrainResult
from eagle3_draft import child
from eagle3_draft.artifacts import write_atomic
from eagle3_draft.stage import StageError
from eagle3_draft.train.loop import Training
from eagle3_draft.train.publish import publish

#: What gloo, which raises no error of its own kind, says of a rank that is gone.
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")


def outcome_file(folder: Path, rank: int | Literal["*"]) -> Path:
    """Where a rank that failed says why."""
    return folder / f".outcome-{rank}.json"


def work(config: TrainConfig) -> TrainResult:
    """The whole of one rank. Rank 0 publishes the artifact; every rank returns its result.

    A failure leaves its outcome in a file, because the launcher hands on an exit code at best, and ends the process with
    the exit code of the stage.
    """
    stop = _StopSignal()
    rank = int(os.environ["RANK"])
    try:
        device = _join_group()
        state = Training(config, device, stop).run()
        results: list[Any] = [publish(config, state) if rank == 0 else None]
        dist.broadcast_object_list(results)
    except BaseException as error:
        outcome = child.failure(StageName.TRAIN, config.key, _left_alone(config, error) or error)
        write_atomic(outcome_file(Path(config.folder), rank), outcome.model_dump_json(by_alias=True).encode())
        raise SystemExit(int(outcome.code)) from error
    dist.destroy_process_group()
    result: TrainResult = results[0]
    return result


def _left_alone(config: TrainConfig, error: BaseException) -> StageError | None:
    """What an error means if it came of the end of another pod: it may be tried again, whatever ended that one.

    In one pod the launcher reports the rank that failed first. Between pods nobody does, and all others only see that
    somebody no longer answers.
    """
    if not config.hosts or isinstance(error, StageError):
        return None
    said = str(error)
    if not (isinstance(error, dist.DistError) or any(words in said for words in _LOST)):
        return None
    return StageError(
        ExitCode.ENGINE_CRASHED,
        Reason.JOB_FAILED,
        f"another pod of this training ended ({said.splitlines()[0][:200]}); the next try goes on from the last checkpoint",
    )


class _StopSignal:
    """Remembers that the pod is to end; the training looks at it between two steps."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._receive)
        signal.signal(signal.SIGINT, self._receive)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True


def _join_group() -> torch.device:
    """Join the ranks' process group; returns this rank's device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    return device
