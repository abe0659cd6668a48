"""The converted draft's proposals against those that its trainer recorded at the very same positions.

Both are the most likely tokens of one forward, with the same weights, over the same states: they are the same but where rounding
decides between tokens that are about as likely, and there it decides as a coin does. So a difference of accuracies that two samples of
this size would have by chance still shows that what is served is not what was measured.

Measured on the tiny pair, at 5,684 positions and in seven steps: in bfloat16 it proposes something else than in float32, or than another
order of the same sums in bfloat16, in 0.1 % (first step) to 1.5 % (seventh); in at most 0.11 % the other token is more than a tenth of a
standard deviation of the logits behind, and accuracies are at most 0.2 points apart. With another base of its rotary embedding it is so in 2.9 %
to 18 %, and accuracies are 1.5 to 2.5 points apart.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor

from eagle3_api.checkpoints import Finding, Level
from eagle3_api.checkpoints.rules import Rule
from eagle3_api.conditions import Reason
from eagle3_draft.convert.head import logits
from eagle3_draft.train.batches import Batch

#: Two tokens whose logits are so many standard deviations of all logits apart are one up to rounding: a tie.
TIE = 0.1

#: Of a step's proposals, those that may be others without a tie; one always may.
OTHERS = 0.02

#: How far accuracies may be apart, in which ties alone show; and how many standard errors of as many fair coins as there are ties,
#: where those are more.
APART, ERRORS = 0.02, 3

PROPOSALS = Rule(
    "proposals",
    "its proposals on held-out features against those that its trainer recorded",
    "a draft that proposes something else than it did when it was measured is not the one that was measured",
    "Train it again: the weights that were kept, the features or the target's embedding are not those that it was measured with.",
)


@dataclass(frozen=True)
class Step:
    """A step of the unroll, at the positions where the trainer recorded proposals.

    Attributes:
        positions: that were asked.
        accuracy: share of the converted draft's proposals that are the target's most likely token.
        recorded: the same of the trainer's.
        equal: share of the converted draft's proposals that are the trainer's.
        tied: share of those that are not, and are as likely up to rounding.
    """

    positions: int
    accuracy: float
    recorded: float
    equal: float
    tied: float

    @property
    def others(self) -> float:
        """Share of the proposals that are others, and by more than rounding."""
        return 1 - self.equal - self.tied

    @property
    def differs(self) -> bool:
        """Whether rounding does not explain what is different."""
        others, lost, tied = (
            round(share * self.positions) for share in (self.others, abs(self.accuracy - self.recorded), self.tied)
        )
        allowed = max(1, OTHERS * self.positions)
        return others > allowed or lost > max(allowed, APART * self.positions, ERRORS * math.sqrt(tied))


class Comparison:
    """Proposals against recorded ones, counted batch by batch.

    Args:
        ids: (draft vocabulary,), the target's ids of the tokens that the draft knows.
        head: (draft vocabulary, hidden), the draft's.
        steps: of the unroll.
    """

    def __init__(self, ids: Tensor, head: Tensor, steps: int) -> None:
        self._rows = {token: row for row, token in enumerate(ids.tolist())}
        self._head = head
        self._counts = torch.zeros(steps, 5, dtype=torch.int64)

    def add(self, batch: Batch, recorded: Tensor, states: Sequence[Tensor], proposed: Sequence[Tensor]) -> None:
        """Count a batch.

        Args:
            batch: the positions.
            recorded: (tokens, steps), the target's ids of what the trainer's draft proposed.
            states: of each step (wanted_i, hidden), which the head multiplies.
            proposed: of each step (wanted_i,), the target's ids of what the converted draft proposes.
        """
        greedy = batch.teaching.greedy.long()
        for step, (rows, labels, ours) in enumerate(zip(batch.wanted, batch.label_rows, proposed, strict=True)):
            theirs, said = recorded[rows, step].long(), greedy[labels]
            other = ours != theirs
            tied = (self._behind(states[step][other], theirs[other]) <= TIE).sum() if other.any() else 0
            counts = (len(ours), (ours == said).sum(), (theirs == said).sum(), (~other).sum(), tied)
            self._counts[step] += torch.tensor([int(count) for count in counts])

    def steps(self) -> list[Step]:
        """What they come to."""
        found = []
        for positions, *counts in self._counts.tolist():
            found.append(Step(positions, *(count / max(1, positions) for count in counts)))
        return found

    def _behind(self, states: Tensor, tokens: Tensor) -> Tensor:
        """(rows,) how many standard deviations of the logits a token's is below the highest; infinitely many where the draft does not
        know the token."""
        of_all = logits(states.float(), self._head)
        row = torch.tensor([self._rows.get(token, len(self._head)) for token in tokens.tolist()], dtype=torch.int64)
        said = F.pad(of_all, (0, 1), value=-math.inf).gather(-1, row[:, None])[:, 0]
        return (of_all.amax(-1) - said) / of_all.std(-1)


def against_the_recorded(steps: Sequence[Step]) -> Iterator[Finding]:
    """Whether a draft still proposes what it proposed when it was measured; nothing where that was not recorded."""
    asked = [(number, step) for number, step in enumerate(steps, 1) if step.positions]
    for number, step in asked:
        if step.differs:
            yield Finding(
                PROPOSALS,
                Level.REFUSED,
                f"at step {number} the converted draft is right in {step.accuracy:.1%} of {step.positions:,} held-out positions; at "
                f"these very positions it was right in {step.recorded:.1%} when it was trained. {step.equal:.1%} of its proposals "
                f"there are the same, {step.tied:.1%} others within rounding, {step.others:.1%} others",
                Reason.PARITY_MISMATCH,
            )
            return
    if asked:
        first, least = asked[0][1], min((step for _, step in asked), key=lambda step: step.equal)
        yield Finding(
            PROPOSALS,
            Level.PASSED,
            f"its first proposals are right in {first.accuracy:.1%} of {first.positions:,} held-out positions, and were in "
            f"{first.recorded:.1%} when it was trained; at each of {len(asked)} steps at least {least.equal:.1%} are the same",
        )
    elif steps:
        yield Finding(
            PROPOSALS,
            Level.UNKNOWN,
            "the trainer recorded proposals at no held-out position that counts, so there is nothing to compare",
        )
