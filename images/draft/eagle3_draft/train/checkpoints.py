"""Resumable checkpoints: the model's float32 masters, the optimizer and where the training stands.

A checkpoint is a folder ``.step-<n>`` that appears with one rename, once all of it is on the disk: what is listed is
complete, and the newest is the latest. Its name begins with a dot: should scratch and artifact be the same folder, it is a
working file there. The tensors are saved by torch.distributed.checkpoint, every rank its own part,
so that they can be loaded on another number of ranks.

They are written beside the training: it waits while the state is copied to the host's memory, and for no disk. What is
being written then has a process group of its own, because its messages would otherwise meet those of the training. A volume
that takes nothing and says nothing, as one whose server is away, is waited for so long and no longer.

What was written is known by its digests, in the file ``SHA256SUMS`` (for ``sha256sum --check``): a checkpoint that changed on
its volume is not gone on from.

Nothing random happens after the weights were initialised (samples are shuffled by seed and epoch), so there is no state
of a random generator to keep.
"""

import concurrent.futures
import errno
import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save
from torch.distributed.tensor import DTensor

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.files import file_digest, noticing_a_full_volume, sync_folder, write_atomic
from eagle3_draft.runtime import child
from eagle3_draft.train.hashed import HashedWriter

#: Checkpoints that are kept. The older one is there for the day on which the newer cannot be read.
KEPT = 2

#: Seconds after which it is told that a checkpoint is still being written.
SLOW = 60.0

#: What a file system says of a file that it lost or finds damaged. All else may be another at the next try.
_OF_A_FILE = frozenset({errno.ENOENT, errno.EUCLEAN, errno.EBADMSG})

#: How the state is copied to the host's memory: as ``async_save`` does by itself where nobody brings a writer.
_STAGING = StagingOptions(
    use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
)

_STATE = "state.json"
_SUMS = "SHA256SUMS"
_NAME = re.compile(r"\.step-(\d+)")


def rank_timeout(patience: float) -> timedelta:
    """How long ranks wait for each other: longer than ``patience``, seconds by which all of them give up together."""
    return timedelta(seconds=2 * patience + SLOW)


@dataclass
class TrainingState:
    """Where a training stands, between two steps."""

    started: str = ""  # the first time, as an ISO 8601 date
    step: int = 0  # steps that are done
    tokens: int = 0
    seconds: float = 0.0  # spent in steps
    measured: float = 0.0  # seconds spent on the held-out conversations
    waited: float = 0.0  # of them, the device for batches
    busy: float = 1.0  # ``Plan.busy``, of the ranks that train now
    peak_bytes: int = 0  # of memory, on the rank that took most
    resumed: int = 0
    passed_over: list[str] = field(default_factory=list)  # checkpoints that could not be gone on from, and why
    curve: list[dict[str, Any]] = field(default_factory=list)  # loss and accuracy in training
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # on the held-out conversations
    best: int = 0  # index of the evaluation whose weights were kept; len(evaluations) where none were, or they are lost

    @property
    def has_best(self) -> bool:
        """Whether the weights of an evaluation were kept."""
        return self.best < len(self.evaluations)


class Checkpoints:
    """The checkpoints in a folder. All ranks call every method together, except ``busy`` and ``slow``.

    Args:
        folder: of the checkpoints, on storage that all ranks see.
        model, optimizer: what is saved and loaded.
        patience: seconds after which one that is still being written is given up, and the training with it.
    """

    def __init__(
        self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, patience: float
    ) -> None:
        self._folder = folder
        self._model = model
        self._optimizer = optimizer
        self._patience = patience
        # Whoever waits here for a rank that writes gives up as all do, not by a time of its own
        self._group = dist.new_group(backend="gloo", timeout=rank_timeout(patience))
        # Step of the newest checkpoint, as far as this process made or loaded it; what a training begins with needs none, and to save an
        # optimizer before its first step would count one
        self._newest = 0
        self._publisher = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        self._began = 0.0  # when the newest was

    def save(self, state: TrainingState) -> None:
        """Take down this state, unless the newest checkpoint is of the same step; it is published by and by.

        Raises:
            OSError: the checkpoint before could not be written.
            StageError: it is still being written after ``patience`` (StorageUnavailable).
        """
        if state.step == self._newest:
            return
        self.wait()
        self._newest = state.step
        self._began = time.monotonic()
        writer, stager = HashedWriter(self._folder / f".step-{state.step}.partial"), DefaultStager(_STAGING)
        written = async_save(self._tensors(), storage_writer=writer, async_stager=stager, process_group=self._group)
        if isinstance(written, AsyncSaveResponse):
            written = written.upload_completion
        written.add_done_callback(lambda _: stager.close())
        self._pending = self._publisher.submit(self._publish, writer, json.dumps(asdict(state)), written)

    def busy(self) -> bool:
        """Whether the last checkpoint is still being written, within ``patience``. Raises what it failed of, if it did.

        After that, the next is due, with which all ranks see together that it is not.
        """
        if self._pending is None:
            return False
        if not self._pending.done():
            return self._seconds() < self._patience
        self.wait()
        return False

    def slow(self) -> str:
        """That the last checkpoint is still being written, in words, once that takes unusually long; else nothing."""
        if self._pending is None or self._pending.done() or self._seconds() < SLOW:
            return ""
        return f"the checkpoint of step {self._newest} is being written for {self._seconds() / 60:.0f}m"

    def wait(self) -> None:
        """Return once the last checkpoint is published. Raises what it failed of, if it did, and as ``save``."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        concurrent.futures.wait([pending], self._patience - self._seconds())
        if not pending.done():
            raise StageError(
                ExitCode.ENGINE_CRASHED,
                Reason.STORAGE_UNAVAILABLE,
                f"the checkpoint of step {self._newest} was not written within {self._seconds():,.0f} seconds: the volume of "
                f"{self._folder} hangs, or is too slow for train.stallTimeout. The next try continues from the checkpoint before it",
            )
        pending.result()

    def _seconds(self) -> float:
        """Since the newest was begun."""
        return time.monotonic() - self._began

    def _publish(self, writer: HashedWriter, state: str, written: "Future[Any]") -> None:
        partial = Path(writer.path)
        try:
            with noticing_a_full_volume(partial):
                written.result()
        except CheckpointException as error:
            # Its first cause says what it means for the Job
            raise next(iter(error.failures.values()))[0] from error
        of_ranks: list[dict[str, str]] | None = [{}] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(writer.digests, of_ranks, group=self._group)
        if of_ranks is None:
            return
        write_atomic(partial / _STATE, state.encode())
        digests = {_STATE: hashlib.sha256(state.encode()).hexdigest()}
        for of_rank in of_ranks:
            digests |= of_rank
        write_atomic(partial / _SUMS, "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode())
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
        for found in self._found():
            tensors = self._tensors()
            if problem := found.problem or self._change(found) or self._load(found, tensors):
                problems[found.name] = problem
                continue
            set_state_dict(
                self._model,
                self._optimizer,
                model_state_dict=tensors["model"],
                optim_state_dict=tensors["optimizer"],
            )
            self._newest = found.state.step
            found.state.passed_over += [f"{name}: {problem}" for name, problem in problems.items()]
            if dist.get_rank() == 0:
                for worse, problem in problems.items():
                    sys.stderr.write(
                        f"{self._folder / worse} is passed over for {found.name}, and removed: {problem}\n"
                    )
                    shutil.rmtree(self._folder / worse, ignore_errors=True)
            return found.state
        if problems:
            of_each = ", ".join(f"{name}: {problem}" for name, problem in problems.items())
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.CHECKPOINT_UNREADABLE,
                f"the training cannot continue from any checkpoint in {self._folder} ({of_each}). If spec.image or the operator was changed, "
                "change it back; otherwise delete the folder to train from the beginning",
            )
        return None

    def _found(self) -> "list[_Found]":
        """The complete checkpoints, the newest first.

        As rank 0 sees them, for all: on a network's volume another node may see one more or one less, and all load the same.
        """
        found: list[Any] = [None]
        if dist.get_rank() == 0:
            found = [[_Found.of(folder) for folder in self._published()]]
        dist.broadcast_object_list(found, group=self._group)
        return found[0]  # type: ignore[no-any-return]

    def _change(self, found: "_Found") -> str:
        """Which file of a checkpoint is not as it was written; nothing if all are. Each rank reads some.

        Raises:
            OSError: as of ``_problem``.
        """
        own = sorted(found.digests.items())[dist.get_rank() :: dist.get_world_size()]
        changed = next((name for name, digest in own if _digest(self._folder / found.name / name) != digest), "")
        of_ranks = [""] * dist.get_world_size()
        dist.all_gather_object(of_ranks, changed, group=self._group)
        return next((f"{name} is not as it was written" for name in of_ranks if name), "")

    def _load(self, found: "_Found", tensors: dict[str, Any]) -> str:
        """Load a checkpoint into tensors; returns why it cannot be gone on from, or nothing.

        Raises:
            BaseException: as of ``_problem``.
        """
        try:
            load(tensors, checkpoint_id=self._folder / found.name)
        except (CheckpointException, OSError, ValueError, TypeError) as error:
            return _problem(error)
        return "" if self._is_finite(tensors) else "not finite"

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


@dataclass
class _Found:
    """A checkpoint that is complete."""

    name: str  # of its folder
    state: TrainingState = field(default_factory=TrainingState)
    digests: Mapping[str, str] = field(default_factory=dict)  # sha256 by file
    problem: str = ""  # why the two cannot be read, if so

    @classmethod
    def of(cls, folder: Path) -> "_Found":
        """What a folder says.

        What a newer version says besides, whose image was taken back since, is not needed to go on.

        Raises:
            OSError: as of ``_problem``.
        """
        try:
            said = json.loads((folder / _STATE).read_text())
            state = TrainingState(**{own.name: said[own.name] for own in fields(TrainingState) if own.name in said})
            return cls(folder.name, state, _digests(folder))
        except (OSError, ValueError, TypeError) as error:
            return cls(folder.name, problem=_problem(error))


def _digests(folder: Path) -> dict[str, str]:
    """The digests of a checkpoint's files by their names.

    Raises:
        OSError: there are none.
        ValueError: they are not as they were written.
    """
    lines = (folder / _SUMS).read_text().splitlines()
    digests = {name: digest for digest, name in (line.split("  ") for line in lines)}
    if _STATE not in digests:  # the last by its name
        raise ValueError(f"{_SUMS} was cut short")
    return digests


def _digest(path: Path) -> str:
    """The digest of a file, or the kind of error that says that it is not as it was written.

    Raises:
        OSError: as of ``_problem``.
    """
    try:
        return file_digest(path)
    except OSError as error:
        return _problem(error)


def _problem(error: BaseException) -> str:
    """The kind of error that a checkpoint cannot be read for: of several ranks', that of the first.

    Raises:
        BaseException: what one of them met, where another try may read the same checkpoint: there was no memory, or a volume or
            a device was away or let nobody in.
    """
    met = [cause for cause, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
    for cause in met:
        of_the_volume = isinstance(cause, OSError) and cause.errno not in _OF_A_FILE
        if of_the_volume or child.is_out_of_memory(cause) or child.is_momentary(cause):
            raise cause
    return type(met[0]).__name__
