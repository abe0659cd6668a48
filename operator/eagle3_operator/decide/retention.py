"""Retention: the features go once a draft is trained from them, and come back if another training needs them.

What later stages need of them lies with the drafts. ``retain`` keeps them. A finished chain is known again by its draft.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from eagle3_api.jobs import StageName
from eagle3_api.status import ARTIFACTS_KEPT, ArtifactStatus, StageState, StageStatus
from eagle3_operator.decide import stages
from eagle3_operator.decide.chain import Actions, View, advance
from eagle3_operator.decide.stages import Link
from eagle3_operator.decision import Delete


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
    finished = {
        link.stage: StageStatus(
            name=link.stage, key=link.key, state=StageState.SUCCEEDED, artifact=link.artifact, attempt=link.attempt
        )
        for link in links
    }
    converted = finished[convert.stage].model_copy(update={"result": artifact.result.to_json()})
    return {**former, **finished, convert.stage: converted}


def clean(
    links: Sequence[Link],
    chain: dict[StageName, StageStatus],
    former: Mapping[StageName, StageStatus],
    view: View,
    actions: Actions,
) -> list[Link]:
    """Clean, one step further, where Train is finished; puts its status into ``chain``.

    Returns:
        What it wants a Job for. That the features are gone stays known also where nothing more is to be cleaned.
    """
    by_name = {link.stage: link for link in links}
    trained, before = chain.get(StageName.TRAIN), former.get(StageName.CLEAN)
    if StageName.EXTRACT not in by_name:
        return []
    link = stages.clean(view.obj, by_name[StageName.EXTRACT], by_name[StageName.TRAIN])
    if before is not None and before.artifact == link.artifact and before.state is StageState.SUCCEEDED:
        chain[StageName.CLEAN] = before
        return [link]
    if trained is None or trained.state is not StageState.SUCCEEDED:
        return []
    if view.obj.spec.extract.retain and not _begun(before, link.artifact):
        return []
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


def _begun(cleaned: StageStatus | None, features: str | None) -> bool:
    """Whether a Job that removes these features has ever been there: whatever became of it, they may not be whole any more."""
    return cleaned is not None and cleaned.artifact == features and cleaned.job is not None
