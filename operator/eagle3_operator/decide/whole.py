"""One decision, from one look: the stages, then the revisions, then what to say of both."""

from collections.abc import Mapping
from datetime import datetime

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertResult, Facts, FetchResult, PublishResult, StageName
from eagle3_api.spec import Eagle3Draft, Eagle3DraftSpec, seconds
from eagle3_api.status import ArtifactStatus, Eagle3DraftStatus, StageState, StageStatus
from eagle3_operator.decide import conditions, drift, events, retention, retries, stages, summary, times
from eagle3_operator.decide.approval import APPROVE_ANNOTATION
from eagle3_operator.decide.chain import Actions, Step, View, advance, stale
from eagle3_operator.decide.conditions import Said, Situation
from eagle3_operator.decide.keys import draft_key, plain_key
from eagle3_operator.decide.revisions import Revision, Wanted
from eagle3_operator.decide.rollout import Outcome, Rollout
from eagle3_operator.decide.room import Room, asked, unchanged
from eagle3_operator.decide.stages import Link
from eagle3_operator.decision import Decision, Manifest
from eagle3_operator.judge import counters
from eagle3_operator.judge.windows import begins
from eagle3_operator.manifests import claims, names
from eagle3_operator.manifests.jobs import is_large
from eagle3_operator.observation import Claim, Observation
from eagle3_operator.settings import Settings

#: How soon metrics that could not be read are asked for again, and a claim that is missing is looked for.
RETRY_SECONDS = 30.0


def decide(obj: Eagle3Draft, seen: Observation, settings: Settings, now: datetime) -> Decision:
    """What to do for this object, and what to say of it.

    Args:
        obj: as it was read, its former status included.
        seen: its children, as they are now.
        settings: of the operator.
        now: an aware time.
    """
    before = Eagle3DraftStatus.model_validate(obj.status)
    retried = retries.act_on(obj.metadata.annotations, before, seen)
    known = drift.act_on(obj.spec, retried.status, now)
    view = View(obj, retried.seen, settings, now)
    actions = Actions(delete=list(retried.delete))
    refusal = _refused(obj, settings)
    obstacle = refusal or _claims(view, actions)
    chain = {stage.name: stage for stage in known.stages}
    facts, room = known.resolved, unchanged(known, view, under_way=False)
    if obstacle is None:
        chain, facts, room = _advance_chain(view, known, actions)
    wanted = _wanted(obj, chain, facts) if refusal is None else None
    outcome, scale = None, []
    if obj.spec.serve is not None and facts is not None:
        rollout = Rollout(view, facts, wanted, known, actions, room)
        outcome, scale = rollout.run(), rollout.scale
    status = _status(view, known, chain, facts, Situation(obj.spec, chain, obstacle, wanted, outcome))
    told = events.between(before, status, obj.spec) + (outcome.events if outcome else [])
    return Decision(
        status=status,
        delete=tuple(actions.delete),
        apply=tuple(actions.apply),
        scale=tuple(scale),
        suspend=tuple(actions.suspend),
        events=tuple(told),
        requeue_after=_wake(view, chain, obstacle, outcome),
    )


def _refused(obj: Eagle3Draft, settings: Settings) -> Said | None:
    """What an object may not have. Nothing new is made of it, because a pod with a service account acts in its name."""
    spec = obj.spec
    sections = {"": spec, "extract.": spec.extract, "train.": spec.train, "serve.": spec.serve}
    for path, section in sections.items():
        placement = section.placement if section is not None else None
        name = placement.service_account_name if placement is not None else None
        if name is not None and name not in settings.allowed_service_accounts:
            text = (
                f"{path}placement.serviceAccountName: {name!r} is not one that objects may use; whoever installed the operator "
                "lists them in the chart's values (allowedServiceAccounts)"
            )
            return Said("False", Reason.INVALID_CONFIGURATION, text)
    return None


def _claims(view: View, actions: Actions) -> Said | None:
    """Make the claims that are ours to make; without a user's claim, or with one that its pods cannot share, nothing starts."""
    made: list[Manifest] = []
    for root in names.roots(view.obj.spec):
        name = names.claim_name(view.obj, root)
        if (found := view.seen.claims.get(name)) is not None:
            if alone := _not_shared(view.obj, root, found):
                return alone
            continue
        if getattr(view.obj.spec.storage, root).claim is None:
            made.append(claims.claim(view.obj, root))
            continue
        text = f"storage.{root}: there is no PersistentVolumeClaim {name!r} in namespace {view.obj.metadata.namespace}"
        return Said("False", Reason.STORAGE_UNAVAILABLE, text)
    actions.apply += made
    return Said("Unknown", Reason.PENDING, "claims are being made") if made else None


def _not_shared(obj: Eagle3Draft, root: names.RootName, claim: Claim) -> Said | None:
    """Training on several nodes writes to both claims from all of them."""
    nodes = obj.spec.train.nodes
    if nodes == 1 or obj.spec.draft.checkpoint is not None or "ReadWriteMany" in claim.access_modes:
        return None
    modes = ", ".join(claim.access_modes) or "unknown"
    text = (
        f'storage.{root}: claim "{claim.name}" is {modes}, which binds all pods that mount it to one node; train.nodes is '
        f"{nodes}. Use a ReadWriteMany claim, or set train.nodes to 1 and train.gpus to what one node has"
    )
    return Said("False", Reason.STORAGE_NOT_SHARED, text)


def _advance_chain(
    view: View, before: Eagle3DraftStatus, actions: Actions
) -> tuple[dict[StageName, StageStatus], Facts | None, Room]:
    """All stages, in order, as far as they can go. What was finished stays while a new inspection runs."""
    former = {stage.name: stage for stage in before.stages}
    attempts = {stage.name: stage.attempt for stage in before.stages}
    chain: dict[StageName, StageStatus] = {}
    fetched: FetchResult | None = None
    begun: list[Link] = []
    if (fetch := stages.fetch(view.obj, attempts.get(StageName.FETCH), before.handled.drift)) is not None:
        step = advance(fetch, former.get(StageName.FETCH), view)
        actions.add(step)
        if step.status.state is not StageState.SUCCEEDED:
            return _not_yet_known(view, before, former | {StageName.FETCH: step.status}, step, [fetch], actions)
        chain[StageName.FETCH] = step.status
        fetched = FetchResult.model_validate(step.status.result)
        begun.append(fetch)
    claim = view.seen.claims.get(names.claim_name(view.obj, "features"))
    first = stages.inspect(view.obj, before.handled, claim.capacity if claim else None, fetched)
    begun.append(first)
    step = advance(first, former.get(StageName.INSPECT), view)
    actions.add(step)
    if step.status.state is not StageState.SUCCEEDED:
        return _not_yet_known(view, before, former | chain | {StageName.INSPECT: step.status}, step, begun, actions)
    facts = Facts.model_validate(step.status.result)
    chain[StageName.INSPECT] = step.status
    links = stages.after_inspection(view.obj, facts, attempts)
    former = retention.remembered(links, former, (before.artifact, *before.former_artifacts))
    former, view = retention.restored(links, former, view, actions)
    room = Room()
    for link in links:
        room = asked(links, former | chain, view, facts, before)
        step = advance(
            link, former.get(link.stage), view, room.waiting if is_large(view.obj.spec, link.stage) else None
        )
        actions.add(step)
        chain[link.stage] = step.status
        if step.status.state is not StageState.SUCCEEDED:
            break
    links += _publish(links, chain, former, view, actions)
    links += retention.clean(links, chain, former, view, actions)
    actions.delete += stale(view, _named(view, [*begun, *links]))
    return chain, facts, room


def _publish(
    links: list[Link],
    chain: dict[StageName, StageStatus],
    former: Mapping[StageName, StageStatus],
    view: View,
    actions: Actions,
) -> list[Link]:
    """Publish, and the hook after it, one step further, where Convert is finished and the object says where to.

    Puts their statuses into ``chain``; returns what they want Jobs for.
    """
    converted = chain.get(StageName.CONVERT)
    if view.obj.spec.publish is None or converted is None or converted.state is not StageState.SUCCEEDED:
        return []
    result = ConvertResult.model_validate(converted.result)
    before = former.get(StageName.PUBLISH)
    link = stages.publish(view.obj, links[-1], result, before.attempt if before is not None else None)
    step = advance(link, before, view)
    actions.add(step)
    chain[StageName.PUBLISH] = step.status
    if view.obj.spec.publish.hook is None or step.status.state is not StageState.SUCCEEDED:
        return [link]
    pushed, before = PublishResult.model_validate(step.status.result), former.get(StageName.HOOK)
    hook = stages.hook(view.obj, link, pushed, before.attempt if before is not None else None)
    step = advance(hook, before, view)
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


def _wanted(obj: Eagle3Draft, chain: dict[StageName, StageStatus], facts: Facts | None) -> Wanted | None:
    """What is to be served, once the whole chain of the newest spec is finished."""
    convert = chain.get(StageName.CONVERT)
    needed = [chain.get(StageName.INSPECT), convert, *([chain.get(StageName.FETCH)] if obj.spec.fetches else [])]
    done = (stage is not None and stage.state is StageState.SUCCEEDED for stage in needed)
    if not all(done) or convert is None or facts is None or obj.spec.serve is None:
        return None
    draft = ConvertResult.model_validate(convert.result)
    return Wanted(
        plain_key=plain_key(obj.spec, facts),
        draft_key=draft_key(obj.spec, facts, draft.digest),
        artifact=convert.artifact or "",
        draft=draft,
    )


def _status(
    view: View,
    before: Eagle3DraftStatus,
    chain: dict[StageName, StageStatus],
    facts: Facts | None,
    at: Situation,
) -> Eagle3DraftStatus:
    obj, generation = view.obj, view.obj.metadata.generation
    said = conditions.table(at, before.conditions, generation, view.now)
    is_ready = any(c.type == "Ready" and c.status == "True" for c in said)
    approve = obj.metadata.annotations.get(APPROVE_ANNOTATION)
    artifact = _artifact(view, chain) or before.artifact
    return before.model_copy(
        update={
            "observed_generation": generation,
            "phase": summary.phase(at, said),
            "conditions": said,
            "resolved": facts,
            "stages": [chain[name] for name in StageName if name in chain],
            "revisions": [r.status for r in at.rollout.revisions] if at.rollout else before.revisions,
            "room_for": at.rollout.room_for if at.rollout else before.room_for,
            "serving_revision": at.serving.number if at.serving else None,
            "ready_once": before.ready_once or is_ready,
            "took": before.took | _took(obj.spec, chain),
            "artifact": artifact,
            "former_artifacts": retention.known(artifact, (before.artifact, *before.former_artifacts)),
            "handled": before.handled.model_copy(
                update={
                    "approve": approve or before.handled.approve,
                    "rollback": at.rollout.rolled_back if at.rollout else before.handled.rollback,
                }
            ),
            "replicas": at.serving.ready if at.serving else 0,
            "selector": _selector(obj, at.serving),
            **summary.columns(at),
        }
    )


def _took(spec: Eagle3DraftSpec, chain: dict[StageName, StageStatus]) -> dict[str, float]:
    """Seconds that the large stages took which are finished."""
    return {
        str(name): times.age(stage.started_at, times.parse(stage.finished_at))
        for name, stage in sorted(chain.items())
        if is_large(spec, name) and stage.state is StageState.SUCCEEDED and stage.finished_at is not None
    }


def _artifact(view: View, chain: dict[StageName, StageStatus]) -> ArtifactStatus | None:
    convert = chain.get(StageName.CONVERT)
    if convert is None or convert.state is not StageState.SUCCEEDED:
        return None
    result = ConvertResult.model_validate(convert.result)
    hooked = view.obj.spec.publish is not None and view.obj.spec.publish.hook is not None
    last, published = chain.get(StageName.HOOK if hooked else StageName.PUBLISH), chain.get(StageName.PUBLISH)
    pushed = None
    if published is not None and last is not None and last.state is StageState.SUCCEEDED:
        pushed = PublishResult.model_validate(published.result)
    return ArtifactStatus(
        folder=convert.artifact or "",
        claim=names.claim_name(view.obj, "drafts"),
        digest=result.digest,
        published=pushed.reference if pushed else None,
        stored=pushed.stored.address if pushed and pushed.stored else None,
        result=result,
    )


def _selector(obj: Eagle3Draft, serving: Revision | None) -> str:
    if serving is None:
        return ""
    labels = names.labels(obj.metadata.name, revision=serving.number)
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _wake(
    view: View, chain: dict[StageName, StageStatus], obstacle: Said | None, outcome: Outcome | None
) -> float | None:
    """When to look again without being called: a poll, the end of a window or of a bake, a retry."""
    moments = []
    if obstacle is not None and obstacle.reason is not Reason.INVALID_CONFIGURATION:
        moments.append(1.0 if obstacle.reason is Reason.PENDING else RETRY_SECONDS)
    if any(pod.started and not job.finished for job in view.seen.jobs.values() for pod in job.pods):
        moments.append(view.settings.poll_seconds)
    if any(stage.reason is Reason.MAKING_ROOM for stage in chain.values()):
        moments.append(view.settings.poll_seconds)
    if outcome is not None and outcome.requeue_after is not None:
        moments.append(outcome.requeue_after)
    watched = outcome.serving if outcome is not None and outcome.room_for is None else None
    if watched is not None and (window := _next_window(view, watched)):
        moments.append(window)
    return max(0.2, min(moments)) if moments else None


def _next_window(view: View, serving: Revision) -> float | None:
    watch, status = view.obj.spec.watched, serving.status
    if watch is None or serving.plain or serving.ready == 0:
        return None
    length = seconds(watch.window)
    if status.watch_problem:
        # Of pods the next window tells all that this one would have; of a Prometheus, each window only its own.
        return max(RETRY_SECONDS, length) if watch.prometheus is None else RETRY_SECONDS
    former = counters.last(status) if watch.prometheus is None else None
    since = times.parse(former.time) if former is not None else begins(status)
    age = (view.now - since).total_seconds() if since is not None else 0.0
    return max(1.0, length - age + 1.0)
