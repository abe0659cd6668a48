"""Preference: which of the proven revisions should serve."""

from collections.abc import Collection

from eagle3_api.jobs import Facts
from eagle3_operator.decide import times
from eagle3_operator.decide.revisions import Revision, Wanted


def best(
    revisions: Collection[Revision],
    *,
    wanted: Wanted | None,
    facts: Facts,
    serving: int | None,
    without: int | None = None,
) -> Revision | None:
    """The proven revision that is preferred, of those that can serve; None where nothing is proven.

    Args:
        revisions: all of them.
        wanted: what the object asks for, once its draft is converted.
        facts: of the target, as it is now.
        serving: the revision that serves: it need not start any more.
        without: a revision to leave out, to see what would be fallen back to.
    """
    proven = [
        r
        for r in revisions
        if r.may_serve and r.number != without and r.deployment is not None and (r.startable or r.number == serving)
    ]
    return min(proven, key=lambda revision: _rank(revision, wanted, facts), default=None)


def _rank(revision: Revision, wanted: Wanted | None, facts: Facts) -> tuple[bool, bool, bool, bool, bool, float]:
    """Smaller is better: the wanted draft; the last that served this target; the plain server, as wanted or as it was.

    Then comes what else serves this target, and another target only where nothing of this one is proven: what answers
    under the Service's name would be another model.
    """
    status = revision.status
    promoted = times.parse(status.promoted_at).timestamp() if status.promoted_at else 0.0
    as_wanted = wanted is not None and status.key in (wanted.draft_key, wanted.plain_key)
    return (
        not (as_wanted and not revision.plain),
        status.target != facts.target_digest,
        not (promoted and not revision.plain),
        not as_wanted,
        not revision.plain,
        -(revision.number if as_wanted else max(promoted, float(revision.number))),
    )
