"""What a rule is, what it looks at, and what it says."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.target import Target
from eagle3_api.conditions import Reason
from eagle3_api.sglang import Version


class Level(IntEnum):
    """How bad a finding is, the worst last."""

    PASSED = 0
    MENDED = 1  # conversion writes it as it must be
    UNKNOWN = 2  # could not be looked at: something was not given
    WARNING = 3
    REFUSED = 4


@dataclass(frozen=True)
class Served:
    """What a draft is to serve, and how; whatever is None is not checked.

    Attributes:
        version: the SGLang that serves.
        target: the model.
        layers: whose outputs are to be captured, in this product's convention.
        context_length: the longest that is served.
    """

    version: Version
    target: Target | None = None
    layers: tuple[int, ...] | None = None
    context_length: int | None = None


@dataclass(frozen=True)
class Found:
    """What one look of a rule found."""

    level: Level
    message: str
    reason: Reason | None = None


@dataclass(frozen=True)
class Rule:
    """One thing that must be right.

    Attributes:
        id: its name.
        what: it looks at.
        why: it matters.
        mend: how to mend it.
    """

    id: str
    what: str
    why: str
    mend: str


@dataclass(frozen=True)
class HeaderRule(Rule):
    """A rule for which a look at the form is enough; it yields what is not simply right."""

    look: Callable[[Form, Served], Iterator[Found]]


@dataclass(frozen=True)
class Finding:
    """What a rule says about a draft."""

    rule: Rule
    level: Level
    message: str = ""
    reason: Reason | None = None


def refused(reason: Reason, message: str) -> Found:
    """A finding for which a draft is not served."""
    return Found(Level.REFUSED, message, reason)
