"""What a judge says."""

from dataclasses import dataclass
from enum import StrEnum

from eagle3_api.conditions import Reason


class Outcome(StrEnum):
    """What a judgement comes to."""

    #: Proof was given.
    PASS = "Pass"  # noqa: S105
    #: The opposite was measured.
    FAIL = "Fail"
    #: Nothing was proven yet, one way or the other.
    INCONCLUSIVE = "Inconclusive"
    #: Nothing could be measured.
    ERROR = "Error"
    #: Of the watch: faster than no draft, and no longer as good as the draft was.
    DRIFT = "Drift"


@dataclass(frozen=True)
class Verdict:
    """A judgement of a revision, by the probe or by the watch."""

    outcome: Outcome
    reason: Reason
    message: str

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASS

    @property
    def failed(self) -> bool:
        return self.outcome is Outcome.FAIL
