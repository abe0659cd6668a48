"""Attempts: a finished stage that is retried runs again under another key, and keeps it for as long as its inputs are the same.

The token of the retry enters the key. It belongs to the inputs and not to the stage's name: an edit that is taken back finds
what the retry made, not what was retried, and other inputs know nothing of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from eagle3_api.jobs import StageName
from eagle3_api.status import ATTEMPTS_KEPT, Attempt, StageStatus
from eagle3_operator.decide.stages.stage import Link


@dataclass
class Attempts:
    """What was tried again.

    Attributes:
        former: what the status says of the stages. The retry that was asked for last stands there, beside the key of what it retries.
        known: the retries before it, the newest last; ``link`` adds that one.
    """

    former: Mapping[StageName, StageStatus] = field(default_factory=dict)
    known: list[Attempt] = field(default_factory=list)

    def link(self, make: Callable[[str | None], Link]) -> Link:
        """A stage as it is wanted: ``make`` with the token that belongs to its inputs, if there is one."""
        first = make(None)
        others = [one for one in self.known if (one.stage, one.inputs) != (first.stage, first.key)]
        token = next((one.token for one in self.known if one not in others), None)
        link, before = make(token), self.former.get(first.stage)
        if before is None or before.attempt in (None, token):
            return link
        again = make(before.attempt)
        if before.key not in (link.key, again.key):  # of other inputs
            return link
        self.known = [*others, Attempt(stage=first.stage, inputs=first.key, token=before.attempt)][-ATTEMPTS_KEPT:]
        return again
