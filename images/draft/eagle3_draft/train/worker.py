"""One rank of the training: from the features to the best weights."""

import math
import os
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from eagle3_api.artifacts import CONFIG, VOCABULARY, WEIGHTS
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName, TrainConfig
from eagle3_draft import child
from eagle3_draft.artifacts import write_atomic
from eagle3_draft.features import Features
from eagle3_draft.model import DraftConfig
from eagle3_draft.model.factor import FACTORS
from eagle3_draft.model.target import Target
from eagle3_draft.progress import Progress
from eagle3_draft.stage import StageError
from eagle3_draft.train.answers import GreedyTokens
from eagle3_draft.train.batches import Batch, epoch_steps, idle, pack, share
from eagle3_draft.train.checkpoints import Checkpoints, TrainingState
from eagle3_draft.train.evaluate import Evaluation, evaluate
from eagle3_draft.train.learning import Learning
from eagle3_draft.train.loss_kernel import Judged
from eagle3_draft.train.prefetch import prefetched
from eagle3_draft.train.schedule import learning_rate
from eagle3_draft.train.vocabulary import Vocabulary

#: The replay answers for servers that draft so many steps, or as many as are unrolled in training if those are more.
REPLAY_STEPS = 8

#: Points of the training curve that the report keeps, about.
CURVE_POINTS = 500


def outcome_file(folder: Path, rank: int) -> Path:
    """Where a rank that failed says why."""
    return folder / f".outcome-{rank}.json"


def work(config: TrainConfig) -> TrainingState:
    """The whole of one rank: what the elastic launcher runs.

    A failure leaves its outcome in a file, because the launcher hands on an exit code at best, and ends the process with
    the exit code of the stage.
    """
    stop = _StopSignal()
    rank = int(os.environ["RANK"])
    try:
        device = _join_group()
        state = _Training(config, device, stop).run()
        dist.barrier()
    except BaseException as error:
        outcome = child.failure(StageName.TRAIN, config.key, error)
        write_atomic(outcome_file(Path(config.folder), rank), outcome.model_dump_json(by_alias=True).encode())
        raise SystemExit(int(outcome.code)) from error
    dist.destroy_process_group()
    return state


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


@dataclass(frozen=True)
class _Launched:
    """A step that the device works on: the caller has gone on, and reads later what it measured."""

    step: int  # 1-based
    epoch: int  # 0-based
    samples: Sequence[int]  # this rank's
    rate: float
    tokens_per_second: float
    values: Tensor  # of ``Learning.step``, on the CPU once the device is done
    done: torch.cuda.Event | None


class _Training:
    """The state of one rank, and the loop."""

    def __init__(self, config: TrainConfig, device: torch.device, stop: _StopSignal) -> None:
        self.config = config
        self.device = device
        self.stop = stop
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.folder = Path(config.folder)

        features = Features.open(Path(config.features))
        self.train, self.held_out = features.train, features.held_out
        self.lengths = features.train.lengths.tolist()
        self.epochs = [
            epoch_steps(self.lengths, config.tokens_per_step, seed=config.seed, epoch=epoch)
            for epoch in range(config.epochs)
        ]
        self.steps = sum(len(steps) for steps in self.epochs)

        target = Target(Path(config.target))
        self.learning = Learning(
            DraftConfig.model_validate_json((self.folder / CONFIG).read_bytes()),
            device,
            embedding=target.embedding(),
            head=target.head(),
            ids=Vocabulary.load(self.folder / VOCABULARY).ids,
            seed=config.seed,
            factor=FACTORS[config.precision],
        )
        self.greedy = GreedyTokens(Path(config.scratch) / ".greedy", self.lengths)
        self.checkpoints = Checkpoints(Path(config.scratch), self.learning.model, self.learning.optimizer)
        self.progress = Progress(self.steps, "steps") if self.rank == 0 else None
        self.launched: _Launched | None = None
        self.curve: list[dict[str, Any]] = []
        self.to_stop = self.to_save = False  # what the ranks agreed on
        self.saved = self.clock = time.monotonic()

    def run(self) -> TrainingState:
        """Train to the end, from the last checkpoint if there is one."""
        state = self.checkpoints.load()
        if state is None:
            state = TrainingState()
        else:
            state.resumed += 1
        self.curve = state.curve
        self.greedy.settle(self.train, self.learning.teacher, self.device, self._taken_down)
        self.saved = time.monotonic()
        while state.epoch < self.config.epochs:
            self.clock = time.monotonic()
            steps = self.epochs[state.epoch][state.position :]
            with closing(prefetched(self._batch, steps, self.device)) as batches:
                for chosen, batch in batches:
                    self._step(state, chosen, batch)
                    if self.to_stop or self.to_save:
                        self._checkpoint(state)
            self._checkpoint(state)  # measuring takes a while, and nothing is saved meanwhile
            self._end_epoch(state)
            self.saved = time.monotonic()
        return state

    def _batch(self, chosen: Sequence[int]) -> Batch:
        """This rank's part of a step, on the CPU."""
        mine = share(chosen, self.lengths, self.ranks)[self.rank]
        unroll, multiple = self.config.unroll_steps, self.learning.multiple
        if not mine:
            return idle(self.train[0], unroll, multiple=multiple)
        return pack(
            [self.train[sample] for sample in mine],
            unroll,
            greedy=[self.greedy.of(sample) for sample in mine],
            multiple=multiple,
            pin=self.device.type == "cuda",
        )

    def _step(self, state: TrainingState, chosen: Sequence[int], batch: Batch) -> None:
        """Launch one optimizer step, and read what the one before measured."""
        due = time.monotonic() - self.saved >= self.config.checkpoint_interval and self.rank == 0
        notes = torch.tensor([self.stop.received, due], dtype=torch.float32).to(self.device, non_blocking=True)
        rate = learning_rate(state.step, self.steps, self.config.learning_rate)
        values = self.learning.step(batch, rate, notes).to("cpu", non_blocking=True)
        done = None
        if self.device.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        self._read()
        now = time.monotonic()
        state.position += 1
        state.step += 1
        state.tokens += sum(self.lengths[sample] for sample in chosen)
        state.seconds += now - self.clock
        self.clock = now
        self.launched = _Launched(
            step=state.step,
            epoch=state.epoch,
            samples=share(chosen, self.lengths, self.ranks)[self.rank],
            rate=rate,
            tokens_per_second=state.tokens / state.seconds,
            values=values,
            done=done,
        )

    def _read(self) -> None:
        """Wait for the step that was launched last, if it was not read, and note what it measured."""
        launched, self.launched = self.launched, None
        if launched is None:
            return
        if launched.done is not None:
            launched.done.synchronize()
        loss, norm, accuracy, stop, save = launched.values.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._stop_non_finite(launched, loss, norm)
        self.to_stop |= stop > 0
        self.to_save |= save > 0
        if launched.step % (self.steps // CURVE_POINTS + 1) == 0 or launched.step == self.steps:
            self.curve.append(
                {"step": launched.step, "loss": loss, "accuracy": accuracy, "learningRate": launched.rate}
            )
        self._say(
            launched.step,
            f"epoch {launched.epoch + 1}/{self.config.epochs}, loss {loss:.2f}, accuracy {accuracy:.2f}, "
            f"{launched.tokens_per_second:,.0f} tokens/s",
        )

    def _checkpoint(self, state: TrainingState) -> None:
        """Save the state between two steps; end there if any rank is to stop."""
        self._read()
        self.checkpoints.save(state)
        self.to_save = False
        self.saved = self.clock = time.monotonic()
        if self.to_stop:
            raise self._interrupted(f"after step {state.step} of {self.steps}; the next try goes on from there")

    def _taken_down(self, share_done: float) -> None:
        if self.stop.received:
            raise self._interrupted("before the first step; the next try begins anew")
        self._say(0, f"{share_done:.0%} of the target's answers taken down")

    @staticmethod
    def _interrupted(when: str) -> StageError:
        return StageError(ExitCode.INTERRUPTED, Reason.INTERRUPTED, f"interrupted {when}")

    def _end_epoch(self, state: TrainingState) -> None:
        """Measure the draft, and keep its weights if they are the best so far."""

        def judge(batch: Batch) -> Judged:
            answers = self.learning.teacher.answer(batch.last)
            return self.learning.judge(batch, answers, torch.ones(len(batch.wanted), device=self.device))

        evaluation = evaluate(
            judge,
            self.learning.model,
            self.held_out,
            self.held_out.lengths.tolist(),
            tokens_per_step=self.config.tokens_per_step,
            unroll_steps=self.config.unroll_steps,
            replay_steps=REPLAY_STEPS,
            multiple=self.learning.multiple,
            device=self.device,
            progress=lambda done: self._say(
                min(state.step, self.steps - 1), f"epoch {state.epoch + 1}/{self.config.epochs}, {done:.0%} measured"
            ),
        )
        state.evaluations.append(asdict(evaluation))
        if state.epoch == 0 or self._better(evaluation, Evaluation(**state.evaluations[state.best])):
            state.best = state.epoch
            self._keep_weights()
        state.epoch += 1
        state.position = 0

    def _better(self, one: Evaluation, other: Evaluation) -> bool:
        """Whether a draft would be accepted longer than another; of equal ones the later has seen more."""
        steps = self.config.unroll_steps - 1
        return one.accept_length[steps] >= other.accept_length[steps]

    def _keep_weights(self) -> None:
        """Put the weights, float32, where the artifact will have them."""
        weights = get_model_state_dict(
            self.learning.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        if self.rank == 0:
            partial = self.folder / f".{WEIGHTS}.partial"
            save_file({name: weight for name, weight in weights.items() if isinstance(weight, Tensor)}, partial)
            partial.replace(self.folder / WEIGHTS)
        dist.barrier()

    def _stop_non_finite(self, launched: _Launched, loss: float, norm: float) -> None:
        """End the training with the step, and with the conversation if the features are to blame."""
        bad = [
            sample
            for sample in launched.samples
            if not (self.train[sample].hidden.isfinite().all() and self.train[sample].last.isfinite().all())
        ]
        of_all: list[list[int]] = [[] for _ in range(self.ranks)]
        dist.all_gather_object(of_all, bad)
        samples = sorted(sample for some in of_all for sample in some)
        cause = (
            f"the features of train conversation {', '.join(map(str, samples[:8]))} are not finite: extract them again"
            if samples
            else "the features of its conversations are finite: lower train.learningRate"
        )
        raise StageError(
            ExitCode.NON_FINITE,
            Reason.NON_FINITE,
            f"step {launched.step} of {self.steps} (epoch {launched.epoch + 1}): loss {loss}, gradient norm {norm}; {cause}",
        )

    def _say(self, done: float, message: str) -> None:
        if self.progress is not None:
            self.progress.update(done, message)
