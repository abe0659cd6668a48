"""Which conversations make up a step, and how a rank's part of it is laid out.

Steps are made of whole conversations and depend on the seed and the epoch alone, not on the number of ranks: training
goes on at the same position on another number of GPUs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3_draft.features import Sample


def epoch_steps(lengths: Sequence[int], tokens_per_step: int, *, seed: int, epoch: int) -> list[list[int]]:
    """The samples of each step of an epoch, every sample once.

    Samples are shuffled and dealt out in that order; a step is full when the next one would not fit. A sample that is
    longer than a step makes one of its own.
    """
    order = list(range(len(lengths)))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311  nothing secret
    steps: list[list[int]] = []
    room = 0
    for sample in order:
        if not steps or lengths[sample] > room:
            steps.append([])
            room = tokens_per_step
        steps[-1].append(sample)
        room -= lengths[sample]
    return steps


def share(step: Sequence[int], lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """A step's samples dealt to ranks, evenly by tokens: the longest first, each to the rank with the least.

    A rank can get none, where a step has fewer samples than there are ranks.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for sample in sorted(step, key=lambda sample: (-lengths[sample], sample)):
        rank = loads.index(min(loads))
        shares[rank].append(sample)
        loads[rank] += lengths[sample]
    return shares


@dataclass(frozen=True)
class Batch:
    """One rank's conversations, packed one after the other. A position is a row of the pack.

    A *taught* position is one whose next token is the assistant's: there the target's own prediction is what the draft
    has to hit. Step i of position p is compared with the target at p + 1 + i, so a taught position teaches one row of
    every step, as long as that row is in the same document. The loss mask is thereby that of the predicted token.
    """

    documents: list[int]  # tokens of each document
    input_ids: Tensor  # (tokens,) int64
    features: Tensor  # (tokens, layers x hidden)
    last: Tensor  # (taught, hidden), the target's final-normed state at the taught positions
    taught: Tensor  # (taught,), the taught positions
    wanted: list[Tensor]  # per step (wanted_i,), positions whose proposal counts
    teachers: list[Tensor]  # per step (wanted_i,), the row of ``last`` that each is compared with

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        return Batch(
            documents=self.documents,
            input_ids=moved(self.input_ids),
            features=moved(self.features),
            last=moved(self.last),
            taught=moved(self.taught),
            wanted=[moved(rows) for rows in self.wanted],
            teachers=[moved(rows) for rows in self.teachers],
        )


def pack(samples: Sequence[Sample], steps: int) -> Batch:
    """Lay out conversations for ``steps`` unroll steps. At least one."""
    documents = [len(sample.input_ids) for sample in samples]
    taught, starts = [], []
    start = 0
    for sample, length in zip(samples, documents, strict=True):
        rows = start + sample.loss_mask[1:].nonzero().flatten()
        taught.append(rows)
        starts.append(torch.full_like(rows, start))
        start += length
    taught_rows, document_starts = torch.cat(taught), torch.cat(starts)
    wanted, teachers = [], []
    for step in range(steps):
        rows = taught_rows - 1 - step
        inside = (rows >= document_starts).nonzero().flatten()
        wanted.append(rows[inside])
        teachers.append(inside)
    return Batch(
        documents=documents,
        input_ids=torch.cat([sample.input_ids for sample in samples]).long(),
        features=torch.cat([sample.hidden for sample in samples]),
        last=torch.cat([sample.last for sample in samples])[taught_rows],
        taught=taught_rows,
        wanted=wanted,
        teachers=teachers,
    )


def idle(like: Sample, steps: int) -> Batch:
    """A batch that counts nothing: for a rank without samples, which takes part in the collectives all the same."""
    return pack([Sample(like.input_ids[:1], like.loss_mask[:1], like.hidden[:1], like.last[:1])], steps)
