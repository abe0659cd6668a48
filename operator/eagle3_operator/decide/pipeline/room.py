"""Room: whether the servers are scaled to zero for the extraction and the training of the next draft.

With ``serve.whileTraining: ScaleToZero`` one node serves and trains by turns. The servers go before the first large Job
starts (Extract, Train; of an adopted draft Convert, which runs the target), and stay away until the draft is converted,
because its revision is to come up in their place. They come back as they were when the Jobs fail or are suspended, or when
the edit is taken back.

What is decided is kept in ``status.roomFor``, the key of the last large stage, so that one training is approved once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle3_api import times
from eagle3_api.conditions import Reason
from eagle3_api.jobs import Facts, StageName
from eagle3_api.status import Eagle3DraftStatus, StageState, StageStatus
from eagle3_operator.decide.approval import Approvals
from eagle3_operator.decide.pipeline.chain import in_use
from eagle3_operator.decide.stages import Link
from eagle3_operator.decide.view import View
from eagle3_operator.decision import Because
from eagle3_operator.manifests.flags import start_budget
from eagle3_operator.manifests.sizing import is_large
from eagle3_operator.observation import Job


@dataclass(frozen=True)
class Room:
    """What the servers do for a training.

    Attributes:
        training: key of the training that they are scaled to zero for; None while they serve.
        waiting: what the next large Job has to wait for.
    """

    training: str | None = None
    waiting: Because | None = None


def asked(
    links: Sequence[Link], former: Mapping[StageName, StageStatus], view: View, facts: Facts, before: Eagle3DraftStatus
) -> Room:
    """The room for the chain that the object wants now, as it stands before this reconcile goes on with it.

    Args:
        links: the chain's stages after Inspect, in order.
        former: what the status says of stages of these names.
        view: the object, its children and the time.
        facts: of the target.
        before: the status.
    """
    train = next((link for link in reversed(links) if is_large(view.obj.spec, link.stage)), None)
    following = _following(links, former)
    if following is None:
        return Room()
    if not _by_turns(view) or train is None:
        return unchanged(before, view, under_way=False)
    link, status = following
    if view.obj.spec.suspend or (status is not None and status.state is StageState.FAILED):
        return unchanged(before, view, under_way=False)
    made = before.room_for == train.key
    if not is_large(view.obj.spec, link.stage):
        return Room(train.key if made else None)
    job = view.job(link)
    if job is not None and in_use(job) and not job.suspended:  # beside servers it evidently has its GPUs
        return Room(train.key if made or not _servers_left(view) else None)
    if not made and _outage(view) and not _approved(view, train, before):
        return Room(waiting=Because(Reason.AWAITING_APPROVAL, _request(view, train, facts, before)))
    left = ", ".join(sorted(_servers_left(view)))
    waiting = (
        Because(Reason.MAKING_ROOM, f"waits for the servers to stop (serve.whileTraining): {left}") if left else None
    )
    return Room(train.key, waiting)


def unchanged(before: Eagle3DraftStatus, view: View, *, under_way: bool) -> Room:
    """The room as it was, while something of the chain is under way or a large Job still holds its GPUs."""
    kept = _by_turns(view) and (under_way or any(_holds_gpus(view, job) for job in view.seen.jobs.values()))
    return Room(before.room_for if kept else None)


def _by_turns(view: View) -> bool:
    serve = view.obj.spec.serve
    return serve is not None and serve.while_training == "ScaleToZero"


def _following(
    links: Sequence[Link], former: Mapping[StageName, StageStatus]
) -> tuple[Link, StageStatus | None] | None:
    """The first stage that is not finished, and what is known of it under its key."""
    for link in links:
        status = former.get(link.stage)
        status = status if status is not None and status.key == link.key else None
        if status is None or status.state is not StageState.SUCCEEDED:
            return link, status
    return None


def _holds_gpus(view: View, job: Job) -> bool:
    large = job.stage in set(StageName) and is_large(view.obj.spec, StageName(job.stage))
    return job.owned and large and not job.finished and not (job.suspended and not job.pods)


def _servers_left(view: View) -> set[str]:
    """Names of the pods that still hold GPUs, as far as one can wait for them, and of the Deployments that would make new ones."""
    owned = [deployment for deployment in view.seen.deployments.values() if deployment.owned]
    return {d.name for d in owned if d.replicas} | {pod.name for d in owned for pod in d.pods if view.holds_place(pod)}


def _outage(view: View) -> bool:
    public, serve = view.seen.services.get(view.obj.metadata.name), view.obj.spec.serve
    serving = public is not None and public.owned and public.selected_revision in view.seen.deployments
    return serving and serve is not None and serve.replicas > 0


def _approved(view: View, train: Link, before: Eagle3DraftStatus) -> bool:
    approvals = Approvals(view.obj, before.ready_once)
    return not approvals.needed(outage=True) or approvals.given(train.stage, train.key)


def _request(view: View, train: Link, facts: Facts, before: Eagle3DraftStatus) -> str:
    """What the outage is, how long it may be, and the command that approves it."""
    lasted = " and ".join(f"{stage} took {times.duration(seconds)}" for stage, seconds in before.took.items())
    text = (
        "extraction and training need the servers' GPUs (serve.whileTraining: ScaleToZero): the Service has no pod until the "
        f"new draft is proven; {f'last time {lasted}' if lasted else 'how long they take is not known yet'}, and a start may "
        f"take up to {start_budget(view.obj.spec, facts) / 60:.0f} min more"
    )
    return f"{text}. {Approvals(view.obj, before.ready_once).command(train.stage, train.key)}"
