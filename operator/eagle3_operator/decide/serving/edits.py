"""What others have changed of a revision's servers: no request is to be served by what was not proven, so it is taken back."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_api import times
from eagle3_api.status import MENDED_KEPT, Mended
from eagle3_operator.decide.view import View
from eagle3_operator.manifests import names
from eagle3_operator.observation import Deployment

#: Each time a template is put back its pods start anew: of all edits together as many as are remembered, in so long.
MENDED_WITHIN_SECONDS = 3600.0

#: Fields that a message names.
_NAMED = 4


@dataclass(frozen=True)
class Reaction:
    """What becomes of an edited Deployment.

    Attributes:
        message: what was edited, by whom, and what is done about it.
        mends: its template is put back.
        deletes: it goes, because it cannot be.
        again: seconds until it can be put back, if it is not now.
        stays: nothing more happens without a person.
    """

    message: str
    mends: bool = False
    deletes: bool = False
    again: float | None = None
    stays: bool = False


def reaction(
    deployment: Deployment, mended: Sequence[Mended], *, serves: bool, can_be_made: bool, view: View
) -> Reaction:
    """What is done about a revision whose Deployment somebody has edited.

    Who makes the very same of it again, once it was put back, is a controller that would do so each time: its pods would start
    anew for ever, and serve nobody. That edit is left, and told.

    Args:
        deployment: of the revision.
        mended: the edits that were taken back last.
        serves: the public Service selects it.
        can_be_made: today's spec makes the very Deployment that it had.
        view: the object and the time.
    """
    what, name = _told(deployment), deployment.name
    if not can_be_made and not serves:
        done = "It is deleted, because the object no longer says how it was made: it would start as something that was never proven"
        return Reaction(f"{what}. {done}", deletes=True)
    if not can_be_made:
        done = (
            "It keeps serving like that, because the object no longer says how it was made. A proven revision that can still be made "
            f"replaces it once that is ready, or at once by: {_delete(name, view)}"
        )
        return Reaction(f"{what}. {done}")
    before = next((one.at for one in mended if one.runs == deployment.template.runs), None)
    if before is not None:
        done = (
            f"It was restored at {before}, and the same edit was made again: it is left in place, because restoring it restarts the pods each "
            f"time. Have whoever makes it leave Deployments with the label {names.NAME_LABEL} alone; then bring back what is proven with: "
            f"{_delete(name, view)}"
        )
        return Reaction(f"{what}. {done}", stays=True)
    left = MENDED_WITHIN_SECONDS - times.age(mended[0].at, view.now) if len(mended) == MENDED_KEPT else 0.0
    if left > 0:
        done = f"{MENDED_KEPT} edits were undone since {mended[0].at}; this one is undone an hour after that. Find out who makes them"
        return Reaction(f"{what}. {done}", again=left + 1)
    done = "The operator restores it, which restarts its pods. To change what is served, edit the Eagle3Draft"
    return Reaction(f"{what}. {done}", mends=True)


def noted(mended: Sequence[Mended], deployment: Deployment, view: View) -> list[Mended]:
    """What is remembered once this edit is taken back too."""
    return [*mended, Mended(at=times.text(view.now), runs=deployment.template.runs)][-MENDED_KEPT:]


def _delete(name: str, view: View) -> str:
    return f"kubectl delete deployment {name} -n {view.obj.metadata.namespace}"


def _told(deployment: Deployment) -> str:
    who, fields = deployment.edited_by or "somebody", "fields are taken out"
    if deployment.edited:
        fields = ", ".join(deployment.edited[:_NAMED]) + (", ..." if len(deployment.edited) > _NAMED else "")
    return f"{who} has changed Deployment {deployment.name} ({fields}): what runs is not what was proven"
