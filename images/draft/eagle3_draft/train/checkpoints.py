"""Resumable checkpoints: the model's float32 masters, the optimizer and where the training stands.

A checkpoint is a folder ``.step-<n>`` that appears with one rename, once all of it is on the disk: what is listed is
complete, and the newest is the latest. Its name begins with a dot: should scratch and artifact be the same folder, it is a
working file there. The tensors are saved by torch.distributed.checkpoint, every rank its own part,
so that they can be loaded on another number of ranks.

Nothing random happens after the weights were initialised (samples are shuffled by seed and epoch), so there is no state
of a random generator to keep.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.stage import StageError

#: Checkpoints that are kept. The older one is there for the day on which the newer cannot be read.
KEPT = 2

_STATE = "state.json"
_NAME = re.compile(r"\.step-(\d+)")


@dataclass
class TrainingState:
    """Where a training stands, between two steps."""

    epoch: int = 0
    position: int = 0  # steps of this epoch that are done
    step: int = 0  # steps of all epochs that are done
    tokens: int = 0
    seconds: float = 0.0  # spent in steps
    resumed: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)  # loss and accuracy in training
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # on the held-out conversations, one an epoch
    best: int = 0  # index of the evaluation whose weights were kept


class Checkpoints:
    """The checkpoints in a folder. All ranks call every method together.

    Args:
        folder: of the checkpoints, on storage that all ranks see.
        model, optimizer: what is saved and loaded.
    """

    def __init__(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._folder = folder
        self._model = model
        self._optimizer = optimizer
        self._newest: int | None = None  # step of the newest checkpoint, as far as this process made or loaded it

    def save(self, state: TrainingState) -> None:
        """Publish a checkpoint of this state, unless the newest one is of the same step."""
        if state.step == self._newest:
            return
        self._newest = state.step
        partial = self._folder / f".step-{state.step}.partial"
        if dist.get_rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        dist.barrier()
        save(self._tensors(), checkpoint_id=partial)
        if dist.get_rank() == 0:
            with (partial / _STATE).open("w") as file:
                json.dump(asdict(state), file)
                file.flush()
                os.fsync(file.fileno())
            _sync(partial)
            final = self._folder / f".step-{state.step}"
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            _sync(self._folder)
            for old in self._published()[KEPT:]:
                shutil.rmtree(old, ignore_errors=True)
        dist.barrier()

    def load(self) -> TrainingState | None:
        """Load the newest checkpoint that can be read; None where there is none to go on from.

        Raises:
            StageError: there are checkpoints, and none can be read (CheckpointUnreadable).
        """
        published = self._published()
        problems = []
        for folder in published:
            try:
                state = TrainingState(**json.loads((folder / _STATE).read_text()))
                tensors = self._tensors()
                load(tensors, checkpoint_id=folder)
            except (CheckpointException, OSError, ValueError, TypeError) as error:
                problems.append(f"{folder.name}: {type(error).__name__}")
                continue
            set_state_dict(
                self._model,
                self._optimizer,
                model_state_dict=tensors["model"],
                optim_state_dict=tensors["optimizer"],
            )
            self._newest = state.step
            return state
        if problems:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.CHECKPOINT_UNREADABLE,
                f"no checkpoint in {self._folder} can be read ({', '.join(problems)}). Delete the folder to train anew",
            )
        return None

    def _tensors(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def _published(self) -> list[Path]:
        """Complete checkpoints, the newest first."""
        if not self._folder.is_dir():
            return []
        found = {int(name[1]): path for path in self._folder.iterdir() if (name := _NAME.fullmatch(path.name))}
        return [found[step] for step in sorted(found, reverse=True)]


def _sync(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
