"""However a draft lies on the ranks, whole, cut up or both, it is the same training, and may go on in another way.

Four ranks, two pods of two, carry out everything that is looked at here, one after the other.
"""

import json
import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from torch.multiprocessing.spawn import start_processes

from eagle3_api.artifacts import WEIGHTS
from eagle3_api.jobs import TrainConfig
from eagle3_api.spec.train import Sharding
from eagle3_draft.model.factor import FACTORS
from eagle3_draft.train.checkpoints import TrainingState
from stages.four_ranks import RANKS, four_ranks, of_rank, values
from unit.train import corpus
from unit.train.test_loop import prepared

pytestmark = pytest.mark.usefixtures("one_rank")

SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)

#: How trainings that are interrupted after their second step begin, and how they go on.
RESUMED: dict[str, tuple[Sharding, Sharding]] = {
    "Hybrid again": ("Hybrid", "Hybrid"),
    "Replicate again": ("Replicate", "Replicate"),
    "Hybrid, then Full": ("Hybrid", "Full"),
    "Full, then Replicate": ("Full", "Replicate"),
}


@dataclass
class Said:
    """What came of it."""

    folder: Path
    steps: dict[str, list[list[float]]]
    states: dict[str, TrainingState]

    def weights(self, training: str) -> bytes:
        return (self.folder / training / "draft" / WEIGHTS).read_bytes()

    def losses(self, training: str) -> list[float]:
        return losses(self.states[training])


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """By the four ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    made = corpus.make(folder, train=16, held_out=5)

    def tries(name: str, *shardings: Sharding) -> list[TrainConfig]:
        (folder / name).mkdir()
        settings: dict[str, Any] = {"tokens_per_step": 160, "tokens_per_pass": 40, "learning_rate": 1e-2}
        config = prepared(made, folder / name, processes=2, hosts=["one", "two"], **settings)
        return [config.model_copy(update={"sharding": sharding}) for sharding in shardings]

    trainings: dict[str, list[TrainConfig]] = {sharding: tries(sharding, sharding) for sharding in SHARDINGS}
    trainings |= {name: tries(name, *shardings) for name, shardings in RESUMED.items()}
    multiprocessing.set_forkserver_preload(["eagle3_draft.train.loop"])  # importing torch takes longest
    start_processes(four_ranks, (folder, trainings), RANKS, start_method="forkserver")  # type: ignore[no-untyped-call]
    found = json.loads((folder / "said.json").read_text())
    return Said(folder, found["steps"], {name: TrainingState(**state) for name, state in found["states"].items()})


def losses(state: TrainingState) -> list[float]:
    return [point["loss"] for point in state.curve]


@pytest.mark.parametrize("precision", list(FACTORS))
@pytest.mark.parametrize("shards", [4, 2, 1])
def test_a_step_of_four_ranks_is_that_of_one(said: Said, precision: str, shards: int) -> None:
    every = [batch for rank in range(RANKS) for batch in of_rank(rank)]
    one, four = values(every, precision), said.steps[f"{precision}, {shards}"]
    for of_four, of_one in zip(four, one, strict=True):
        assert of_four == pytest.approx(of_one, rel=1e-4)


def test_a_training_in_copies_is_that_in_one_copy(said: Said) -> None:
    whole = said.states["Full"]
    for sharding in SHARDINGS:
        state = said.states[sharding]
        assert said.losses(sharding) == pytest.approx(losses(whole), rel=1e-4)
        assert state.evaluations[-1]["loss"] == pytest.approx(whole.evaluations[-1]["loss"], rel=1e-4)


@pytest.mark.parametrize("sharding", ["Hybrid", "Replicate"])
def test_an_interrupted_training_goes_on_to_the_bit(said: Said, sharding: Sharding) -> None:
    again = f"{sharding} again"
    assert said.states[again].resumed == 1
    assert said.states[again].curve == said.states[sharding].curve
    assert said.states[again].evaluations == said.states[sharding].evaluations
    assert said.weights(again) == said.weights(sharding)


@pytest.mark.parametrize("training", [name for name, (one, other) in RESUMED.items() if one != other])
def test_an_interrupted_training_may_go_on_in_another_way(said: Said, training: str) -> None:
    assert said.states[training].resumed == 1
    assert said.losses(training) == pytest.approx(said.losses("Full"), rel=1e-4)
