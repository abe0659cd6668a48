"""All stages before serving, one step further each, as far as they can go."""

from collections.abc import Mapping
from functools import partial

from eagle3_api.jobs import ConvertResult, Facts, FetchResult, PublishResult, StageName
from eagle3_api.quantity import quantity
from eagle3_api.status import Eagle3DraftStatus, StageState, StageStatus
from eagle3_operator.decide import stages
from eagle3_operator.decide.pipeline import retention
from eagle3_operator.decide.pipeline.chain import advance, stale
from eagle3_operator.decide.pipeline.room import Room, asked, unchanged
from eagle3_operator.decide.stages import Attempts, Link, Look, Push, Pushed
from eagle3_operator.decide.view import Actions, Step, View
from eagle3_operator.manifests import names
from eagle3_operator.manifests.sizing import is_large
from eagle3_operator.traits import TRAITS


def advance_chain(
    view: View, before: Eagle3DraftStatus, attempts: Attempts, actions: Actions
) -> tuple[dict[StageName, StageStatus], Facts | None, Room]:
    """All stages, in order, as far as they can go. What was finished stays while a new inspection runs."""
    former = {stage.name: stage for stage in before.stages}
    chain: dict[StageName, StageStatus] = {}
    fetched: FetchResult | None = None
    begun: list[Link] = []
    was = former.get(StageName.FETCH)
    # What a branch is called may have moved: a retry counts whatever else is fetched
    if (fetch := stages.fetch(view.obj, was.attempt if was else None, before.handled.drift)) is not None:
        step = advance(fetch, was, view)
        actions.add(step)
        if step.status.state is not StageState.SUCCEEDED:
            return _not_yet_known(view, before, former | {StageName.FETCH: step.status}, step, [fetch], actions)
        chain[StageName.FETCH] = step.status
        fetched = FetchResult.model_validate(step.status.result)
        begun.append(fetch)
    claim = view.seen.claims.get(names.claim_name(view.obj, "features"))
    capacity = claim.capacity if claim else None
    unmounted = retention.awaited_claim(view)
    if gone := unmounted is not None and retention.claim_has_gone(view, before):
        capacity = quantity(view.obj.spec.storage.features.size or "0")
    first = stages.INSPECT.link(Look(view.obj, before.handled, capacity, fetched, features_gone=gone))
    begun.append(first)
    step = advance(first, former.get(StageName.INSPECT), view, None if gone else unmounted)
    actions.add(step)
    if step.status.state is not StageState.SUCCEEDED:
        return _not_yet_known(view, before, former | chain | {StageName.INSPECT: step.status}, step, begun, actions)
    facts = Facts.model_validate(step.status.result)
    chain[StageName.INSPECT] = step.status
    links = stages.after_inspection(view.obj, facts, attempts, capacity)
    former = retention.remembered(links, former, (before.artifact, *before.former_artifacts))
    former, view = retention.restored(links, former, view, actions)
    room = Room()
    for link in links:
        room = asked(links, former | chain, view, facts, before)
        waiting = (room.waiting if is_large(view.obj.spec, link.stage) else None) or (
            unmounted or retention.awaited_removal(view) if TRAITS[link.stage].features else None
        )
        step = advance(link, former.get(link.stage), view, waiting)
        actions.add(step)
        chain[link.stage] = step.status
        if step.status.state is not StageState.SUCCEEDED:
            break
    links += _publish(links, chain, former, view, attempts, actions)
    links += retention.clean(links, chain, former, view, actions)
    actions.delete += stale(view, _named(view, [*begun, *links]))
    return chain, facts, room


def _publish(
    links: list[Link],
    chain: dict[StageName, StageStatus],
    former: Mapping[StageName, StageStatus],
    view: View,
    attempts: Attempts,
    actions: Actions,
) -> list[Link]:
    """Publish, and the hook after it, one step further, where Convert is finished and the object says where to.

    Puts their statuses into ``chain``; returns what they want Jobs for.
    """
    to, converted = view.obj.spec.publish, chain.get(StageName.CONVERT)
    if to is None or converted is None or converted.state is not StageState.SUCCEEDED:
        return []
    result = ConvertResult.model_validate(converted.result)
    link = attempts.link(partial(stages.PUBLISH.link, Push(view.obj, to, links[-1], result)))
    step = advance(link, former.get(StageName.PUBLISH), view)
    actions.add(step)
    chain[StageName.PUBLISH] = step.status
    if to.hook is None or step.status.state is not StageState.SUCCEEDED:
        return [link]
    pushed = PublishResult.model_validate(step.status.result)
    hook = attempts.link(partial(stages.HOOK.link, Pushed(view.obj, to.hook, link, pushed)))
    step = advance(hook, former.get(StageName.HOOK), view)
    actions.add(step)
    chain[StageName.HOOK] = step.status
    return [link, hook]


def _not_yet_known(
    view: View,
    before: Eagle3DraftStatus,
    chain: dict[StageName, StageStatus],
    step: Step,
    begun: list[Link],
    actions: Actions,
) -> tuple[dict[StageName, StageStatus], Facts | None, Room]:
    """While the new facts are not known, the former ones stay, and what was made by them."""
    actions.delete += stale(view, _unfinished(view, begun))
    under_way = step.status.state is not StageState.FAILED and not view.obj.spec.suspend
    return chain, before.resolved, unchanged(before, view, under_way=under_way)


def _named(view: View, links: list[Link]) -> dict[str, Link]:
    return {names.job_name(view.obj.metadata.name, link.stage, link.key): link for link in links}


def _unfinished(view: View, begun: list[Link]) -> dict[str, Link]:
    """While the new facts are not known, only another key's Jobs of the first stages are surely not wanted."""
    kept = _named(view, begun)
    known = {link.stage for link in begun}
    others = {job.name: begun[0] for job in view.seen.jobs.values() if job.stage not in known}
    return kept | others
