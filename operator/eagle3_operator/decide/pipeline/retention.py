"""Retention: the features go once a draft is trained from them, and come back if another training needs them.

What later stages need of them lies with the drafts. ``retain`` keeps them. A finished chain is known again by its draft. Where a
draft is adopted none are needed: those of former specs go once it is converted.

Where the operator made a claim for the features alone, it goes with them, and is made anew when a stage wants it. On a claim of
the user's, on one that somebody else uses, or in an object store, a Job removes them. The same Job removes what trainings that were
given up left with the drafts; a training that ends does it itself, so that where a claim goes there is a Job only if none did.

That the claim goes is in the status before it is deleted: whatever is lost on the way, nobody takes an empty claim for the features.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from eagle3_api import times
from eagle3_api.conditions import Reason
from eagle3_api.jobs import CleanConfig, StageName
from eagle3_api.status import ARTIFACTS_KEPT, ArtifactStatus, Eagle3DraftStatus, StageState, StageStatus
from eagle3_operator.decide import stages
from eagle3_operator.decide.pipeline.chain import advance, new_status
from eagle3_operator.decide.stages import Link
from eagle3_operator.decide.view import Actions, View
from eagle3_operator.decision import FEATURES_CLAIM, Because, Delete
from eagle3_operator.manifests import names

#: Of Clean: the features are going, or gone.
_GOING = frozenset({StageState.RUNNING, StageState.SUCCEEDED})


def known(newest: ArtifactStatus | None, before: Iterable[ArtifactStatus | None]) -> list[ArtifactStatus]:
    """The artifacts to remember beside the newest one, the latest first."""
    others = (one for one in before if one is not None and newest is not None and one.folder != newest.folder)
    return list(others)[:ARTIFACTS_KEPT]


def remembered(
    links: Sequence[Link], former: Mapping[StageName, StageStatus], artifacts: Iterable[ArtifactStatus | None]
) -> dict[StageName, StageStatus]:
    """The former stages; all of them finished where an edit went back to a draft that is remembered.

    The stages' own statuses went with the edit. Without this the chain would run again, down to Jobs that find their
    artifacts finished, and have its features extracted for nothing. That nobody has seen its features since shows in Extract's
    status: it has no result.
    """
    convert = links[-1]
    status = former.get(convert.stage)
    artifact = next((one for one in artifacts if one is not None and one.folder == convert.artifact), None)
    if artifact is None or (status is not None and status.key == convert.key):
        return dict(former)
    finished = {link.stage: new_status(link).model_copy(update={"state": StageState.SUCCEEDED}) for link in links}
    converted = finished[convert.stage].model_copy(update={"result": artifact.result.to_json()})
    return {**former, **finished, convert.stage: converted}


def clean(
    links: Sequence[Link],
    chain: dict[StageName, StageStatus],
    former: Mapping[StageName, StageStatus],
    view: View,
    actions: Actions,
) -> list[Link]:
    """Clean, one step further, once nobody needs the features; puts its status into ``chain``. Of a claim of ours it is the deletion.

    Returns:
        What it wants a Job for. That the features are gone stays known also where nothing more is to be cleaned.
    """
    by_name = {link.stage: link for link in links}
    before, name = former.get(StageName.CLEAN), _own_claim(view)
    if StageName.EXTRACT in by_name:
        link, last = stages.clean(view.obj, by_name[StageName.EXTRACT], by_name[StageName.TRAIN]), StageName.TRAIN
    elif _has_left(former, view):
        last_told = before or former.get(StageName.EXTRACT)
        features = last_told.artifact if last_told is not None else None
        link = stages.clean_for_adopted(view.obj, by_name[StageName.CONVERT], features)
        last = StageName.CONVERT
        chain[StageName.CLEAN] = before or _remembered(link)
    else:
        return []
    begun = before if _begun(before, link.artifact) else None
    if begun is not None and begun.state is StageState.SUCCEEDED:
        chain[StageName.CLEAN] = begun
        if name is None:
            return [link]
    if last not in chain or chain[last].state is not StageState.SUCCEEDED:
        return []
    if begun is None and (view.obj.spec.extract.retain or (name is not None and view.obj.spec.suspend)):
        return []
    trained = chain.get(StageName.TRAIN)
    tidy = trained is not None and trained.job is not None
    if name is not None and (status := _without_claim(name, link, begun, view, actions, tidy)) is not None:
        chain[StageName.CLEAN] = status
        return [link]
    step = advance(link, before, view)
    actions.add(step)
    chain[StageName.CLEAN] = step.status
    return [link]


def restored(
    links: Sequence[Link], former: Mapping[StageName, StageStatus], view: View, actions: Actions
) -> tuple[dict[StageName, StageStatus], View]:
    """The former stages, without Extract where its features may be going or gone and a training needs them again.

    The Jobs that made and removed them go too, so that Extract begins anew under its key; the returned view knows that. Where
    the features are still there it finds them, and is done at once.
    """
    by_name = {link.stage: link for link in links}
    extract, train = by_name.get(StageName.EXTRACT), by_name.get(StageName.TRAIN)
    if extract is None or train is None:
        return dict(former), view
    extracted, cleaned, trained = (former.get(name) for name in (StageName.EXTRACT, StageName.CLEAN, StageName.TRAIN))
    unseen = extracted is not None and extracted.state is StageState.SUCCEEDED and extracted.result is None
    if not unseen and not _begun(cleaned, extract.artifact):
        return dict(former), view
    if trained is not None and trained.key == train.key and trained.state is StageState.SUCCEEDED:
        return dict(former), view
    renewed = (StageName.EXTRACT, StageName.CLEAN)
    going = {name: replace(job, terminating=True) for name, job in view.seen.jobs.items() if job.stage in renewed}
    actions.delete += [Delete("Job", name) for name in going if not view.seen.jobs[name].terminating]
    seen = replace(view.seen, jobs={**view.seen.jobs, **going})
    return {name: status for name, status in former.items() if name not in renewed}, replace(view, seen=seen)


def awaited_removal(view: View) -> Because | None:
    """Why no features and no checkpoints can be made, if so: a Job that removes them is not gone yet, and may take new ones for old."""
    for job in view.seen.jobs.values():
        there = not job.pods or any(view.holds_place(pod) for pod in job.pods)
        if job.stage == StageName.CLEAN and not job.finished and there:
            return Because(Reason.PENDING, f"{job.kind} {job.name}, which removes features, is being ended")
    return None


def _has_left(former: Mapping[StageName, StageStatus], view: View) -> bool:
    """Where a draft is adopted: whether former specs may have left features, or a claim of ours for them."""
    extracted, there = former.get(StageName.EXTRACT), names.claim_name(view.obj, "features") in view.seen.claims
    if StageName.CLEAN in former:
        return True
    if extracted is not None and (extracted.job is not None or extracted.state is StageState.SUCCEEDED):
        return there or "features" not in names.roots(view.obj.spec)
    return there and _own_claim(view) is not None


def _remembered(link: Link) -> StageStatus:
    """Clean's status where a draft is adopted and not converted yet: Extract, which would tell of the features, is no stage any more."""
    said = "the features of former specs are removed once the adopted draft is converted"
    return new_status(link).model_copy(update={"reason": Reason.PENDING, "message": said})


def _begun(cleaned: StageStatus | None, features: str | None) -> bool:
    """Whether these features' claim is going, or a Job that removes them has ever been there: they may not be whole any more."""
    return cleaned is not None and cleaned.artifact == features and _is_under_way(cleaned)


def _is_under_way(cleaned: StageStatus) -> bool:
    """Whether a claim is going, or gone, or there has ever been a Job that removes features."""
    return cleaned.job is not None or cleaned.state in _GOING


# ------------------------------------------------------------------------------------------------- the claim of ours


def _own_claim(view: View) -> str | None:
    """The claim that goes with the features: the operator made it, and the object names it for nothing else."""
    if view.obj.spec.storage.features.size is None:
        return None
    name = names.claim_name(view.obj, "features")
    others = (names.claim_name(view.obj, root) for root in names.roots(view.obj.spec) if root != "features")
    return None if name in others else name


def _without_claim(
    name: str, link: Link, begun: StageStatus | None, view: View, actions: Actions, tidy: bool
) -> StageStatus | None:
    """Clean's status where the features' claim goes with them, one step further; None where a Job is to remove them.

    A Job of the object that is under way is waited for: those of former versions of the operator mount the claim too.

    Args:
        tidy: the draft was trained by a Job of this spec, which removed what other trainings had left with the drafts.
    """
    claim = view.seen.claims.get(name)
    if begun is None:
        return _deletion(name, link, view)
    if claim is None or claim.terminating:
        return _deleted(name, begun, view) if tidy else _tidied(link, begun, view, actions)
    if begun.job is not None or claim.used_by:
        return begun if begun.state is StageState.SUCCEEDED else None
    if view.obj.spec.suspend or claim.used_by is None or any(not job.finished for job in view.seen.jobs.values()):
        return begun
    actions.delete.append(Delete("PersistentVolumeClaim", name))
    return _deleted(name, begun, view) if tidy else begun


def _tidied(link: Link, begun: StageStatus, view: View, actions: Actions) -> StageStatus:
    """Clean's status once the features' claim has gone, and trainings that no draft came of may have left something with the drafts.

    Until there is a Job it is under way all the same: nobody is to make the claim anew.
    """
    if not isinstance(link.config, CleanConfig):
        raise TypeError(f"{link.stage} cleans nothing")
    config = link.config.model_copy(update={"features_gone": True})
    step = advance(replace(link, config=config), begun, view)
    actions.add(step)
    return step.status if step.status.job else step.status.model_copy(update={"state": StageState.RUNNING})


def _deletion(name: str, link: Link, view: View) -> StageStatus:
    said = f"PersistentVolumeClaim {name} is being deleted"
    update = {"state": StageState.RUNNING, "message": said, "started_at": times.text(view.now)}
    return new_status(link).model_copy(update=update)


def _deleted(name: str, begun: StageStatus, view: View) -> StageStatus:
    if begun.state is StageState.SUCCEEDED:
        return begun
    said = f"PersistentVolumeClaim {name} was deleted"
    update = {"state": StageState.SUCCEEDED, "reason": None, "message": said, "finished_at": times.text(view.now)}
    return begun.model_copy(update=update)


def claim_has_gone(view: View, before: Eagle3DraftStatus) -> bool:
    """Whether the features' claim goes or went with them, and is to be made only when a stage wants it."""
    cleaned = any(stage.name is StageName.CLEAN and _is_under_way(stage) for stage in before.stages)
    return cleaned and _own_claim(view) is not None


def awaited_claim(view: View) -> Because | None:
    """Why no Job that mounts the features can be started, if so: their claim is going, or has gone with former ones."""
    name = names.claim_name(view.obj, "features")
    if view.obj.spec.storage.features.size is None or view.obj.spec.draft.checkpoint is not None:
        return None
    if (claim := view.seen.claims.get(name)) is None:
        making = Because(Reason.PENDING, f"PersistentVolumeClaim {name} is being made")
        return (view.refused(("PersistentVolumeClaim", name)) or making)._replace(about=FEATURES_CLAIM)
    if claim.terminating:
        return Because(
            Reason.PENDING, f"PersistentVolumeClaim {name} is being deleted and will be recreated", FEATURES_CLAIM
        )
    return None
