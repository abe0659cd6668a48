"""Preference: which of the revisions that may serve should. The best first:

1. the wanted draft; where it was measured more than once, as it was measured last;
2. the draft that served last;
3. the plain server that is wanted; of several the one that serves, else the newest;
4. a plain server that is wanted no more, the one that served last or is newest;
5. a draft that has never served, the newest;
6. in the same order, what serves another target: what answers under the Service's name would be another model.
"""

from dataclasses import dataclass
from enum import IntEnum

from eagle3_api import times
from eagle3_api.jobs import Facts
from eagle3_operator.decide.revisions import Revision, Wanted


class Kind(IntEnum):
    """What a revision is to its object, the best first."""

    WANTED_DRAFT = 1
    FORMER_DRAFT = 2
    WANTED_PLAIN = 3
    FORMER_PLAIN = 4
    UNUSED_DRAFT = 5


@dataclass(frozen=True, order=True)
class Preference:
    """How much a revision is to be preferred: the smaller, the more. Each field decides where those before it are equal."""

    of_another_target: bool
    kind: Kind
    #: Of two plain servers of one kind, the one that serves is not moved away from.
    moves_the_service: bool
    #: Minus when it served last, in seconds, or its number where it never did: of two, the newer.
    age: float


def preference(revision: Revision, wanted: Wanted | None, facts: Facts, serving: int | None) -> Preference:
    """Where a revision stands in that order.

    Args:
        revision: one that may serve.
        wanted: what the object asks for, once its draft is converted.
        facts: of the target, as it is now.
        serving: number of the revision that serves.
    """
    status = revision.status
    is_wanted = wanted is not None and status.key in (wanted.draft_key, wanted.plain_key)
    served = times.parse(status.promoted_at).timestamp() if status.promoted_at else 0.0
    kind = _kind(revision, is_wanted=is_wanted)
    return Preference(
        of_another_target=not is_wanted and status.target != facts.target_digest,  # which a key has in it
        kind=kind,
        moves_the_service=kind is Kind.WANTED_PLAIN and revision.number != serving,
        age=-float(revision.number if is_wanted else max(served, revision.number)),
    )


def _kind(revision: Revision, *, is_wanted: bool) -> Kind:
    if revision.plain:
        return Kind.WANTED_PLAIN if is_wanted else Kind.FORMER_PLAIN
    if is_wanted:
        return Kind.WANTED_DRAFT
    return Kind.FORMER_DRAFT if revision.status.promoted_at else Kind.UNUSED_DRAFT
