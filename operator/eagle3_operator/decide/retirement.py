"""Retirement: what of former revisions and of their probes nobody can need any more."""

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from eagle3_api.jobs import StageName
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.decision import Delete
from eagle3_operator.observation import Job


def retired(
    revisions: Mapping[int, Revision], *, needed: Collection[int], wanted: Collection[str], keep: int
) -> list[int]:
    """The revisions to delete: the oldest of those that are not needed, beyond so many.

    Args:
        revisions: all of them, by number.
        needed: what serves, is tried, or would be fallen back to.
        wanted: keys of what the object asks for, whose verdicts are still told, and of what others are measured against.
        keep: how many are kept for a person to look at.
    """
    over = [
        number
        for number, revision in sorted(revisions.items())
        if number not in needed and revision.status.key not in wanted and revision.status.bakes_until is None
    ]
    return over[: max(0, len(over) - keep)]


def probes(jobs: Collection[Job], revisions: Mapping[int, Revision], candidate: int | None) -> list[Delete]:
    """The probes to delete: unfinished ones of what is no longer tried, and all but the one that a revision was measured by last."""
    measured = {PurePosixPath(revision.status.probe_folder or "").name for revision in revisions.values()}
    return [
        Delete("Job", job.name)
        for job in jobs
        if job.stage == StageName.PROBE
        and job.owned
        and not job.terminating
        and job.revision != candidate
        and not (job.finished and job.key in measured)
    ]
