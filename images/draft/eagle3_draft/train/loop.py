"""One rank's training: from the features to the best weights."""

import math
import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from eagle3_api import times
from eagle3_api.artifacts import CONFIG, VOCABULARY
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, TrainConfig, idle_warning
from eagle3_draft.errors import StageError
from eagle3_draft.features import Features
from eagle3_draft.model.config import DraftConfig
from eagle3_draft.model.factor import FACTORS
from eagle3_draft.model.target import Target
from eagle3_draft.storage.places import place_of
from eagle3_draft.tensors import EMBEDDING
from eagle3_draft.train import non_finite
from eagle3_draft.train.batches import Batch
from eagle3_draft.train.begin import first_weights, own_embedding
from eagle3_draft.train.best import BestWeights
from eagle3_draft.train.checkpoints import Checkpoints, TrainingState
from eagle3_draft.train.early_stop import has_plateaued
from eagle3_draft.train.evaluate import Evaluation, evaluate
from eagle3_draft.train.held_out import Recorder
from eagle3_draft.train.learning import Learning
from eagle3_draft.train.listeners import StepMeasures
from eagle3_draft.train.loss_kernel import UnrollLoss
from eagle3_draft.train.mesh import shards_of
from eagle3_draft.train.plan import Plan, Step
from eagle3_draft.train.portions import Portion, Portions
from eagle3_draft.train.prefetch import prefetched
from eagle3_draft.train.schedule import learning_rate
from eagle3_draft.train.telemetry import Telemetry
from eagle3_draft.train.vocabulary import Vocabulary
from eagle3_draft.train.waiting import Waiting, clock_of

#: The replay answers for servers that draft so many steps, or as many as are unrolled in training if those are more.
REPLAY_STEPS = 8

#: Points of the training curve that the report keeps, about.
CURVE_POINTS = 500


class StopRequest(Protocol):
    """Whether the pod is to end."""

    @property
    def received(self) -> bool:
        """It is."""


@dataclass(frozen=True)
class _Launched:
    """A step that the device works on: the caller has gone on, and reads later what it measured."""

    step: int  # 1-based
    epoch: int
    samples: Sequence[int]  # this rank's
    rate: float
    tokens: int
    tokens_per_second: float
    waiting: float
    seconds_left: float
    values: Tensor  # of ``Learning.step``, on the CPU once the device is done
    done: torch.cuda.Event | None


class Training:
    """The state of one rank, and the loop.

    Args:
        config: of the stage.
        device: of this rank.
        stop: looked at between two steps, and between two batches of a measure.
    """

    def __init__(self, config: TrainConfig, device: torch.device, stop: StopRequest) -> None:
        self.config = config
        self.device = device
        self.stop = stop
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        folder, scratch = Path(config.folder), Path(config.scratch)

        features = Features.open(Path(config.features), place_of(config.object_store, Path(config.features)))
        self.train, self.held_out = features.train, features.held_out
        self.plan = Plan(config, features.train.lengths.tolist(), self.rank, self.ranks)

        target = Target(Path(config.target))
        own = own_embedding(config)
        self.learning = Learning(
            DraftConfig.model_validate_json((folder / CONFIG).read_bytes()),
            device,
            embedding=target.embedding() if own is None else own,
            head=target.head(),
            ids=Vocabulary.load(folder / VOCABULARY).ids,
            seed=config.seed,
            weights=first_weights(config, target),
            factor=FACTORS[config.precision],
            loss=config.loss,
            shards=shards_of(config),
        )
        self.portions = Portions(
            features.train,
            self.plan,
            self.learning.teacher.knows.cpu(),
            unroll_steps=config.unroll_steps,
            multiple=self.learning.multiple,
            pin=device.type == "cuda",
        )
        self.checkpoints = Checkpoints(
            scratch, self.learning.model, self.learning.optimizer, patience=config.stall_timeout
        )
        self.best = BestWeights(folder, None if own is None else {EMBEDDING: own})
        # Each pod's log tells how far the training is, by which the operator knows that the pod is alive
        speaks = int(os.environ.get("LOCAL_RANK", "0")) == 0
        self.telemetry = (
            Telemetry(config, len(self.plan.steps), warning=idle_warning(self.plan.busy), heard=self.rank == 0)
            if speaks
            else None
        )
        self.launched: _Launched | None = None
        self.waiting = Waiting(clock_of(device))
        self.to_stop = self.to_save = False  # what the ranks agreed on
        self.saved = self.clock = time.monotonic()

    def run(self) -> TrainingState:
        """Train to the end, from the last checkpoint if there is one; the best weights become the artifact's.

        Raises:
            StageError: Interrupted, after a checkpoint; NonFinite; what reading the features raises.
        """
        state = self.checkpoints.load()
        if state is None:
            state = TrainingState(started=times.now())
        else:
            state.resumed += 1
            if state.has_best and not self.best.has(state.evaluations[state.best]["step"]):
                state.best = len(state.evaluations)  # they are lost, and those that are measured next are the best
        state.busy = self.plan.busy
        try:
            self._train(state)
        finally:
            self.train.close()
            self.held_out.close()
            if self.telemetry is not None:
                self.telemetry.close()
        state.peak_bytes = max(state.peak_bytes, self._peak_bytes())
        if self.rank == 0:
            self.best.take(state.evaluations[state.best]["step"])
        return state

    def _train(self, state: TrainingState) -> None:
        self._evaluate_if_due(state)  # the run before may have ended while it did so
        self.saved = time.monotonic()
        if self._is_over(state):
            return
        passes = self.plan.passes(state.step)
        with prefetched(self.portions.make, passes, self.device, self.portions.expect) as made:
            portions = self._waited_for(made)
            for step in self.plan.steps[state.step :]:
                self._step(state, step, islice(portions, step.passes))
                if self.to_stop or self.to_save:
                    self._checkpoint(state)
                self._evaluate_if_due(state)
                if self._is_over(state):
                    break
        self.checkpoints.wait()

    def _is_over(self, state: TrainingState) -> bool:
        if state.step == len(self.plan.steps):
            return True
        patience = self.config.early_stop
        return patience is not None and has_plateaued(
            [self._accept_length(evaluation) for evaluation in state.evaluations],
            patience=patience.patience,
            min_improvement=patience.min_improvement,
        )

    # ------------------------------------------------------------------------------------------------------ a step

    def _waited_for(self, made: Iterator[Portion]) -> Iterator[Portion]:
        """The portions, and note how long each kept the device waiting."""
        self.clock = time.monotonic()
        self.waiting.begin()
        for portion in made:
            self.waiting.came()
            yield portion
            self.waiting.begin()

    def _step(self, state: TrainingState, step: Step, portions: Iterator[Portion]) -> None:
        """Launch one optimizer step, and read what the one before measured."""
        notes = torch.tensor([self.stop.received, self._checkpoint_is_due()], dtype=torch.float32)
        rate = learning_rate(state.step, len(self.plan.steps), self.config.learning_rate)
        notes = notes.to(self.device, non_blocking=True)
        values = self.learning.step(portions, step.passes, rate, notes).to("cpu", non_blocking=True)
        done = None
        if self.device.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        self._read(state)
        now = time.monotonic()
        state.step += 1
        state.tokens += step.tokens
        state.seconds += now - self.clock
        state.waited += self.waiting.take()
        self.clock = now
        self.launched = _Launched(
            step=state.step,
            epoch=step.epoch,
            samples=self.plan.own(step),
            rate=rate,
            tokens=state.tokens,
            tokens_per_second=state.tokens / state.seconds,
            waiting=state.waited / state.seconds,
            seconds_left=(len(self.plan.steps) - state.step) * state.seconds / state.step,
            values=values,
            done=done,
        )

    def _checkpoint_is_due(self) -> bool:
        """Rank 0 says, for all. A disk that is slower than the interval gets the next one when it is done, or is given up."""
        due = self.rank == 0 and time.monotonic() - self.saved >= self.config.checkpoint_interval
        return due and not self.checkpoints.busy()

    def _read(self, state: TrainingState) -> None:
        """Wait for the step that was launched last, if it was not read, and note what it measured."""
        launched, self.launched = self.launched, None
        if launched is None:
            return
        if launched.done is not None:
            launched.done.synchronize()
        loss, norm, accuracy, stop, save = launched.values.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise non_finite.refusal(
                f"step {launched.step} of {len(self.plan.steps)} (epoch {launched.epoch + 1}): loss {loss}, gradient norm {norm}",
                "train",
                self.train,
                launched.samples,
            )
        self.to_stop |= stop > 0
        self.to_save |= save > 0
        steps = len(self.plan.steps)
        if launched.step % (steps // CURVE_POINTS + 1) == 0 or launched.step == steps:
            state.curve.append(
                {"step": launched.step, "loss": loss, "accuracy": accuracy, "learningRate": launched.rate}
            )
        if self.telemetry is not None:
            slow = self.checkpoints.slow()
            self.telemetry.step(
                StepMeasures(
                    step=launched.step,
                    loss=loss,
                    accuracy=accuracy,
                    gradient_norm=norm,
                    learning_rate=launched.rate,
                    tokens=launched.tokens,
                    tokens_per_second=launched.tokens_per_second,
                    waiting=launched.waiting,
                    seconds_left=launched.seconds_left,
                    peak_bytes=self._own_peak_bytes(),
                ),
                f"epoch {launched.epoch + 1}/{self.config.epochs}, loss {loss:.2f}, accuracy {accuracy:.2f}, "
                f"{launched.tokens_per_second:,.0f} tokens/s" + (f"; {slow}" if slow else ""),
            )

    def _checkpoint(self, state: TrainingState) -> None:
        """Save the state between two steps; end there if any rank is to stop."""
        self._read(state)
        state.peak_bytes = max(state.peak_bytes, self._peak_bytes())
        self.checkpoints.save(state)
        self.to_save = False
        self.saved = self.clock = time.monotonic()
        if self.to_stop:
            self.checkpoints.wait()
            raise self._interrupted(
                f"after step {state.step} of {len(self.plan.steps)}; the next try goes on from there"
            )

    def _peak_bytes(self) -> int:
        """Of memory, on the rank that took most so far."""
        peaks = torch.tensor([self._own_peak_bytes()], dtype=torch.int64)
        dist.all_reduce(peaks, dist.ReduceOp.MAX)
        return int(peaks.item())

    def _own_peak_bytes(self) -> int:
        """The GPU's, or the process's on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    # -------------------------------------------------------------------------------------------------- a measure

    def _evaluate_if_due(self, state: TrainingState) -> None:
        """Measure the draft after this step, if that is planned, and keep its weights if they are the best so far."""
        measured = state.has_best and state.evaluations[-1]["step"] == state.step
        if state.step not in self.plan.evaluated or measured:
            return
        self._checkpoint(state)  # measuring takes a while, and nothing is saved meanwhile
        epoch = self.plan.steps[state.step - 1].epoch + 1 if state.step else 0
        recorder = Recorder(self.held_out.lengths.tolist(), self.config.unroll_steps)
        began = time.monotonic()
        evaluation = self._evaluate(state.step, epoch, recorder)
        state.measured += time.monotonic() - began
        if not math.isfinite(evaluation.loss):
            raise non_finite.refusal(
                f"the loss on the held-out conversations after step {state.step} of {len(self.plan.steps)} is not finite",
                "held-out",
                self.held_out,
                range(self.rank, len(self.held_out), self.ranks),
            )
        state.evaluations.append({"step": state.step, "epoch": epoch, **asdict(evaluation)})
        best, newest = state.evaluations[state.best], state.evaluations[-1]
        if self._accept_length(newest) >= self._accept_length(best):  # of equal ones the later has seen more
            state.best = len(state.evaluations) - 1
            self.checkpoints.wait()
            self.best.keep(self.learning.model, state.step, recorder.gathered())
        if self.telemetry is not None:
            self.telemetry.evaluation(state.step, evaluation)
        self.saved = self.clock = time.monotonic()

    def _evaluate(self, step: int, epoch: int, recorder: Recorder) -> Evaluation:
        def unroll_loss(batch: Batch) -> UnrollLoss:
            return self.learning.unroll_loss(batch, torch.ones(len(batch.wanted), device=self.device))

        return evaluate(
            unroll_loss,
            self.learning.model,
            self.held_out,
            tokens_per_step=min(self.config.tokens_per_step, (self.config.tokens_per_pass or 2**62) * self.ranks),
            unroll_steps=self.config.unroll_steps,
            replay_steps=REPLAY_STEPS,
            multiple=self.learning.multiple,
            loss=self.config.loss,
            device=self.device,
            recorder=recorder,
            before_batch=partial(self._measuring, step, epoch),
        )

    def _measuring(self, step: int, epoch: int, done: float) -> None:
        """Say how far the measure is; end it if any rank is to stop. It is lost, and nothing else: a checkpoint was made before."""
        when = f"epoch {epoch}/{self.config.epochs}" if step else "before the first step"
        self._say(min(step, len(self.plan.steps) - 1), f"{when}, {done:.0%} measured")
        to_stop = torch.tensor([self.stop.received], dtype=torch.int64)
        dist.all_reduce(to_stop, dist.ReduceOp.MAX)
        if to_stop.item():
            self.checkpoints.wait()
            raise self._interrupted(
                f"while the draft was measured after step {step} of {len(self.plan.steps)}; the next try measures it anew"
            )

    def _accept_length(self, evaluation: dict[str, Any]) -> float:
        """By which drafts are compared: the mean over 1 to as many draft steps as are unrolled, for nobody knows here which serve."""
        lengths: list[float] = evaluation["accept_length"]
        return fmean(lengths[: self.config.unroll_steps])

    # -------------------------------------------------------------------------------------------------- bad endings

    @staticmethod
    def _interrupted(when: str) -> StageError:
        return StageError(ExitCode.INTERRUPTED, Reason.INTERRUPTED, f"interrupted {when}")

    def _say(self, done: float, message: str) -> None:
        if self.telemetry is not None:
            self.telemetry.say(done, message)
