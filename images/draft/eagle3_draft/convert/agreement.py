"""How often a draft proposes what its target says, by its own forward on the target's states: what can be known of a draft
before a server is started.

The measures are those of the trainer. *Chance* is what two speakers who know nothing of each other would agree on, each with
its own habits: the sum over all tokens of how often the one says it, times how often the other does (Cohen 1960, "A
coefficient of agreement for nominal scales"). A draft of another target, of other layers, or with another's vocabulary map
agrees by chance only, and chance can be high: a target that says one token all the time agrees with a draft that does so too.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3_api.checkpoints.rules import Finding, Level, Rule
from eagle3_api.conditions import Reason
from eagle3_draft.features import Sample
from eagle3_draft.model.draft import Draft
from eagle3_draft.train.batches import Batch, pack
from eagle3_draft.train.evaluate import replayed

#: Draft steps that are measured; the trainer replays as many.
STEPS = 8

#: Of what lies between chance and always, a draft must reach so much with its first proposal. Drafts that help reach half.
LEAST = 0.05

#: Proposals without which nothing is said of a draft.
FEWEST_POSITIONS = 64

AGREEMENT = Rule(
    "agreement",
    "how often it proposes what the target says",
    "a draft that agrees by chance is never accepted, and every verify step costs",
    "Take the draft of this very target, and set draft.auxiliaryLayers to what it was trained on.",
)


@dataclass(frozen=True)
class Agreement:
    """What a draft and its target agree on.

    Attributes:
        accuracy: per step, share of its proposals that are the target's most likely token.
        expected_accept_lengths: by replay, the i-th with i + 1 draft steps; the target's own token counted. None where not
            every position was looked at.
        chance: of the first step's accuracy.
        positions: first proposals that were looked at.
    """

    accuracy: list[float]
    expected_accept_lengths: list[float]
    chance: float
    positions: int

    @property
    def beyond_chance(self) -> float:
        """0 where the first proposals agree as by chance, 1 where always."""
        return (self.accuracy[0] - self.chance) / (1 - self.chance) if self.chance < 1 else 0.0


class Tally:
    """Proposals, counted batch by batch.

    Args:
        steps: draft steps.
    """

    def __init__(self, steps: int) -> None:
        self.right = torch.zeros(steps)
        self.asked = torch.zeros(steps)
        self.said: tuple[Counter[int], Counter[int]] = (Counter(), Counter())

    def add(self, proposed: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        """Count the proposals of each step, (wanted_i,) ids of the target's; returns which of them are right."""
        greedy = batch.teaching.greedy.long()
        hits = [of_step == greedy[rows] for of_step, rows in zip(proposed, batch.label_rows, strict=True)]
        self.right += torch.stack([of_step.sum() for of_step in hits]).cpu()
        self.asked += torch.tensor([len(of_step) for of_step in hits])
        self.said[0].update(proposed[0].tolist())
        self.said[1].update(greedy[batch.label_rows[0]].tolist())
        return hits

    def agreement(self, expected_accept_lengths: Sequence[float] = ()) -> Agreement:
        """What they come to."""
        positions = int(self.asked[0])
        return Agreement(
            accuracy=(self.right / self.asked.clamp(min=1)).tolist(),
            expected_accept_lengths=list(expected_accept_lengths),
            chance=sum(count * self.said[1][token] for token, count in self.said[0].items()) / max(1, positions) ** 2,
            positions=positions,
        )


@torch.no_grad()
def measure(draft: Draft, ids: Tensor, samples: Sequence[Sample], embedding: Tensor) -> Agreement:
    """Run a draft over all that its target computed, and walk it as a server would.

    Args:
        draft: on the device on which it is to run.
        ids: (draft vocabulary,), the target's ids of the tokens that it knows.
        samples: conversations with the target's states; positions of the loss mask count.
        embedding: that the draft reads, (vocabulary, hidden).
    """
    device, dtype = next((p.device, p.dtype) for p in draft.parameters())
    ids = ids.to(device)
    tally = Tally(STEPS)
    walked = torch.zeros(2, STEPS)
    for sample in samples:
        batch = pack([sample], STEPS).to(device)
        embeds = embedding[sample.input_ids.long()].to(device, dtype)
        logits = draft(batch.features.to(dtype), embeds, batch.documents, batch.wanted)
        hits = tally.add([ids[of_step.argmax(-1)] for of_step in logits], batch)
        walked += replayed([sample.loss_mask], batch.table(hits, missing=False), STEPS)
    return tally.agreement([made / taken if taken else 0.0 for made, taken in zip(*walked.tolist(), strict=True)])


def judge(agreement: Agreement) -> Iterator[Finding]:
    """What is wrong with a draft that agrees so."""
    where = f"at {agreement.positions:,} positions of the target's own answers"
    if agreement.positions < FEWEST_POSITIONS:
        yield Finding(
            AGREEMENT,
            Level.WARNING,
            f"its agreement with the target is not known: it could be asked {where} only",
        )
    elif agreement.beyond_chance < LEAST:
        yield Finding(
            AGREEMENT,
            Level.REFUSED,
            f"its first proposal is the target's token in {agreement.accuracy[0]:.1%} {where}; by chance it would be in "
            f"{agreement.chance:.1%}. It would serve at accept length {agreement.expected_accept_lengths[0]:.2f}, slower than no "
            "draft. It is another target's, or was trained on other layers, in another notation of them, or with another "
            "vocabulary's map",
            Reason.LOW_ACCEPT_LENGTH,
        )
    else:
        yield Finding(
            AGREEMENT,
            Level.PASSED,
            f"its first proposal is the target's token in {agreement.accuracy[0]:.1%} {where}, {agreement.chance:.1%} by chance; "
            f"expected accept length {agreement.expected_accept_lengths[2]:.2f} with three steps",
        )
