"""Resumable checkpoints: the model's float32 masters, the optimizer and where the training stands.

A checkpoint is a folder ``.step-<n>`` that appears with one rename, once all of it is on the disk: what is listed is
complete, and the newest is the latest. Its name begins with a dot: should scratch and artifact be the same folder, it is a
working file there. The tensors are saved by torch.distributed.checkpoint, every rank its own part,
so that they can be loaded on another number of ranks.

They are written beside the training: it waits while the state is copied to the host's memory, and for no disk. What is
being written then has a process group of its own, because its messages would otherwise meet those of the training.

Nothing random happens after the weights were initialised (samples are shuffled by seed and epoch), so there is no state
of a random generator to keep.
"""

import json
import os
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save
from torch.distributed.tensor import DTensor

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft import child
from eagle3_draft.artifacts import noticing_a_full_volume, sync_folder
from eagle3_draft.stage import StageError

#: Checkpoints that are kept. The older one is there for the day on which the newer cannot be read.
KEPT = 2

_STATE = "state.json"
_NAME = re.compile(r"\.step-(\d+)")


@dataclass
class TrainingState:
    """Where a training stands, between two steps."""

    started: str = ""  # the first time, as an ISO 8601 date
    step: int = 0  # steps that are done
    tokens: int = 0
    seconds: float = 0.0  # spent in steps
    waited: float = 0.0  # of them, the device for batches
    peak_bytes: int = 0  # of memory, on the rank that took most
    resumed: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)  # loss and accuracy in training
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # on the held-out conversations
    best: int = 0  # index of the evaluation whose weights were kept; len(evaluations) where none were, or they are lost

    @property
    def has_best(self) -> bool:
        """Whether the weights of an evaluation were kept."""
        return self.best < len(self.evaluations)


class Checkpoints:
    """The checkpoints in a folder. All ranks call every method together, except ``busy``.

    Args:
        folder: of the checkpoints, on storage that all ranks see.
        model, optimizer: what is saved and loaded.
    """

    def __init__(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._folder = folder
        self._model = model
        self._optimizer = optimizer
        self._group = dist.new_group(backend="gloo")
        self._newest: int | None = None  # step of the newest checkpoint, as far as this process made or loaded it
        self._publisher = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def save(self, state: TrainingState) -> None:
        """Take down this state, unless the newest checkpoint is of the same step; it is published by and by.

        Raises:
            OSError: the checkpoint before could not be written.
        """
        if state.step == self._newest:
            return
        self.wait()
        self._newest = state.step
        partial = self._folder / f".step-{state.step}.partial"
        if dist.get_rank() == 0:
            partial.mkdir(parents=True)
        dist.barrier(self._group)
        written = async_save(self._tensors(), checkpoint_id=partial, process_group=self._group)
        if isinstance(written, AsyncSaveResponse):
            written = written.upload_completion
        self._pending = self._publisher.submit(self._publish, partial, json.dumps(asdict(state)), written)

    def busy(self) -> bool:
        """Whether the last checkpoint is still being written. Raises what it failed of, if it did."""
        if self._pending is None or not self._pending.done():
            return self._pending is not None
        self.wait()
        return False

    def wait(self) -> None:
        """Return once the last checkpoint is published. Raises what it failed of, if it did."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _publish(self, partial: Path, state: str, written: "Future[Any]") -> None:
        try:
            with noticing_a_full_volume(partial):
                written.result()
        except CheckpointException as error:
            # Its first cause says what it means for the Job
            raise next(iter(error.failures.values()))[0] from error
        if dist.get_rank() != 0:
            return
        with (partial / _STATE).open("w") as file:
            file.write(state)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(partial)
        final = partial.with_suffix("")
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        sync_folder(self._folder)
        for old in self._published()[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)

    def load(self) -> TrainingState | None:
        """Load the newest checkpoint that can be gone on from; None where there is none at all.

        What an earlier run left half written is removed, and so is what was passed over: it would count among those that are kept.

        Raises:
            StageError: there are checkpoints, and none can be gone on from (CheckpointUnreadable).
            BaseException: what a rank met that says nothing of the checkpoint, as of ``_problem``; none is removed.
        """
        if dist.get_rank() == 0:
            for partial in self._folder.glob(".step-*.partial"):
                shutil.rmtree(partial, ignore_errors=True)
        problems: dict[str, str] = {}
        for name, state in self._found():
            if isinstance(state, str):
                problems[name] = state
                continue
            tensors = self._tensors()
            try:
                load(tensors, checkpoint_id=self._folder / name)
            except (CheckpointException, OSError, ValueError, TypeError) as error:
                problems[name] = _problem(error)
                continue
            if not self._is_finite(tensors):
                problems[name] = "not finite"
                continue
            set_state_dict(
                self._model,
                self._optimizer,
                model_state_dict=tensors["model"],
                optim_state_dict=tensors["optimizer"],
            )
            self._newest = state.step
            if dist.get_rank() == 0:
                for worse in problems:
                    shutil.rmtree(self._folder / worse, ignore_errors=True)
            return state
        if problems:
            of_each = ", ".join(f"{name}: {problem}" for name, problem in problems.items())
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.CHECKPOINT_UNREADABLE,
                f"no checkpoint in {self._folder} can be gone on from ({of_each}). Where spec.image or the operator was changed, "
                "change it back; else delete the folder to train anew",
            )
        return None

    def _found(self) -> list[tuple[str, TrainingState | str]]:
        """The complete checkpoints, the newest first: what state each is of, or which error says that it cannot be read.

        As rank 0 sees them, for all: on a network's volume another node may see one more or one less, and all load the same.
        """
        found: list[Any] = [None]
        if dist.get_rank() == 0:
            found = [[(folder.name, _state_of(folder)) for folder in self._published()]]
        dist.broadcast_object_list(found, group=self._group)
        return found[0]  # type: ignore[no-any-return]

    def _is_finite(self, tensors: dict[str, Any]) -> bool:
        """Whether all numbers are, on all ranks: a checkpoint may have been made before a loss could tell."""
        of_optimizer = (part for of_weight in tensors["optimizer"]["state"].values() for part in of_weight.values())
        own = [
            part.to_local() if isinstance(part, DTensor) else part
            for part in (*tensors["model"].values(), *of_optimizer)
        ]
        bad = torch.tensor(sum(int((~part.isfinite()).sum()) for part in own))
        dist.all_reduce(bad, group=self._group)
        return bad.item() == 0

    def _tensors(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def _published(self) -> list[Path]:
        """Complete checkpoints, the newest first."""
        if not self._folder.is_dir():
            return []
        found = {int(name[1]): path for path in self._folder.iterdir() if (name := _NAME.fullmatch(path.name))}
        return [found[step] for step in sorted(found, reverse=True)]


def _state_of(folder: Path) -> TrainingState | str:
    """What state a checkpoint is of, or the kind of error that it cannot be read for.

    What a newer version says besides, whose image was taken back since, is not needed to go on.

    Raises:
        OSError: as of ``_problem``.
    """
    try:
        said = json.loads((folder / _STATE).read_text())
        return TrainingState(**{own.name: said[own.name] for own in fields(TrainingState) if own.name in said})
    except (OSError, ValueError, TypeError) as error:
        return _problem(error)


def _problem(error: BaseException) -> str:
    """The kind of error that a checkpoint cannot be read for: of several ranks', that of the first.

    Raises:
        BaseException: what one of them met, where another try may read the same checkpoint: there was no memory, or a volume or
            a device was away.
    """
    met = [cause for cause, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    for cause in met:
        if child.is_out_of_memory(cause) or child.is_momentary(cause):
            raise cause
    return type(met[0]).__name__
