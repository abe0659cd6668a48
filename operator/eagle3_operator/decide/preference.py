"""Preference: which of the revisions that may serve should."""

from eagle3_api.jobs import Facts
from eagle3_operator.decide import times
from eagle3_operator.decide.revisions import Revision, Wanted


def rank(
    revision: Revision, wanted: Wanted | None, facts: Facts, serving: int | None
) -> tuple[bool, int, bool, bool, bool, bool, bool, float]:
    """Smaller is better: the wanted draft, as it was measured last; the last that served this target; the plain server, as wanted or as it was.

    Then comes what else serves this target, and another target only where nothing of this one is proven: what answers
    under the Service's name would be another model.

    Args:
        revision: one that may serve.
        wanted: what the object asks for, once its draft is converted.
        facts: of the target, as it is now.
        serving: the revision that serves: of two plain servers of one kind it is not moved away from.
    """
    status = revision.status
    promoted = times.parse(status.promoted_at).timestamp() if status.promoted_at else 0.0
    as_wanted = wanted is not None and status.key in (wanted.draft_key, wanted.plain_key)
    wanted_draft = as_wanted and not revision.plain
    return (
        not wanted_draft,
        -revision.number if wanted_draft else 0,
        status.target != facts.target_digest,
        not (promoted and not revision.plain),
        not as_wanted,
        not revision.plain,
        not (as_wanted and revision.number == serving and revision.plain),
        -(revision.number if as_wanted else max(promoted, float(revision.number))),
    )
