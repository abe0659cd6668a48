"""What each of four ranks does in ``test_sharding``; in a module that their processes find by its name."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from eagle3_api.jobs import TrainConfig
from eagle3_draft.errors import StageError
from eagle3_draft.model.factor import FACTORS
from eagle3_draft.train.batches import Batch
from unit.train.corpus import step_on
from unit.train.test_learning import new_batch, new_learning, norms_taken
from unit.train.test_loop import trained

RANKS = 4


def of_rank(rank: int) -> list[Batch]:
    """A rank's two passes of a step; no two are of the same size."""
    return [new_batch(40 + 11 * rank), new_batch(30 + 7 * rank)]


def values(batches: Sequence[Batch], precision: str, shards: int | None = None) -> list[list[float]]:
    """Of a few steps: loss, gradient norm, accuracy, and the norm that the optimizer takes."""
    learning = new_learning(FACTORS[precision], shards=shards)
    taken = norms_taken(learning)
    told = [step_on(learning, *batches, rate=1e-3, notes=torch.zeros(0)).tolist() for _ in range(3)]
    return [[*of_step, norm] for of_step, norm in zip(told, taken, strict=True)]


def four_ranks(rank: int, folder: Path, trainings: dict[str, list[TrainConfig]]) -> None:
    """What each of them does. Of a training, all tries but the last are interrupted, by what the last rank alone is told."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "meeting"), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    steps = {
        f"{precision}, {shards}": values(of_rank(rank), precision, shards)
        for precision in FACTORS
        for shards in (4, 2, 1)
    }
    states = {}
    for name, tries in trainings.items():
        for config in tries[:-1]:
            with pytest.raises(StageError, match="interrupted after step"):
                trained(config, 2 if rank == RANKS - 1 else math.inf)
        states[name] = asdict(trained(tries[-1]))
    dist.destroy_process_group()
    if rank == 0:
        (folder / "said.json").write_text(json.dumps({"steps": steps, "states": states}))
