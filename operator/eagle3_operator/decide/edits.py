"""What others have changed of a revision's servers: no request is to be served by what was not proven, so it is taken back."""

from dataclasses import dataclass

from eagle3_operator.decide import times
from eagle3_operator.decide.view import View
from eagle3_operator.observation import Deployment

#: Once in so long a template is put back: each time its pods start anew, and a controller may write it again and again.
MENDED_EVERY_SECONDS = 3600.0

#: Fields that a message names.
_NAMED = 4


@dataclass(frozen=True)
class Verdict:
    """What becomes of an edited Deployment.

    Attributes:
        message: what was edited, by whom, and what is done about it.
        mends: its template is put back.
        deletes: it goes, because it cannot be.
        again: seconds until it can be put back, if it is not now.
    """

    message: str
    mends: bool = False
    deletes: bool = False
    again: float | None = None


def judged(deployment: Deployment, mended_at: str | None, *, serves: bool, can_be_made: bool, view: View) -> Verdict:
    """What is done about a revision whose Deployment somebody has edited.

    Args:
        deployment: of the revision.
        mended_at: when it was put back last.
        serves: the public Service selects it.
        can_be_made: today's spec makes the very Deployment that it had.
        view: the object and the time.
    """
    what, name = _told(deployment), deployment.name
    if not can_be_made and not serves:
        done = (
            "The object does not say any more how it was made, so it is deleted: it would start as what was not proven"
        )
        return Verdict(f"{what}. {done}", deletes=True)
    if not can_be_made:
        command = f"kubectl delete deployment {name} -n {view.obj.metadata.namespace}"
        done = (
            "It serves on so, because the object does not say any more how it was made. What is proven and can be made takes its "
            f"place once that is ready, or at once by: {command}"
        )
        return Verdict(f"{what}. {done}")
    left = MENDED_EVERY_SECONDS - times.age(mended_at, view.now)
    if mended_at is None or left <= 0:
        done = (
            "It is put back, for which its pods start anew. What is to be served otherwise is edited in the Eagle3Draft"
        )
        return Verdict(f"{what}. {done}", mends=True)
    done = f"It was put back at {mended_at}, and is not again within the hour: see that nobody else writes it"
    return Verdict(f"{what}. {done}", again=left + 1)


def _told(deployment: Deployment) -> str:
    fields = ", ".join(deployment.edited[:_NAMED]) + (", ..." if len(deployment.edited) > _NAMED else "")
    return (
        f"{deployment.edited_by} has changed Deployment {deployment.name} ({fields}): what runs is not what was proven"
    )
