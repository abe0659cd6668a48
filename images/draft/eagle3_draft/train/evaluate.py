"""The measure of a draft on the held-out conversations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from eagle3_api.spec import Loss
from eagle3_draft.features import Samples
from eagle3_draft.train.batches import Batch, epoch_steps, idle, pack, share
from eagle3_draft.train.held_out import Recorder
from eagle3_draft.train.loss import total_loss
from eagle3_draft.train.loss_kernel import UnrollLoss
from eagle3_draft.train.prefetch import prefetched
from eagle3_draft.train.replay import accepted, replay


@dataclass(frozen=True)
class Evaluation:
    """How a draft does on conversations that it has never seen."""

    loss: float  # as in training
    accuracy: list[float]  # per step: share of proposals that are the target's most likely token
    prefix_survival: list[float]  # per step: share of chains whose proposals are right up to and with this one
    accept_length: list[float]  # by replay with 1, 2, ... draft steps; the target's own token counted
    #: The target's probability, by mean, of the tokens that the draft can propose. None in checkpoints that are older than it
    vocabulary_mass: float | None = None


@dataclass(frozen=True)
class _Round:
    """What a rank measures at a time."""

    batch: Batch
    masks: list[Tensor]  # the loss mask of each of its conversations, on the CPU

    def tensors(self) -> list[Tensor]:
        """All of them that go to the device."""
        return self.batch.tensors()

    def to(self, device: torch.device) -> "_Round":
        """The same on a device."""
        return _Round(self.batch.to(device), self.masks)


@torch.no_grad()
def evaluate(
    unroll_loss: Callable[[Batch], UnrollLoss],
    model: nn.Module,
    samples: Samples,
    *,
    tokens_per_step: int,
    unroll_steps: int,
    replay_steps: int,
    multiple: int,
    loss: Loss,
    device: torch.device,
    recorder: Recorder,
    before_batch: Callable[[float], None],
) -> Evaluation:
    """Measure on all samples, each rank on its share.

    Args:
        unroll_loss: of the draft on a batch.
        model: put into evaluation mode meanwhile.
        samples: the held-out conversations.
        tokens_per_step: of one batch of all ranks.
        unroll_steps: steps of the loss and of the accuracies.
        replay_steps: draft steps of the longest replay.
        multiple: of ``pack``.
        loss: what is made small.
        device: where the ranks' numbers are added up.
        recorder: takes down what the draft proposes.
        before_batch: is told the share that is done, on all ranks together. What it raises ends the measure.
    """
    lengths = samples.lengths.tolist()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    columns = max(unroll_steps, replay_steps)
    sums = torch.zeros(4, columns, device=device)
    walked = torch.zeros(2, columns, device=device)
    chains = torch.zeros(2, columns, device=device)
    mass = torch.zeros(2, device=device)
    model.eval()
    rounds = epoch_steps(lengths, tokens_per_step, seed=0, epoch=0)
    dealt = [share(chosen, lengths, ranks)[rank] for chosen in rounds]

    def made(mine: Sequence[int]) -> _Round:
        read = samples.read(mine)
        batch = (
            pack(read, columns, multiple=multiple, pin=device.type == "cuda")
            if read
            else idle(samples[0], columns, multiple=multiple)
        )
        return _Round(batch, [sample.loss_mask for sample in read])

    # One alone: the portions that the training goes on with are on the device all the while
    with prefetched(made, dealt, device, samples.expect, ahead=1) as coming:
        for number, mine in enumerate(dealt):
            before_batch(number / len(dealt))
            one = next(coming)
            batch, result = one.batch, unroll_loss(one.batch)
            of_batch = result.sums
            sums += torch.stack([of_batch.losses, of_batch.counted, of_batch.right, of_batch.labelled])
            mass += torch.stack([result.mass, result.mass.new_tensor(len(batch.labelled))])
            if mine:
                recorder.add(mine, batch, result.proposed)
                right = result.right
                table = batch.table(right, missing=False)
                walked += replayed(one.masks, table, columns).to(device)
                wanted = batch.table([torch.ones_like(of_step) for of_step in right], missing=False)
                chains += survivors(table, wanted).to(device)
            del one, batch, result  # before the one after the next is made
    model.train()
    dist.all_reduce(sums)
    dist.all_reduce(walked)
    dist.all_reduce(chains)
    dist.all_reduce(mass)
    losses, counted, right, labelled = sums[:, :unroll_steps]
    tokens, steps = walked.tolist()
    alive, begun = chains[:, :unroll_steps]
    return Evaluation(
        loss=total_loss(losses, counted, loss).item(),
        accuracy=(right / labelled.clamp(min=1)).tolist(),
        prefix_survival=(alive / begun.clamp(min=1)).tolist(),
        accept_length=[made / taken if taken else 0.0 for made, taken in zip(tokens, steps, strict=True)],
        vocabulary_mass=(mass[0] / mass[1].clamp(min=1)).item(),
    )


def survivors(right: Tensor, wanted: Tensor) -> Tensor:
    """(2, steps): chains that are right in every step so far, and chains that exist.

    Args:
        right, wanted: (positions, steps) bool, of ``Batch.table``.
    """
    return torch.stack([table.to(torch.float32).cumprod(-1).sum(0) for table in (right, wanted)])


def replayed(masks: Sequence[Tensor], right: Tensor, columns: int) -> Tensor:
    """(2, columns): tokens and verify steps of the replay with 1 to ``columns`` draft steps.

    Args:
        masks: the loss mask of each conversation that a batch was packed of, on the CPU.
        right: (tokens, steps) bool, of ``Batch.table``: whether a proposal is the target's own token.
        columns: draft steps of the longest replay.
    """
    walked = torch.zeros(2, columns)
    for steps in range(1, columns + 1):
        chains = accepted(right, steps).tolist()
        start = 0
        for mask in masks:
            end = start + len(mask)
            walked[:, steps - 1] += torch.tensor(replay(chains[start:end], mask.tolist()))
            start = end
    return walked
