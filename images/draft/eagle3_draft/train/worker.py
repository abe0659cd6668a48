"""One rank of the training: from the features to the best weights."""

import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from eagle3_api.artifacts import CONFIG, VOCABULARY, WEIGHTS
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName, TrainConfig
from eagle3_draft import child
from eagle3_draft.artifacts import write_atomic
from eagle3_draft.features import Features
from eagle3_draft.model import Draft, DraftConfig
from eagle3_draft.model.target import Target
from eagle3_draft.progress import Progress
from eagle3_draft.stage import StageError
from eagle3_draft.train.batches import Batch, epoch_steps, idle, pack, share
from eagle3_draft.train.checkpoints import Checkpoints, TrainingState
from eagle3_draft.train.evaluate import Evaluation, evaluate
from eagle3_draft.train.loss import Lesson, Teacher, known_rows, mark, total_loss
from eagle3_draft.train.schedule import learning_rate
from eagle3_draft.train.vocabulary import Vocabulary

#: The global norm that gradients are cut to, and AdamW's settings: those of the published trainings.
CLIP = 0.5
BETAS = (0.9, 0.95)

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


class _Training:
    """The state of one rank, and the loop."""

    def __init__(self, config: TrainConfig, device: torch.device, stop: _StopSignal) -> None:
        self.config = config
        self.device = device
        self.stop = stop
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.folder = Path(config.folder)
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

        features = Features.open(Path(config.features))
        self.train, self.held_out = features.train, features.held_out
        self.lengths = features.train.lengths.tolist()
        self.epochs = [
            epoch_steps(self.lengths, config.tokens_per_step, seed=config.seed, epoch=epoch)
            for epoch in range(config.epochs)
        ]
        self.steps = sum(len(steps) for steps in self.epochs)

        target = Target(Path(config.target))
        vocabulary = Vocabulary.load(self.folder / VOCABULARY)
        self.ids = vocabulary.ids.to(device)
        self.embedding = target.embedding().to(device, self.dtype)
        self.teacher = Teacher(target.head().to(device, self.dtype), self.ids)

        self.model = Draft(DraftConfig.model_validate_json((self.folder / CONFIG).read_bytes()))
        self.model.initialise(config.seed)
        self.model.to(device)
        # One unit: the layer runs in every unroll step and would otherwise be gathered for each
        fully_shard(
            self.model,
            mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            if device.type == "cuda"
            else MixedPrecisionPolicy(),
        )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=0.0, betas=BETAS, weight_decay=0.0, fused=device.type == "cuda"
        )
        self.checkpoints = Checkpoints(Path(config.scratch), self.model, self.optimizer)
        self.progress = Progress(self.steps, "steps") if self.rank == 0 else None

    def run(self) -> TrainingState:
        """Train to the end, from the last checkpoint if there is one."""
        state = self.checkpoints.load()
        if state is None:
            state = TrainingState()
        else:
            state.resumed += 1
        saved = time.monotonic()
        while state.epoch < self.config.epochs:
            steps = self.epochs[state.epoch]
            while state.position < len(steps):
                due = time.monotonic() - saved >= self.config.checkpoint_interval
                stop, due = self._step(state, steps[state.position], due)
                if stop or due:
                    self.checkpoints.save(state)
                    saved = time.monotonic()
                if stop:
                    raise StageError(
                        ExitCode.INTERRUPTED,
                        Reason.INTERRUPTED,
                        f"interrupted after step {state.step} of {self.steps}; the next try goes on from there",
                    )
            self.checkpoints.save(state)  # measuring takes a while, and nothing is saved meanwhile
            self._end_epoch(state)
            saved = time.monotonic()
        return state

    def _step(self, state: TrainingState, chosen: Sequence[int], checkpoint_due: bool) -> tuple[bool, bool]:
        """One optimizer step; returns whether any rank is to stop, and whether rank 0 wants a checkpoint."""
        began = time.monotonic()
        mine = share(chosen, self.lengths, self.ranks)[self.rank]
        unroll = self.config.unroll_steps
        batch = pack([self.train[sample] for sample in mine], unroll) if mine else idle(self.train[0], unroll)
        batch = batch.to(self.device)
        lesson = self.teacher.teach(batch.last)
        counted = known_rows(lesson, batch.teachers)
        wishes = torch.tensor([self.stop.received, checkpoint_due and self.rank == 0], dtype=torch.float32)
        shared = torch.cat([counted, wishes.to(self.device)])
        dist.all_reduce(shared)
        counted, wishes = shared[:-2], shared[-2:]

        marks = mark(self._unroll(batch), lesson, batch.teachers, self.ids)
        # FSDP averages gradients over the ranks; the loss is a mean over the rows of all
        (self.ranks * total_loss(marks.losses, counted)).backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        sums = torch.cat([marks.losses.detach(), marks.right, marks.supervised])
        dist.all_reduce(sums)
        losses, right, supervised = sums.view(3, -1)
        rate = learning_rate(state.step, self.steps, self.config.learning_rate)
        loss, norm_value, accuracy, *flags = torch.cat(
            [
                total_loss(losses, counted)[None],
                _whole(norm)[None],
                (right / supervised.clamp(min=1))[:1],
                wishes,
            ]
        ).tolist()
        if not (math.isfinite(loss) and math.isfinite(norm_value)):
            self._stop_non_finite(state, loss, norm_value, mine)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()

        state.position += 1
        state.step += 1
        state.tokens += sum(self.lengths[sample] for sample in chosen)
        state.seconds += time.monotonic() - began
        if state.step % (self.steps // CURVE_POINTS + 1) == 0 or state.step == self.steps:
            state.curve.append({"step": state.step, "loss": loss, "accuracy": accuracy, "learningRate": rate})
        self._say(
            state.step,
            f"epoch {state.epoch + 1}/{self.config.epochs}, loss {loss:.2f}, accuracy {accuracy:.2f}, "
            f"{state.tokens / state.seconds:,.0f} tokens/s",
        )
        return bool(flags[0]), bool(flags[1])

    def _unroll(self, batch: Batch) -> list[Tensor]:
        """The draft's logits of each step, (wanted_i, draft vocabulary)."""
        embeds = F.embedding(batch.input_ids, self.embedding)
        logits: list[Tensor] = self.model(batch.features.to(self.dtype), embeds, batch.documents, batch.wanted)
        return logits

    def _end_epoch(self, state: TrainingState) -> None:
        """Measure the draft, and keep its weights if they are the best so far."""

        def forward(batch: Batch) -> tuple[list[Tensor], Lesson]:
            return self._unroll(batch), self.teacher.teach(batch.last)

        evaluation = evaluate(
            forward,
            self.model,
            self.held_out,
            self.held_out.lengths.tolist(),
            ids=self.ids,
            tokens_per_step=self.config.tokens_per_step,
            unroll_steps=self.config.unroll_steps,
            replay_steps=REPLAY_STEPS,
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
        weights = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if self.rank == 0:
            partial = self.folder / f".{WEIGHTS}.partial"
            save_file({name: weight for name, weight in weights.items() if isinstance(weight, Tensor)}, partial)
            partial.replace(self.folder / WEIGHTS)
        dist.barrier()

    def _stop_non_finite(self, state: TrainingState, loss: float, norm: float, mine: Sequence[int]) -> None:
        """End the training with the step, and with the conversation if the features are to blame."""
        bad = [
            sample
            for sample in mine
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
            f"step {state.step + 1} of {self.steps} (epoch {state.epoch + 1}): loss {loss}, gradient norm {norm}; {cause}",
        )

    def _say(self, done: float, message: str) -> None:
        if self.progress is not None:
            self.progress.update(done, message)


def _whole(norm: Tensor) -> Tensor:
    """A norm over sharded gradients, on every rank."""
    full = getattr(norm, "full_tensor", None)
    whole: Tensor = norm if full is None else full()
    return whole
