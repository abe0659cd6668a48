"""All steps of a training, and which rank computes what of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_api.jobs import TrainConfig
from eagle3_draft.train.batches import epoch_steps, passes, share
from eagle3_draft.train.schedule import evaluation_steps


@dataclass(frozen=True)
class Step:
    """What one optimizer step is made of."""

    epoch: int  # 0-based
    samples: Sequence[int]  # of all ranks
    tokens: int  # of them
    fullest: int  # tokens of the rank that has most of them
    passes: int  # which every rank computes it in: as many as the one with the most needs


@dataclass(frozen=True)
class Pass:
    """What the ranks compute at a time."""

    of: Step
    number: int  # 0-based


class Plan:
    """The steps, the same for all ranks.

    Args:
        config: of the stage.
        lengths: tokens of each conversation to learn from.
        rank, ranks: this process, of so many.

    Attributes:
        steps: in their order.
        evaluated: after which of them (1-based) the draft is measured; after 0 where there is no step, and where a draft is gone on
            from, which is published as it was unless a step makes it better.
        busy: share of all ranks' time in which they compute: every step is as long as its fullest rank takes. 1 without steps.
    """

    def __init__(self, config: TrainConfig, lengths: Sequence[int], rank: int, ranks: int) -> None:
        self._lengths = lengths
        self._room = config.tokens_per_pass
        self._rank, self._ranks = rank, ranks
        epochs = [
            epoch_steps(lengths, config.tokens_per_step, seed=config.seed, epoch=epoch)
            for epoch in range(config.epochs)
        ]
        self.steps = [self._step(epoch, samples) for epoch, steps in enumerate(epochs) for samples in steps]
        fullest = sum(step.fullest for step in self.steps)
        self.busy = sum(step.tokens for step in self.steps) / (ranks * fullest) if fullest else 1.0
        self.evaluated = evaluation_steps([len(steps) for steps in epochs], config.evaluations_per_epoch)
        if config.init_from is not None or not epochs:
            self.evaluated |= {0}

    def passes(self, done: int) -> list[Pass]:
        """Those of all steps that follow the first ones."""
        return [Pass(step, number) for step in self.steps[done:] for number in range(step.passes)]

    def part(self, one: Pass) -> list[int]:
        """This rank's samples of a pass; none where it has less to do than others."""
        parts = passes(self.own(one.of), self._lengths, self._room)
        return parts[one.number] if one.number < len(parts) else []

    def own(self, step: Step) -> list[int]:
        """This rank's samples of a step."""
        return share(step.samples, self._lengths, self._ranks)[self._rank]

    def _step(self, epoch: int, samples: Sequence[int]) -> Step:
        shares = share(samples, self._lengths, self._ranks)
        tokens = [sum(self._lengths[sample] for sample in of_rank) for of_rank in shares]
        needed = max(len(passes(of_rank, self._lengths, self._room)) for of_rank in shares)
        return Step(epoch, samples, sum(tokens), max(tokens), needed)
