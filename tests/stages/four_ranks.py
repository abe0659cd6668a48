"""What each of four ranks does in ``test_sharding``; in a module that their processes find by its name."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from eagle3_api.jobs import TrainConfig
from eagle3_draft.model.factor import FACTORS
from eagle3_draft.stage import StageError
from eagle3_draft.train.batches import Batch
from unit.train.corpus import step_on
from unit.train.test_learning import new_batch, new_learning
from unit.train.test_loop import trained

RANKS = 4


def of_rank(rank: int) -> list[Batch]:
    """A rank's two passes of a step; no two are of the same size."""
    return [new_batch(40 + 11 * rank), new_batch(30 + 7 * rank)]


def values(batches: Sequence[Batch], precision: str, shards: int | None = None) -> list[list[float]]:
    """Loss, gradient norm and accuracy of a few steps."""
    learning = new_learning(FACTORS[precision], shards=shards)
    return [step_on(learning, *batches, rate=1e-3, notes=torch.zeros(0)).tolist() for _ in range(3)]


def four_ranks(rank: int, folder: Path, trainings: dict[str, list[TrainConfig]]) -> None:
    """What each of them does. Of a training, all tries but the last are interrupted; no tries is all of it."""
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
                trained(config, 2)
        states[name] = asdict(trained(tries[-1]))
    dist.destroy_process_group()
    if rank == 0:
        (folder / "said.json").write_text(json.dumps({"steps": steps, "states": states}))
