"""One decision, from one look: the stages, then the revisions, then what to say of both."""

from dataclasses import replace
from datetime import datetime

from eagle3_api import times
from eagle3_api.jobs import ConvertResult, Facts, PublishResult, StageName
from eagle3_api.spec import Eagle3Draft, Eagle3DraftSpec
from eagle3_api.status import ArtifactStatus, Attempt, Eagle3DraftStatus, StageState, StageStatus
from eagle3_operator.decide import refusals, retries
from eagle3_operator.decide.keys import draft_key, plain_key
from eagle3_operator.decide.obstacles import forbidden, taken_name, unknown_prometheus, without_claims
from eagle3_operator.decide.pipeline import drift, retention
from eagle3_operator.decide.pipeline.advancing import advance_chain
from eagle3_operator.decide.pipeline.chain import halt
from eagle3_operator.decide.pipeline.room import unchanged
from eagle3_operator.decide.revisions import Revision, Wanted
from eagle3_operator.decide.serving.rollout import Rollout
from eagle3_operator.decide.stages import Attempts
from eagle3_operator.decide.telling import conditions, events, summary
from eagle3_operator.decide.telling.conditions import Situation
from eagle3_operator.decide.view import Actions, View
from eagle3_operator.decide.waking import wake_after
from eagle3_operator.decision import Decision
from eagle3_operator.manifests import names
from eagle3_operator.manifests.sizing import is_large
from eagle3_operator.observation import Observation
from eagle3_operator.settings import Settings


def decide(obj: Eagle3Draft, seen: Observation, settings: Settings, now: datetime) -> Decision:
    """What to do for this object, and what to say of it.

    Args:
        obj: as it was read, its former status included.
        seen: its children, as they are now.
        settings: of the operator.
        now: an aware time.
    """
    before = Eagle3DraftStatus.as_of(obj.status, now)
    seen = replace(seen, refused=refusals.as_before(seen.refused, before))
    retried = retries.act_on(obj.metadata.annotations, before, seen)
    known = drift.act_on(obj.spec, retried.status, now)
    view = View(obj, retried.seen, settings, now)
    actions = Actions(delete=list(retried.delete))
    not_allowed = forbidden(obj, settings)
    obstacle = (
        not_allowed or taken_name(view) or unknown_prometheus(view, known) or without_claims(view, known, actions)
    )
    chain = {stage.name: stage for stage in known.stages}
    facts, room = known.resolved, unchanged(known, view, under_way=False)
    attempts = Attempts(chain, known.attempts)
    if obstacle is None:
        chain, facts, room = advance_chain(view, known, attempts, actions)
    if obj.spec.suspend:
        halt(view, actions)
    wanted = _wanted(obj, chain, facts) if not_allowed is None else None
    outcome, mend, scale = None, [], []
    if obj.spec.serve is not None and facts is not None:
        rollout = Rollout(view, facts, wanted, known, actions, room, inspecting=_inspecting(obj.spec, chain))
        outcome, mend, scale = rollout.run(), rollout.mend, rollout.scale
    at = Situation(view, chain, obstacle, wanted, outcome)
    status = _status(known, facts, attempts.known, at)
    told = events.between(before, status, obj.spec, [because.message for because in at.told_of_refusals])
    told += [*retried.told, *(outcome.events if outcome else ())]
    told += events.overruled(scale, seen.deployments.values(), before, status, obj.metadata)
    return Decision(
        status=status,
        delete=tuple(actions.delete),
        apply=tuple(actions.apply),
        mend=tuple(mend),
        scale=tuple(scale),
        suspend=tuple(actions.suspend),
        own=tuple(actions.own),
        events=tuple(told),
        requeue_after=wake_after(view, chain, actions.waits, obstacle, outcome),
    )


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


def _inspecting(spec: Eagle3DraftSpec, chain: dict[StageName, StageStatus]) -> bool:
    """Whether target and data are being looked at: what is wanted is not known for so long, and may be the same after that."""
    looks = (chain.get(StageName.INSPECT), chain.get(StageName.FETCH) if spec.fetches else None)
    return any(stage is not None and stage.state in (StageState.WAITING, StageState.RUNNING) for stage in looks)


def _status(
    before: Eagle3DraftStatus, facts: Facts | None, attempts: list[Attempt], at: Situation
) -> Eagle3DraftStatus:
    obj, chain = at.view.obj, at.stages
    said = conditions.table(at, before.conditions)
    true = {c.type for c in said if c.status == "True"}
    # Whose draft serves has traffic to lose, also where it is never pushed or not healthy
    to_lose = "Ready" in true or true.issuperset(("RevisionProven", "ServerAvailable"))
    artifact = _artifact(obj, chain) or before.artifact
    return before.model_copy(
        update={
            "observed_generation": obj.metadata.generation,
            "phase": summary.phase(at, said),
            "conditions": said,
            "resolved": facts,
            "stages": [chain[name] for name in StageName if name in chain],
            "revisions": [r.status for r in at.rollout.revisions] if at.rollout else before.revisions,
            "room_for": at.rollout.room_for if at.rollout else before.room_for,
            "serving_revision": at.serving.number if at.serving else None,
            "ready_once": before.ready_once or to_lose,
            "took": before.took | _took(obj.spec, chain),
            "artifact": artifact,
            "attempts": attempts,
            "former_artifacts": retention.known(artifact, (before.artifact, *before.former_artifacts)),
            "handled": before.handled.model_copy(
                update={
                    "rollback": at.rollout.rolled_back if at.rollout else before.handled.rollback,
                    "approve": at.rollout.approved if at.rollout else before.handled.approve,
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


def _artifact(obj: Eagle3Draft, chain: dict[StageName, StageStatus]) -> ArtifactStatus | None:
    convert = chain.get(StageName.CONVERT)
    if convert is None or convert.state is not StageState.SUCCEEDED:
        return None
    result = ConvertResult.model_validate(convert.result)
    hooked = obj.spec.publish is not None and obj.spec.publish.hook is not None
    last, published = chain.get(StageName.HOOK if hooked else StageName.PUBLISH), chain.get(StageName.PUBLISH)
    pushed = None
    if published is not None and last is not None and last.state is StageState.SUCCEEDED:
        pushed = PublishResult.model_validate(published.result)
    return ArtifactStatus(
        folder=convert.artifact or "",
        claim=names.claim_name(obj, "drafts"),
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
