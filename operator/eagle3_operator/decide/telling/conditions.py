"""The conditions: what is so, folded from the stages and the revisions.

Each function owns one condition and returns what to say of it, or None where it does not apply. Most look at the object
alone; of what these say ``Ready`` lifts the first that fails, and ``Stalled`` and ``Reconciling`` speak of that. Nothing
here decides anything.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from eagle3_api import times
from eagle3_api.conditions import ORDER, Reason, Status, Type
from eagle3_api.jobs import PublishResult, StageName
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_api.status import Condition, StageState, StageStatus
from eagle3_operator.decide import commands, refusals
from eagle3_operator.decide.pods.diagnosis import not_begun
from eagle3_operator.decide.pods.waiting import PLACE_SECONDS, advised, overdue
from eagle3_operator.decide.revisions import Revision, Standing, Wanted
from eagle3_operator.decide.serving.rollout import RolloutResult
from eagle3_operator.decide.view import View
from eagle3_operator.decision import Because
from eagle3_operator.judge.watch import blind
from eagle3_operator.manifests import names
from eagle3_operator.traits import TRAITS


@dataclass(frozen=True)
class Said:
    """A condition without its times."""

    status: Status
    reason: Reason
    message: str = ""


@dataclass(frozen=True)
class Situation:
    """What the conditions are folded from."""

    view: View
    stages: dict[StageName, StageStatus]
    #: What keeps the object from going on before any Job: storage that is not there, a name that is taken.
    obstacle: Said | None
    wanted: Wanted | None
    rollout: RolloutResult | None

    @property
    def spec(self) -> Eagle3DraftSpec:
        return self.view.obj.spec

    @property
    def told_of_refusals(self) -> list[Because]:
        """What to say of each thing that could not be done to the children just now."""
        return [refusals.told(refusal, self.view.obj.metadata.namespace) for refusal in self.view.seen.refused]

    @property
    def serving(self) -> Revision | None:
        return self.rollout.serving if self.rollout else None

    @property
    def newest(self) -> Revision | None:
        """The newest desired revision: the one with the wanted draft, or the plain one while that must come first.

        A plain one that could not be measured lets no draft be tried, also where it was only to be measured again.
        """
        if self.rollout is None or self.wanted is None:
            return None
        latest = {revision.status.key: revision for revision in self.rollout.revisions}
        draft, plain = latest.get(self.wanted.draft_key), latest.get(self.wanted.plain_key)
        stuck = plain is not None and plain.standing in (Standing.STALLED, Standing.REJECTED)
        return plain if draft is None or (draft.standing is Standing.UNTRIED and stuck) else draft


def _of_stage(stage: StageStatus | None, name: StageName) -> Said:
    if stage is None:
        return Said("Unknown", Reason.PENDING, f"{name} waits for the stages before it")
    if stage.state is StageState.SUCCEEDED:
        return Said("True", Reason.ARTIFACT_PUBLISHED, f"artifact {stage.artifact}")
    if stage.state is StageState.FAILED:
        return Said("False", stage.reason or Reason.JOB_FAILED, stage.message)
    if stage.reason not in (None, Reason.PENDING):
        return Said("Unknown", stage.reason, stage.message)
    progress = stage.progress
    shown = f"{progress.done:.0%} {progress.message}".strip() if progress else ""
    message = "; ".join(text for text in (shown, stage.message) if text)
    return Said("Unknown", TRAITS[name].reason, message or f"Job {stage.job} is under way")


def accepted(at: Situation) -> Said | None:
    """The spec against Inspect's facts, once there is what it looks at."""
    if at.obstacle is not None:
        return at.obstacle
    if at.spec.fetches:
        fetched = _of_stage(at.stages.get(StageName.FETCH), StageName.FETCH)
        if fetched.status != "True":
            return fetched
    said = _of_stage(at.stages.get(StageName.INSPECT), StageName.INSPECT)
    return (
        Said("True", Reason.ACCEPTED, "the spec fits the target, the data and the volumes")
        if said.status == "True"
        else said
    )


def features_ready(at: Situation) -> Said | None:
    """Extract's artifact; absent for an adopted checkpoint."""
    if at.spec.draft.checkpoint:
        return None
    said, cleaned = _of_stage(at.stages.get(StageName.EXTRACT), StageName.EXTRACT), at.stages.get(StageName.CLEAN)
    if said.status != "True" or cleaned is None:
        return said
    if cleaned.state is StageState.SUCCEEDED:
        return Said("True", Reason.ARTIFACT_PUBLISHED, "removed after training (extract.retain: true keeps features)")
    if cleaned.state is StageState.FAILED:
        return Said("True", Reason.ARTIFACT_PUBLISHED, f"{said.message}; it could not be removed: {cleaned.message}")
    return said


def draft_trained(at: Situation) -> Said | None:
    """Train's artifact; absent for an adopted checkpoint."""
    return None if at.spec.draft.checkpoint else _of_stage(at.stages.get(StageName.TRAIN), StageName.TRAIN)


def draft_converted(at: Situation) -> Said | None:
    """Convert's artifact."""
    return _of_stage(at.stages.get(StageName.CONVERT), StageName.CONVERT)


def draft_published(at: Situation) -> Said | None:
    """What Publish pushed, once the hook has ended well, if there is one; absent where the object names no place.

    Servers do not wait for it.
    """
    if at.spec.publish is None:
        return None
    stage = at.stages.get(StageName.PUBLISH)
    said = _of_stage(stage, StageName.PUBLISH)
    if said.status != "True" or stage is None:
        return said
    if at.spec.publish.hook is not None:
        said = _of_stage(at.stages.get(StageName.HOOK), StageName.HOOK)
        if said.status != "True":
            return replace(
                said, message=f"the draft was pushed, but publish.hook has not finished: {said.message}".rstrip(": ")
            )
    return Said("True", Reason.ARTIFACT_PUBLISHED, PublishResult.model_validate(stage.result).told())


def revision_proven(at: Situation) -> Said | None:
    """The newest desired revision."""
    if at.spec.serve is None:
        return None
    newest, rollout = at.newest, at.rollout
    if newest is None or rollout is None:
        return Said("Unknown", Reason.PENDING, "waits for the converted draft")
    if newest.standing is Standing.UNTRIED or (newest.plain and newest.standing is Standing.PROVEN):
        said = rollout.said or Because(Reason.PENDING, "")
        return Said("Unknown", said.reason, said.message)
    judged = newest.judgement()
    if newest.standing is Standing.PROVEN and newest.startable:
        return Said("True", Reason.PROVEN, judged.message)
    return Said("False", judged.reason, f"{judged.message.rstrip('.')}. {_aftermath(at, newest)}")


def _aftermath(at: Situation, newest: Revision) -> str:
    if at.serving is not None and at.serving.number == newest.number and not newest.startable:
        return "No other proven revision exists, so the operator keeps restarting this one."
    serving = f"{at.serving.name} is serving" if at.serving else "nothing is serving"
    if at.serving is not None and at.serving.number == newest.number and at.rollout is not None and at.rollout.said:
        return f"It keeps serving meanwhile. {at.rollout.said.message}"
    if newest.standing is Standing.REJECTED:
        return f"{serving}; {newest.name} is rejected and not tried again until spec or policy change."
    status = newest.status
    retry = commands.retry(at.view.obj.metadata, newest.name, status.failed_at or status.started_at)
    if newest.startable:  # it is the probe that did not come to an end: nothing but this annotation forgets that
        return f"{serving}; {newest.name} is tried again by: {retry}"
    alone = newest.replaces(at.serving.number if at.serving else None)
    soon = "" if alone or newest.status.crashed else "in an hour, "
    return f"{serving}; {newest.name} is tried again {soon}when the spec changes, or by: {retry}"


def server_available(at: Situation) -> Said | None:
    """The serving revision's pods."""
    if at.spec.serve is None:
        return None
    if at.serving is None:
        said = at.rollout.said if at.rollout is not None else None
        if said is not None and said.reason is Reason.REFUSED:
            return Said("Unknown", said.reason, said.message)
        return Said("Unknown", Reason.PENDING, "nothing is serving yet")
    ready, wanted = at.serving.ready, at.spec.serve.replicas
    if wanted == 0:
        return Said("True", Reason.SCALED_TO_ZERO, "serve.replicas is 0")
    if at.rollout is not None and at.rollout.room_for is not None:
        text = f"{at.serving.name} has no pods while the next draft is trained (serve.whileTraining: ScaleToZero)"
        return Said("False", Reason.MAKING_ROOM, text)
    if at.rollout is not None and at.rollout.edited:
        return Said("False", Reason.SERVER_EDITED, at.rollout.edited)
    text = f"{at.serving.name}: {ready} of {wanted} pods ready"
    if ready >= wanted:
        return Said("True", Reason.AVAILABLE, text)
    why = _not_more(at, at.serving)
    return Said("False", why.reason, f"{text}; {why.message}" if why.message else text)


def _not_more(at: Situation, serving: Revision) -> Because:
    """Why what serves has no more ready pods: it is not let have them, or they are to come."""
    name = names.revision_name(at.view.obj.metadata.name, serving.number)
    if refused := at.view.refused(("Deployment", name)):
        return refused
    trouble = not_begun(serving.deployment, at.view.now) if serving.deployment is not None else None
    return advised(trouble) if trouble else Because(Reason.UNAVAILABLE, "")


def speculation_active(at: Situation) -> Said | None:
    """Whether the serving revision verifies drafts, as its counters say."""
    if at.spec.serve is None:
        return None
    if at.serving is None:
        return Said("Unknown", Reason.PENDING, "nothing is serving yet")
    if at.serving.plain:
        return Said("False", Reason.SERVED_WITHOUT_SPECULATION, f"{at.serving.name} serves without speculation")
    window = next((w for w in reversed(at.serving.status.windows) if w.tokens > 0), None)
    if window is None:
        return Said("Unknown", Reason.NO_TRAFFIC, f"{at.serving.name} has had no traffic in a watched window")
    if window.verify_calls > 0:
        return Said("True", Reason.ACTIVE, f"{window.verify_calls:.0f} verify calls in the window to {window.end}")
    text = f"{window.tokens:.0f} tokens and no verify call in the window to {window.end}"
    return Said("False", Reason.SPECULATION_INACTIVE, text)


def draft_healthy(at: Situation) -> Said | None:
    """The watch's judgement of the serving revision. Unknown never makes Ready false."""
    if at.spec.serve is None:
        return None
    serving = at.serving
    if serving is None:
        return Said("Unknown", Reason.PENDING, "nothing is serving yet")
    if serving.plain:
        return Said("Unknown", Reason.SERVED_WITHOUT_SPECULATION, f"{serving.name} serves without speculation")
    verdict, watch = serving.watch_verdict, at.spec.watched
    if verdict is None or watch is None:
        return None
    source = "" if watch.prometheus else ". Read directly from its pods, because spec.watch names no Prometheus"
    unseen = watch.on_no_data == "Report" and blind(verdict, serving.status.windows, watch)
    unwell = verdict.failed or verdict.reason is Reason.DRIFTING or unseen
    status: Status = "True" if verdict.passed else "False" if unwell else "Unknown"
    return Said(status, verdict.reason, f"{verdict.message}{source}")


#: What each of the others says, as far as it applies.
Told = Mapping[Type, Said]


@dataclass(frozen=True)
class Whole:
    """What ``Ready`` says, and the condition that it is lifted from: ``Ready`` itself where it speaks of no other."""

    said: Said
    lifted_from: Type


#: The conditions of what is made before anything can serve.
_CHAIN = (Type.ACCEPTED, Type.FEATURES_READY, Type.DRAFT_TRAINED, Type.DRAFT_CONVERTED)


def ready(told: Told, at: Situation) -> Whole:
    """The whole: the newest desired revision proven and serving; without serve, the draft converted.

    Of a stage that is under way it speaks only while what serves has its pods.
    """
    moved = _newest_serves(at)
    parts = told if moved is None else {**told, Type.READY: moved}
    for kind in (*_CHAIN, Type.REVISION_PROVEN, Type.READY, Type.SERVER_AVAILABLE, Type.DRAFT_PUBLISHED):
        said = parts.get(kind)
        if said is None or said.status == "True":
            continue
        if kind in _CHAIN and said.status == "Unknown" and said.reason not in _FOR_A_PERSON and _lacks_pods(told):
            kind, said = Type.SERVER_AVAILABLE, told[Type.SERVER_AVAILABLE]
        return Whole(replace(said, status="False"), kind)
    if moved is None:
        text = "the converted draft is published: status.artifact"
        return Whole(Said("True", Reason.ARTIFACT_PUBLISHED, text), Type.READY)
    health = told.get(Type.DRAFT_HEALTHY)
    if health is None or health.status == "Unknown":
        return Whole(moved, Type.READY)
    reason = Reason.DRAFT_HEALTHY if health.status == "True" else health.reason
    return Whole(replace(health, reason=reason), Type.DRAFT_HEALTHY)


def _lacks_pods(told: Told) -> bool:
    """What serves has not all its pods, though nobody sent them away: clients meet that now, and the next draft in days."""
    said = told.get(Type.SERVER_AVAILABLE)
    return said is not None and said.status == "False" and said.reason is not Reason.MAKING_ROOM


def _newest_serves(at: Situation) -> Said | None:
    """Whether the Service has moved to the newest revision, which is proven. Until then what served may have gone for it."""
    newest, serving, rollout = at.newest, at.serving, at.rollout
    if at.spec.serve is None or newest is None:
        return None
    if serving is not None and serving.number == newest.number:
        return Said("True", Reason.SERVING, f"{serving.name} is proven and serving")
    if rollout is not None and rollout.said is not None:
        return Said("False", rollout.said.reason, rollout.said.message)
    return Said("False", Reason.ROLLING_OUT, f"{newest.name} is about to serve")


#: What goes on only when a person has done something.
_FOR_A_PERSON = (Reason.AWAITING_APPROVAL, Reason.SUSPENDED)


#: What has failed, where one of these says no, goes on only when a person has done something.
_FINAL = (*_CHAIN, Type.REVISION_PROVEN, Type.DRAFT_PUBLISHED)


def stalled(told: Told, whole: Whole, at: Situation) -> Said:
    """Whether nothing more happens without a person (kstatus)."""
    said = whole.said
    if said.status == "True":
        return Said("False", Reason.SETTLED)
    stuck = next((told[kind] for kind in _FINAL if kind in told and told[kind].status == "False"), None)
    if stuck is not None:
        return replace(stuck, status="True")
    unwell = whole.lifted_from is Type.DRAFT_HEALTHY
    stays = said.reason is Reason.SERVER_EDITED and at.rollout is not None and at.rollout.edit_stays
    if unwell or stays or said.reason in _FOR_A_PERSON or _waits_in_vain(at, said):
        return replace(said, status="True")
    return Said("False", said.reason)


#: What keeps a pod, and may go by itself; but not for ever.
_OF_PODS = (
    Reason.UNSCHEDULABLE,
    Reason.QUEUED,
    Reason.POD_NOT_STARTED,
    Reason.IMAGE_PULL,
    Reason.INVALID_CONFIGURATION,
    Reason.HELD_BY_SIDECAR,
)


def _waits_in_vain(at: Situation, whole: Said) -> bool:
    """Whether the pod that all waits for, a Job's, the candidate's or the goal's, has waited for too long. It is left: it may come yet."""
    coming, now = (at.rollout.candidate, at.rollout.goal) if at.rollout else (), at.view.now
    jobs = [job for job in at.view.seen.jobs.values() if not job.finished]
    queued = [now - (job.suspended_since or job.created_at) for job in jobs if job.suspended and job.queue is not None]
    jobs = [job for job in jobs if not job.suspended]
    none_made = [now - (job.started_at or job.created_at) for job in jobs if not job.pods]
    # Where others of its Job tell how far they are, one that finds no place may get that of the first that is through
    pods = [pod for job in jobs for pod in job.pods if job.progress is None or pod.held_by is not None]
    servers = [revision.deployment for revision in coming if revision is not None and revision.deployment is not None]
    pods += [pod for deployment in servers for pod in deployment.pods]
    late = any(overdue(pod, now) for pod in pods) or any(
        age.total_seconds() > PLACE_SECONDS for age in (*queued, *none_made)
    )
    return late and whole.reason in _OF_PODS


def reconciling(whole: Said, stuck: Said, at: Situation) -> Said:
    """Whether something is under way (kstatus): not where it is stalled, nor where it is ready and no more than its budget is refused.

    What is refused is told here in any case.
    """
    refused = at.view.seen.refused
    missing = whole.status != "True" or any(refusal.kind != "PodDisruptionBudget" for refusal in refused)
    under_way = missing and stuck.status != "True"
    if told := at.told_of_refusals:
        return Said("True" if under_way else "False", told[0].reason, " ".join(one.message for one in told))
    return replace(whole, status="True") if under_way else Said("False", Reason.SETTLED)


#: Those that look at the object alone.
_OF_THE_OBJECT: Mapping[Type, Callable[[Situation], Said | None]] = {
    Type.ACCEPTED: accepted,
    Type.FEATURES_READY: features_ready,
    Type.DRAFT_TRAINED: draft_trained,
    Type.DRAFT_CONVERTED: draft_converted,
    Type.DRAFT_PUBLISHED: draft_published,
    Type.REVISION_PROVEN: revision_proven,
    Type.SERVER_AVAILABLE: server_available,
    Type.SPECULATION_ACTIVE: speculation_active,
    Type.DRAFT_HEALTHY: draft_healthy,
}


def _all(at: Situation) -> Told:
    told = {kind: said for kind, say in _OF_THE_OBJECT.items() if (said := say(at)) is not None}
    whole = ready(told, at)
    stuck = stalled(told, whole, at)
    return told | {Type.READY: whole.said, Type.STALLED: stuck, Type.RECONCILING: reconciling(whole.said, stuck, at)}


#: What the schema allows a message to be.
_MESSAGE_LIMIT = 4000


def table(at: Situation, before: Iterable[Condition]) -> list[Condition]:
    """All conditions that apply, in the order in which a person reads them. A time changes only when a status flips."""
    former, told = {condition.type: condition for condition in before}, _all(at)
    made = []
    for kind in (kind for kind in ORDER if kind in told):
        said, was = told[kind], former.get(kind)
        made.append(
            Condition(
                type=kind,
                status=said.status,
                reason=said.reason,
                message=said.message[:_MESSAGE_LIMIT],
                observed_generation=at.view.obj.metadata.generation,
                last_transition_time=(
                    was.last_transition_time if was and was.status == said.status else times.text(at.view.now)
                ),
            )
        )
    return made
