"""The loop of one rank: when it measures, what it keeps, when it ends."""

import importlib
import json
import math
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from eagle3_api.artifacts import CONFIG, VOCABULARY, WEIGHTS
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, TrainConfig
from eagle3_api.spec import EarlyStop
from eagle3_draft.errors import StageError
from eagle3_draft.features import Features, Sample
from eagle3_draft.inspect.checkpoint import checkpoint_digest
from eagle3_draft.model.config import draft_config
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.factor import FACTORS, Fp8Factor
from eagle3_draft.model.target import Target
from eagle3_draft.train import checkpoints, loop
from eagle3_draft.train.batches import Batch, pack
from eagle3_draft.train.best import BestWeights
from eagle3_draft.train.checkpoints import TrainingState
from eagle3_draft.train.evaluate import Evaluation, evaluate
from eagle3_draft.train.learning import Learning
from eagle3_draft.train.loop import REPLAY_STEPS, Training
from eagle3_draft.train.loss_kernel import UnrollLoss
from eagle3_draft.train.publish import publish
from eagle3_draft.train.vocabulary import USAGE_FILE, Usage, choose
from published.layouts import LAYOUTS, Original
from testcluster.wait import wait_for
from unit.convert import drafts
from unit.train import corpus

# Each goes through a whole stage, which takes seconds
pytestmark = [pytest.mark.stages, pytest.mark.usefixtures("one_rank")]

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> corpus.Corpus:
    return corpus.make(tmp_path_factory.mktemp("corpus"), train=12, held_out=2)


@dataclass
class Stop:
    """The pod is to end once so many looks were taken."""

    looks: float = math.inf

    @property
    def received(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def prepared(made: corpus.Corpus, out: Path, **changes: Any) -> TrainConfig:
    """A configuration, and what the launcher writes before the ranks start."""
    config = corpus.train_config(made, out, **changes)
    folder = Path(config.folder)
    folder.mkdir(exist_ok=True)
    choose(torch.ones(corpus.VOCABULARY, dtype=torch.int64), 64, always=[]).save(folder / VOCABULARY)
    sizes = draft_config(Target(made.target).config, layers=config.layers, draft_vocabulary_size=64)
    (folder / CONFIG).write_text(json.dumps(sizes.to_json()))
    return config


def trained(config: TrainConfig, looks: float = math.inf) -> TrainingState:
    Path(config.scratch).mkdir(exist_ok=True)
    return Training(config, CPU, Stop(looks)).run()


def measured_at(state: TrainingState) -> list[int]:
    return [evaluation["step"] for evaluation in state.evaluations]


def test_it_measures_as_often_as_asked_and_always_at_an_epoch_s_end(made: corpus.Corpus, tmp_path: Path) -> None:
    state = trained(prepared(made, tmp_path, evaluations_per_epoch=2))
    steps = measured_at(state)
    assert [evaluation["epoch"] for evaluation in state.evaluations] == [1, 1, 2, 2]
    assert steps == sorted(set(steps))
    assert steps[-1] == state.step


def test_a_draft_that_is_gone_on_from_is_measured_before_the_first_step_and_learns_as_if_it_were_not(
    made: corpus.Corpus, tmp_path: Path
) -> None:
    """To save an optimizer that took no step yet has it count one, by which its first steps would be smaller."""
    sizes = draft_config(Target(made.target).config, layers=corpus.LAYERS, draft_vocabulary_size=64)
    draft = Draft(sizes)
    draft.initialise(3)
    ids = choose(torch.ones(corpus.VOCABULARY, dtype=torch.int64), 64, always=[]).ids
    there = tmp_path / "there"
    there.mkdir()
    layer = drafts.as_transformers(sizes)
    LAYOUTS["SpecForge"](Original(dict(draft.state_dict()), ids, layer, tuple(corpus.LAYERS)), there)
    brought = {"init_from": str(there), "init_digest": checkpoint_digest(there)}
    Path(tmp_path / "scratch").mkdir()
    training = Training(prepared(made, tmp_path, epochs=1, **brought), CPU, Stop())
    state = training.run()
    assert measured_at(state) == [0, state.step]
    assert {int(one["step"]) for one in training.learning.optimizer.state.values()} == {state.step}


def test_the_published_weights_are_those_that_were_measured_best(made: corpus.Corpus, tmp_path: Path) -> None:
    wild = prepared(made, tmp_path, epochs=3, learning_rate=0.1, evaluations_per_epoch=2)  # it gets worse in between
    state = trained(wild)
    lengths = [fmean(evaluation["accept_length"][: wild.unroll_steps]) for evaluation in state.evaluations]
    assert lengths[state.best] == max(lengths) > lengths[-1]
    until = wild.model_copy(update={"folder": str(tmp_path / "again"), "scratch": str(tmp_path / "scratch2")})
    Path(until.folder).mkdir()
    for name in (CONFIG, VOCABULARY):
        (Path(until.folder) / name).write_bytes((Path(wild.folder) / name).read_bytes())
    best = state.evaluations[state.best]["step"]
    with pytest.raises(StageError, match=f"after step {best} of"):
        trained(until, looks=best - 1 + state.best)  # once before each step, and in each measure
    kept, again = load_file(Path(wild.folder) / WEIGHTS), _interrupted_weights(until)
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    recorded = BestWeights(Path(wild.folder)).proposals(best)
    assert recorded is not None
    assert torch.equal(recorded, corpus.proposed_by(Path(wild.folder), made, wild.unroll_steps))


def _interrupted_weights(config: TrainConfig) -> dict[str, torch.Tensor]:
    training = Training(config, CPU, Stop())
    assert training.checkpoints.load() is not None
    return {name: weight.full_tensor() for name, weight in training.learning.model.state_dict().items()}


def test_the_best_draft_is_good_with_every_number_of_steps_up_to_those_it_unrolls(
    made: corpus.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = prepared(made, tmp_path, unroll_steps=3)
    better, with_the_last_alone = [2.0] * REPLAY_STEPS, [1.0, 1.0, 3.0] + [8.0] * (REPLAY_STEPS - 3)
    lengths = iter([better, with_the_last_alone])

    def measured(*given: Any, **named: Any) -> Evaluation:
        return replace(evaluate(*given, **named), accept_length=next(lengths))

    monkeypatch.setattr(loop, "evaluate", measured)
    state = trained(config)
    assert (len(state.evaluations), state.best) == (2, 0)


def test_weights_that_are_lost_meanwhile_are_not_missed_at_the_end(made: corpus.Corpus, tmp_path: Path) -> None:
    wild = prepared(made, tmp_path, learning_rate=0.1, evaluations_per_epoch=2)
    state = trained(wild)
    assert measured_at(state)[state.best] < state.step
    for lost in (Path(wild.folder) / WEIGHTS, *Path(wild.folder).glob(".best-*")):
        lost.unlink()
    again = trained(wild)
    assert measured_at(again)[again.best] == state.step  # of what its checkpoint has, all was measured before
    last = _interrupted_weights(wild)
    assert all(torch.equal(kept, last[name]) for name, kept in load_file(Path(wild.folder) / WEIGHTS).items())


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_an_ended_training_reads_nothing_more(split: str, made: corpus.Corpus, tmp_path: Path) -> None:
    config = prepared(made, tmp_path)
    Path(config.scratch).mkdir()
    training = Training(config, CPU, Stop(looks=0))
    with pytest.raises(StageError, match="interrupted"):
        training.run()
    with pytest.raises(RuntimeError, match="after shutdown"):
        getattr(training, split).expect([0])


def test_the_next_held_out_conversations_are_read_while_some_are_measured_and_its_time_is_told(
    made: corpus.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = prepared(made, tmp_path, epochs=0, tokens_per_step=1)  # nothing but a measure, one by one
    Path(config.scratch).mkdir()
    training = Training(config, CPU, Stop())
    read, unroll_loss = training.held_out.read, training.learning.unroll_loss
    reads: list[Sequence[int]] = []
    second = threading.Event()

    def noted(indices: Sequence[int]) -> list[Sample]:
        reads.append(indices)
        if len(reads) == 2:
            second.set()
        return read(indices)

    def after_the_second(batch: Batch, weights: torch.Tensor) -> UnrollLoss:
        assert second.wait(60)
        return unroll_loss(batch, weights)

    monkeypatch.setattr(training.held_out, "read", noted)
    monkeypatch.setattr(training.learning, "unroll_loss", after_the_second)
    assert training.run().measured > 0
    assert len(reads) == 2


def test_a_measure_holds_two_batches_at_most_however_many_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def noted(*given: Any, **named: Any) -> Batch:
        batch = pack(*given, **named)
        features.append(weakref.ref(batch.features))
        alive.append(sum(one() is not None for one in features))
        return batch

    many = corpus.make(tmp_path, train=1, held_out=8)
    monkeypatch.setattr(importlib.import_module("eagle3_draft.train.evaluate"), "pack", noted)
    trained(prepared(many, tmp_path, epochs=0, tokens_per_step=1))  # nothing but a measure, one by one
    assert len(alive) == 8
    assert max(alive) <= 2


def test_a_step_in_several_passes_is_the_same_step(made: corpus.Corpus, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    one = trained(prepared(made, whole, tokens_per_step=200))
    several = prepared(made, parts, tokens_per_step=200, tokens_per_pass=50)
    two = trained(several)
    assert two.step == one.step
    assert two.tokens / two.step > 2 * 50  # so that each took more than two passes
    assert [point["loss"] for point in two.curve] == pytest.approx([point["loss"] for point in one.curve], rel=1e-4)
    assert two.evaluations[-1]["accuracy"] == pytest.approx(one.evaluations[-1]["accuracy"], abs=0.02)


def test_every_step_rounds_to_fp8_also_after_a_measure_and_no_measure_does(
    made: corpus.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded: list[torch.Tensor] = []
    unrolls: list[tuple[bool, bool]] = []  # whether it learns, whether it rounds

    class Noted(Fp8Factor):
        def __init__(self, weight: torch.Tensor) -> None:
            super().__init__(weight)
            rounded.append(weight)

    def noted(learning: Learning, batch: Batch, weights: torch.Tensor) -> UnrollLoss:
        rounded.clear()
        result = unroll_loss(learning, batch, weights)
        unrolls.append((torch.is_grad_enabled(), bool(rounded)))
        return result

    unroll_loss = Learning.unroll_loss
    monkeypatch.setattr(Learning, "unroll_loss", noted)
    monkeypatch.setitem(FACTORS, "fp8", Noted)
    trained(prepared(made, tmp_path, precision="fp8"))
    assert [unroll for unroll, _ in groupby(unrolls)] == 2 * [(True, True), (False, False)]


def test_a_training_that_no_longer_gets_better_ends_early(made: corpus.Corpus, tmp_path: Path) -> None:
    config = prepared(made, tmp_path, epochs=50, learning_rate=1e-12, early_stop=EarlyStop(patience=2))
    state = trained(config)
    assert len(state.evaluations) == 3  # the first is one to compare with
    assert state.evaluations[-1]["epoch"] == 3


def test_an_early_end_is_the_same_for_a_training_that_was_interrupted(made: corpus.Corpus, tmp_path: Path) -> None:
    changes = {"epochs": 50, "learning_rate": 1e-12, "early_stop": EarlyStop(patience=1)}
    (tmp_path / "whole").mkdir()
    whole = trained(prepared(made, tmp_path / "whole", **changes))
    config = prepared(made, tmp_path, **changes)
    for _ in range(3):
        with pytest.raises(StageError, match="interrupted"):
            trained(config, looks=1)
    state = trained(config)
    assert (state.step, state.resumed) == (whole.step, 3)
    assert state.curve == whole.curve
    assert state.evaluations == whole.evaluations


def test_a_draft_on_one_layer_which_has_no_use_for_fc_goes_on_from_its_checkpoint(
    made: corpus.Corpus, tmp_path: Path
) -> None:
    one = corpus.of_one_layer(made, tmp_path / "features")
    (tmp_path / "whole").mkdir()
    whole = trained(prepared(one, tmp_path / "whole", layers=corpus.LAYERS[:1]))
    config = prepared(one, tmp_path, layers=corpus.LAYERS[:1])
    with pytest.raises(StageError, match="interrupted"):
        trained(config, looks=3)
    state = trained(config)
    assert (state.step, state.resumed) == (whole.step, 1)
    assert state.curve == whole.curve


@pytest.mark.parametrize(("split", "spoil"), [("train", 2), ("held-out", 5)])
def test_numbers_that_are_not_finite_are_found_down_to_conversation_and_shard(
    split: str, spoil: int, tmp_path: Path
) -> None:
    made = corpus.make(tmp_path, train=4, held_out=2, spoil=spoil)
    config = prepared(made, tmp_path)
    with pytest.raises(
        StageError, match=rf"step \d+ of \d+.*{split} conversation \d \(number \d of .*00000"
    ) as stopped:
        trained(config)
    assert (stopped.value.code, stopped.value.reason) == (ExitCode.NON_FINITE, Reason.NON_FINITE)


def test_a_training_that_diverges_names_the_step_and_what_it_was_made_of(made: corpus.Corpus, tmp_path: Path) -> None:
    config = prepared(made, tmp_path, learning_rate=1e30, tokens_per_step=200)
    with pytest.raises(
        StageError,
        match=r"step \d+ of \d+.*finite: lower train.learningRate. They are \d+ \(number \d+ of .*00000\S*\)(, \d+ \(number|$)",
    ) as stopped:
        trained(config)
    assert (stopped.value.code, stopped.value.reason) == (ExitCode.NON_FINITE, Reason.NON_FINITE)


def test_it_tells_its_speed_its_waiting_its_memory_and_how_much_of_the_answers_the_draft_can_say(
    made: corpus.Corpus, tmp_path: Path
) -> None:
    config, train = prepared(made, tmp_path), Features.open(made.features).train
    state = trained(config)
    assert state.tokens == 2 * int(train.lengths.sum())
    assert 0 < state.waited < state.seconds
    assert state.peak_bytes > 2**20
    Usage.of(train.texts(), corpus.VOCABULARY).save(Path(config.folder) / USAGE_FILE)
    assert state.busy == 1.0  # as one rank alone always is
    state.busy = 0.75
    told = publish(config, state)
    assert (told.tokens, told.peak_memory_bytes) == (state.tokens, state.peak_bytes)
    assert told.busy == 0.75
    words = [token for text in train.texts() for token in text.input_ids[text.loss_mask.bool()].tolist()]
    assert told.vocabulary_coverage == pytest.approx(sum(word < 64 for word in words) / len(words), abs=1e-4)
    assert 0 < told.vocabulary_coverage < 1


def test_a_checkpoint_that_takes_unusually_long_is_told_with_the_progress(
    made: corpus.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, write = StringIO(), FileSystemWriter.write_data

    def until_told(*given: Any) -> Any:
        wait_for("the words", 60, lambda: "tokens/s; the checkpoint of step" in said.getvalue())
        return write(*given)

    monkeypatch.setattr(FileSystemWriter, "write_data", until_told)
    monkeypatch.setattr(checkpoints, "SLOW", 0.0)
    monkeypatch.setattr(sys, "stdout", said)
    trained(prepared(made, tmp_path, epochs=1, checkpoint_interval=0.0))
