"""A rank's part of each optimizer step, in portions that fit on its device.

What the loss of a step is divided by, the rows that it counts, must be known before the first portion is computed. So a step's
conversations are read together, which on a volume maps them and in an object store fetches them, and their rows are counted on the
host, by the loss masks and the target's most likely tokens alone. The features follow, portion by portion, with those labels alone
that the draft knows: of the others nothing is computed, but that the draft is wrong there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3_draft.features import Sample, Samples
from eagle3_draft.train.batches import Batch, idle, labels_of, pack
from eagle3_draft.train.plan import Pass, Plan


@dataclass(frozen=True)
class Portion:
    """What a rank computes at a time."""

    batch: Batch
    #: (steps + 1,) float32, of all of this rank's portions of the optimizer step: the rows that the loss counts in each unroll step,
    #: and those of the first that have any label
    counts: Tensor

    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [*self.batch.tensors(), self.counts]

    def to(self, device: torch.device) -> "Portion":
        """The same on a device."""
        return Portion(self.batch.to(device), self.counts.to(device, non_blocking=True))


class Portions:
    """Makes portions, of one step after the other. One thread may use it.

    Args:
        samples: the conversations to learn from.
        plan: which of them make up what.
        knows: (target vocabulary,) bool, the tokens that the draft knows.
        unroll_steps: of the training.
        multiple, pin: as of ``pack``.
    """

    def __init__(
        self, samples: Samples, plan: Plan, knows: Tensor, *, unroll_steps: int, multiple: int, pin: bool
    ) -> None:
        self._samples = samples
        self._plan = plan
        self._knows = knows
        self._unroll_steps = unroll_steps
        self._multiple = multiple
        self._pin = pin
        self._read: dict[int, Sample] = {}  # of the step that is being made
        self._counts = torch.zeros(unroll_steps + 1)

    def expect(self, part: Pass) -> None:
        """Have what this portion will be made of fetched in the background."""
        if part.number == 0:
            self._samples.expect(self._plan.own(part.of))

    def make(self, part: Pass) -> Portion:
        """This rank's portion of a pass, on the CPU. Those of a step are made in their order."""
        if part.number == 0:
            own = self._plan.own(part.of)
            self._read = dict(zip(own, self._samples.read(own), strict=True))
            self._counts = count(list(self._read.values()), self._knows, self._unroll_steps)
        mine = [self._read.pop(sample) for sample in self._plan.part(part)]
        batch = (
            pack(mine, self._unroll_steps, knows=self._knows, multiple=self._multiple, pin=self._pin)
            if mine
            else idle(self._samples[0], self._unroll_steps, multiple=self._multiple)
        )
        return Portion(batch, self._counts)


def count(samples: Sequence[Sample], knows: Tensor, unroll_steps: int) -> Tensor:
    """``Portion.counts`` of these conversations.

    What the target says after row t is the label of step i at row t - 1 - i: it counts where the assistant says what follows t, the
    draft knows the target's most likely token, and that row is in the conversation.
    """
    counts = torch.zeros(unroll_steps + 1)
    steps = torch.arange(unroll_steps)
    for sample in samples:
        counts[:-1] += (labels_of(sample, knows)[:, None] > steps).sum(0)
        counts[-1] += (labels_of(sample) > 0).sum()
    return counts
