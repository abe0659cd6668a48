"""Retirement: what of former revisions and of their probes nobody can need any more."""

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from eagle3_api.jobs import StageName
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.decision import Delete
from eagle3_operator.observation import Job


def retired(revisions: Mapping[int, Revision], *, needed: Collection[int], keep: int) -> list[int]:
    """The revisions to delete: the oldest of those that are neither needed nor kept warm, beyond so many.

    Args:
        revisions: all of them, by number.
        needed: ``Fleet.needed``, and what is tried.
        keep: how many are kept for a person to look at.
    """
    over = [n for n, r in sorted(revisions.items()) if n not in needed and r.status.bakes_until is None]
    return over[: max(0, len(over) - keep)]


def probes(jobs: Collection[Job], revisions: Mapping[int, Revision], tried: int | None) -> list[Delete]:
    """The probes to delete: those of what is not tried now, but for the one that a revision was measured by last."""
    measured = {PurePosixPath(revision.status.probe_folder or "").name for revision in revisions.values()}
    return [
        Delete("Job", job.name)
        for job in jobs
        if job.stage == StageName.PROBE
        and job.owned
        and not job.terminating
        and job.revision != tried
        and not (job.finished and job.key in measured)
    ]
