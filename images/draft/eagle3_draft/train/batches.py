"""Which conversations make up a step, and how a rank's part of it is laid out.

Steps are made of whole conversations and depend on the seed and the epoch alone, not on the number of ranks: training
goes on at the same position on another number of GPUs.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

from eagle3_draft.features import Sample, Teaching, joined, mapped, restored
from eagle3_draft.model.rows import Rows, needed


def epoch_steps(lengths: Sequence[int], tokens_per_step: int, *, seed: int, epoch: int) -> list[list[int]]:
    """The samples of each step of an epoch, every sample once.

    Samples are shuffled and dealt out in that order; a step is full when the next one would not fit. A sample that is
    longer than a step makes one of its own. The last two steps share theirs evenly, because what is left for the last may be
    little, and the loss is a mean: each of its tokens would move the weights by many times as much as others.
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
    if len(steps) > 1:
        _even_out(steps[-2], steps[-1], lengths)
    return steps


def _even_out(fuller: list[int], rest: list[int], lengths: Sequence[int]) -> None:
    """Move samples from one step to the one that follows, as long as the larger of both becomes smaller by it."""
    surplus = sum(lengths[sample] for sample in fuller) - sum(lengths[sample] for sample in rest)
    while lengths[fuller[-1]] < surplus:
        moved = fuller.pop()
        rest.insert(0, moved)
        surplus -= 2 * lengths[moved]


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


def passes(samples: Sequence[int], lengths: Sequence[int], room: int | None) -> list[list[int]]:
    """A rank's samples of a step in the parts that it computes one after the other, at most ``room`` tokens each.

    A sample that is longer makes a part of its own. There is one part, maybe an empty one, where nothing limits them.
    """
    parts: list[list[int]] = [[]]
    left = room or sum(lengths[sample] for sample in samples)
    for sample in samples:
        if parts[-1] and lengths[sample] > left:
            parts.append([])
            left = room or 0
        parts[-1].append(sample)
        left -= lengths[sample]
    return parts


@dataclass(frozen=True)
class Batch:
    """One rank's conversations, packed one after the other. A position is a row of the pack.

    A *supervised* position is one whose next token is the assistant's: there the target's own prediction is the label. A
    *labelled* position is supervised, and in a batch to learn from its label is a token that the draft knows: nothing is learned
    of others. Step i of position p is compared with the target at p + 1 + i, so a labelled position is the label of one row of
    every step, as long as that row is in the same document. The loss mask is thereby that of the predicted token.
    """

    documents: list[int]  # tokens of each document
    input_ids: Tensor  # (tokens,) int64
    features: Tensor  # (tokens, layers x hidden)
    teaching: Teaching  # (labelled, ...), what the target says after the labelled positions
    labelled: Tensor  # (labelled,), positions that have a label
    wanted: list[Tensor]  # per step (wanted_i,), positions whose proposal counts
    label_rows: list[Tensor]  # per step (wanted_i,), the row of ``teaching`` that is the label of each, ascending
    bounds: list[list[int]]  # ``label_rows``, as the host knows them
    rows: Rows  # those of the pack that the wanted proposals need
    scale: Tensor | None = None  # (tokens, layers), of the features where they are stored in FP8

    def states(self, dtype: torch.dtype) -> Tensor:
        """(tokens, layers x hidden), the features as numbers of this type."""
        return restored(self.features, self.scale, dtype)

    def table(self, values: Sequence[Tensor], missing: float) -> Tensor:
        """(tokens, steps) on the CPU: what belongs to the proposal of each step at each position.

        Args:
            values: per step (wanted_i,), of its wanted positions.
            missing: stands where a step wants nothing.
        """
        table = torch.full((len(self.input_ids), len(values)), missing, dtype=values[0].dtype)
        for step, (of_step, rows) in enumerate(zip(values, self.wanted, strict=True)):
            table[rows.cpu(), step] = of_step.cpu()
        return table

    def between(self, step: int, first: int, end: int) -> slice:
        """Which of a step's wanted positions are compared with rows ``first`` to ``end`` of ``teaching``."""
        return slice(bisect_left(self.bounds[step], first), bisect_left(self.bounds[step], end))

    def tensors(self) -> list[Tensor]:
        """All of them."""
        rows = self.rows
        told = [tensor for tensor in vars(self.teaching).values() if tensor is not None]
        scales = [] if self.scale is None else [self.scale]
        own = [self.input_ids, self.features, *scales, *told, self.labelled, *self.wanted, *self.label_rows]
        return [*own, rows.positions, rows.starts, rows.cells, rows.rows, *rows.spots]

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        return Batch(
            documents=self.documents,
            input_ids=moved(self.input_ids),
            features=moved(self.features),
            teaching=mapped(self.teaching, moved),
            labelled=moved(self.labelled),
            wanted=[moved(rows) for rows in self.wanted],
            label_rows=[moved(rows) for rows in self.label_rows],
            bounds=self.bounds,
            rows=self.rows.to(device),
            scale=None if self.scale is None else moved(self.scale),
        )


def labels_of(sample: Sample, knows: Tensor | None = None) -> Tensor:
    """(labelled,) int64, the labelled positions of a conversation; ``knows`` as of ``pack``."""
    supervised = sample.loss_mask[1:].nonzero().flatten()
    return supervised if knows is None else supervised[knows[sample.teaching.greedy[supervised].long()]]


def pack(
    samples: Sequence[Sample], steps: int, *, knows: Tensor | None = None, multiple: int = 1, pin: bool = False
) -> Batch:
    """Lay out conversations for ``steps`` unroll steps. At least one.

    Args:
        samples: the conversations.
        steps: unroll steps.
        knows: (target vocabulary,) bool, the labels that are taken: all where it is left out.
        multiple: of which tokens and rows are one: a document that nobody wants fills the pack up.
        pin: whether to put the large tensors where a GPU can copy them from while it computes.
    """
    documents = [len(sample.input_ids) for sample in samples]
    labels = [labels_of(sample, knows) for sample in samples]
    labelled, starts = [], []
    start = 0
    for of_sample, length in zip(labels, documents, strict=True):
        labelled.append(start + of_sample)
        starts.append(torch.full_like(of_sample, start))
        start += length
    positions, document_starts = torch.cat(labelled), torch.cat(starts)
    wanted, label_rows = [], []
    for step in range(steps):
        rows = positions - 1 - step
        inside = (rows >= document_starts).nonzero().flatten()
        wanted.append(rows[inside])
        label_rows.append(inside)
    if filler := -start % multiple:
        documents.append(filler)
    return Batch(
        documents=documents,
        input_ids=_joined([sample.input_ids for sample in samples], filler, pin).long(),
        features=_joined([sample.hidden for sample in samples], filler, pin),
        teaching=joined(
            [mapped(sample.teaching, itemgetter(rows)) for sample, rows in zip(samples, labels, strict=True)],
            partial(_joined, filler=0, pin=pin),
        ),
        labelled=positions,
        wanted=wanted,
        label_rows=label_rows,
        bounds=[rows.tolist() for rows in label_rows],
        rows=needed(documents, wanted, multiple),
        scale=_joined(scales, filler, pin)
        if (scales := [s.hidden_scale for s in samples if s.hidden_scale is not None])
        else None,
    )


def _joined(parts: Sequence[Tensor], filler: int, pin: bool) -> Tensor:
    """The parts one after the other, and rows of zeros."""
    tokens = sum(map(len, parts))
    out = torch.empty(tokens + filler, *parts[0].shape[1:], dtype=parts[0].dtype, pin_memory=pin)
    torch.cat(list(parts), out=out[:tokens])
    out[tokens:] = 0
    return out


def idle(like: Sample, steps: int, *, multiple: int = 1) -> Batch:
    """A batch that counts nothing: for a rank without samples, which takes part in the collectives all the same."""
    return pack([like.rows(slice(1))], steps, multiple=multiple)
