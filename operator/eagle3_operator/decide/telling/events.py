"""The Events of transitions: what happened between two statuses, in a sentence each for ``kubectl describe``."""

from collections.abc import Iterable, Iterator
from typing import Literal

from eagle3_api import times
from eagle3_api.artifacts import REPORT_PAGE
from eagle3_api.conditions import EventReason, Reason, Type
from eagle3_api.estimate import count_of, readable_bytes, readable_count
from eagle3_api.jobs import (
    RESULTS,
    CleanResult,
    ConvertResult,
    ExtractResult,
    Facts,
    FetchResult,
    ProbeResult,
    PublishResult,
    StageName,
    TrainResult,
)
from eagle3_api.rates import Size, extraction_seconds
from eagle3_api.spec import Eagle3DraftSpec, Metadata
from eagle3_api.status import Eagle3DraftStatus, RevisionState, RevisionStatus, StageState, StageStatus
from eagle3_operator.decide import commands
from eagle3_operator.decision import Event, Scale
from eagle3_operator.judge.probe import cost_of_loads
from eagle3_operator.manifests import names
from eagle3_operator.observation import Deployment

#: In whose name the cluster's own controllers write; of them only an autoscaler scales a Deployment.
_CONTROLLERS = "kube-controller-manager"


def between(
    before: Eagle3DraftStatus, after: Eagle3DraftStatus, spec: Eagle3DraftSpec, refused: Iterable[str] = ()
) -> list[Event]:
    """What happened between two statuses that is worth telling.

    Args:
        before, after: the statuses.
        spec: of the object.
        refused: what ``after`` says of each child to which something could not be done.
    """
    return [
        *_stage_events(before, after, spec),
        *_room_events(before, after),
        *_revision_events(before, after),
        *_refusals(before, refused),
    ]


def overruled(
    scaled: Iterable[Scale],
    deployments: Iterable[Deployment],
    before: Eagle3DraftStatus,
    after: Eagle3DraftStatus,
    metadata: Metadata,
) -> list[Event]:
    """That somebody else has said how many pods a revision has, where that is taken back.

    Nothing where it is to have another number than at the former look, which whoever wrote that one may have agreed with.

    Args:
        scaled: what is done now.
        deployments: as they are.
        before, after: the statuses.
        metadata: of the object.
    """
    wished = {revision.number: revision.replicas for revision in before.revisions}
    numbers = {one.name: one.replicas for one in scaled}
    return [
        Event("Warning", EventReason.SCALE_OVERRULED, _overruling(deployment, wanted, after, metadata))
        for deployment in deployments
        if (wanted := numbers.get(deployment.name)) is not None
        and wanted == wished.get(deployment.revision)
        and deployment.scaled_by != names.FIELD_MANAGER  # of what had no pods the API server keeps no name
    ]


def _overruling(deployment: Deployment, wanted: int, after: Eagle3DraftStatus, metadata: Metadata) -> str:
    who = deployment.scaled_by or "somebody"
    called = f"{who} (a HorizontalPodAutoscaler)" if who == _CONTROLLERS else who
    what = f"{called} has scaled Deployment {deployment.name} to {deployment.replicas}. The operator restored {wanted}"
    scalable = f"point the autoscaler's scaleTargetRef at Eagle3Draft {metadata.name}"
    if deployment.revision != after.serving_revision:
        return f"{what}, because r{deployment.revision} does not serve. Scale the Eagle3Draft instead, or {scalable}"
    command = commands.scale(metadata, deployment.replicas)
    return f"{what}, as this object asks. Scale the Eagle3Draft instead: {command}, or {scalable}"


def _refusals(before: Eagle3DraftStatus, refused: Iterable[str]) -> list[Event]:
    """What is newly refused. ``Reconciling`` has told of all that was before, one after the other."""
    told = (c.message for c in before.conditions if (c.type, c.reason) == (Type.RECONCILING, Reason.REFUSED))
    former = next(told, "")
    return [Event("Warning", EventReason.REFUSED, message) for message in refused if message not in former]


def _stage_events(before: Eagle3DraftStatus, after: Eagle3DraftStatus, spec: Eagle3DraftSpec) -> list[Event]:
    former = {stage.name: stage for stage in before.stages}
    made = []
    for stage in after.stages:
        was = former.get(stage.name)
        if was is not None and was.key == stage.key and was.state is stage.state:
            continue
        title = stage.name.value.capitalize()
        if stage.state is StageState.RUNNING:
            what = f"Job {stage.job}{_plan(stage, after.resolved, spec)}" if stage.job else stage.message
            made.append(Event("Normal", EventReason(f"{title}Started"), what))
        elif stage.state is StageState.SUCCEEDED and stage.job is not None:
            kind: Literal["Normal", "Warning"] = "Warning" if _is_warned_of(stage) else "Normal"
            made.append(Event(kind, EventReason(f"{title}Succeeded"), _outcome(stage, spec)))
        elif stage.state is StageState.FAILED:
            made.append(Event("Warning", EventReason(f"{title}Failed"), f"{stage.reason}: {stage.message}"))
    return made


def _room_events(before: Eagle3DraftStatus, after: Eagle3DraftStatus) -> list[Event]:
    """That the servers go for a training, and that they come back. Nothing where none has served yet."""
    if (before.room_for is None) == (after.room_for is None) or after.serving_revision is None:
        return []
    name = f"r{after.serving_revision}"
    if after.room_for is not None:
        return [Event("Normal", EventReason.MAKING_ROOM, f"{name} is scaled to zero while the next draft is trained")]
    return [Event("Normal", EventReason.ROOM_ENDED, "the servers have their GPUs back")]


def _plan(stage: StageStatus, facts: Facts | None, spec: Eagle3DraftSpec) -> str:
    if stage.name is StageName.EXTRACT and facts is not None and facts.feature_bytes is not None:
        size, tokens = readable_bytes(facts.feature_bytes), readable_count(facts.expected_tokens or 0)
        each, pods = count_of(spec.extract.gpus, "GPU"), spec.extract.shards
        gpus = each if pods == 1 else f"{pods} pods of {each}"
        return (
            f": {gpus}, about {size} at {spec.extract.dtype}{_how_long(facts, spec)} (estimated from {tokens} tokens)"
        )
    if stage.name is StageName.TRAIN:
        return f": {count_of(spec.train.gpus, 'GPU')}, {count_of(spec.train.epochs, 'epoch')}"
    return ""


def _how_long(facts: Facts, spec: Eagle3DraftSpec) -> str:
    """How long an extraction takes on GPUs of a kind that is named, because nobody says which ones the nodes have."""
    extract = spec.extract
    if facts.active_parameters is None or facts.expected_tokens is None or extract.gpus == 0:
        return ""
    answers = spec.data is not None and spec.data.regeneration is not None
    size = Size(facts.active_parameters, facts.weight_bytes)
    seconds = extraction_seconds(facts.expected_tokens, size, gpus=extract.gpus, pods=extract.shards, answers=answers)
    # Of less than that, most is the start of the engine, which this does not count
    return f", about {times.duration(seconds)} on H200s" if seconds >= 60 else ""


def _is_warned_of(stage: StageStatus) -> bool:
    if stage.name not in (StageName.EXTRACT, StageName.TRAIN):
        return False
    result = RESULTS[stage.name].model_validate(stage.result)
    return isinstance(result, ExtractResult | TrainResult) and bool(result.warning)


def _outcome(stage: StageStatus, spec: Eagle3DraftSpec) -> str:
    if stage.name is StageName.HOOK:  # somebody else's command, which leaves no report
        return "publish.hook succeeded"
    match RESULTS[stage.name].model_validate(stage.result):
        case FetchResult() as fetched:
            return _fetched(fetched)
        case Facts() as facts:
            return _inspected(facts)
        case ExtractResult() as extracted:
            return _extracted(extracted)
        case TrainResult() as trained:
            return f"{_trained(trained, spec)}; report in {stage.artifact}/{REPORT_PAGE}"
        case CleanResult(bytes=size):
            return f"{readable_bytes(size)} removed, {stage.artifact} and the checkpoints of its training"
        case ConvertResult() as converted:
            return _converted(converted, str(stage.artifact))
        case PublishResult() as pushed:
            return f"{readable_bytes(pushed.bytes)}: {pushed.told()}"
        case ProbeResult():  # which no stage of the chain has
            return ""


def _fetched(result: FetchResult) -> str:
    return "; ".join(
        f"{one.repository} at {one.commit[:12]}, {count_of(one.files, 'file')}, {readable_bytes(one.bytes)}, in {one.path}"
        for one in result.sources
    )


def _inspected(facts: Facts) -> str:
    told = f"{facts.architecture}, {facts.num_layers} layers, hidden {facts.hidden_size}"
    return "; ".join((told, f"auxiliary layers {facts.auxiliary_layers}", *facts.warnings))


def _extracted(result: ExtractResult) -> str:
    told = (
        f"{count_of(result.conversations, 'conversation')} and {result.held_out} held out, {readable_count(result.tokens)} tokens, "
        f"{readable_bytes(result.bytes)}, {result.tokens_per_second:,.0f} tokens/s per pod; {sum(result.dropped.values())} dropped"
    )
    if result.cut:
        told += f", {result.cut} cut at data.maxLength" + (
            f", which lost {readable_count(result.lost_tokens)} tokens" if result.lost_tokens else ""
        )
    if result.answers is None:
        return told
    told += (
        f"; {count_of(result.answers, 'answer')} generated by the target, {result.cut_answers} of them cut at a limit"
    )
    return f"{told}: {result.warning}" if result.warning else told


def _trained(result: TrainResult, spec: Eagle3DraftSpec) -> str:
    """With as many draft steps as it will be served with, so that it is the number that the probe is held against."""
    lengths = result.expected_accept_lengths
    steps = min(spec.serve.speculative.num_steps, len(lengths)) if spec.serve is not None else len(lengths)
    told = (
        f"expected accept length {lengths[steps - 1]:.2f} with {count_of(steps, 'draft step')} "
        f"on {count_of(result.held_out, 'held-out conversation')}"
    )
    if not result.steps:
        return f"{told}, as spec.train.trainer left it"
    told += (
        f", after step {result.best_step} of {result.steps}; {_rate(result.tokens_per_second)}, "
        f"{result.waiting:.0%} of the time waiting for data"
    )
    return f"{told}: {result.warning}" if result.warning else told


def _converted(result: ConvertResult, folder: str) -> str:
    told = f"draft sha256:{result.digest[:12]}, {readable_count(result.parameters)} parameters, in {folder}"
    if result.accuracy and result.chance is not None:
        told += f"; {result.accuracy[0]:.1%} of its first proposals are the target's, {result.chance:.1%} would be by chance"
    if result.equal_proposals:
        told += (
            f"; at each step at least {min(result.equal_proposals):.1%} of its proposals equal those of its training"
        )
    return told


def _rate(tokens_per_second: float) -> str:
    """Tokens an hour, as people plan with them."""
    return f"{readable_count(tokens_per_second * 3600)} tokens/h"


_BAD_ENDS = {
    RevisionState.REJECTED: EventReason.REVISION_REJECTED,
    RevisionState.STALLED: EventReason.REVISION_STALLED,
}
_UNPROVEN = (
    None,
    RevisionState.WAITING,
    RevisionState.STARTING,
    RevisionState.PROBING,
    RevisionState.REJECTED,
    RevisionState.STALLED,
)


def _revision_events(before: Eagle3DraftStatus, after: Eagle3DraftStatus) -> list[Event]:
    former = {revision.number: revision for revision in before.revisions}
    return [event for now in after.revisions for event in _of_revision(former.get(now.number), now)]


def _of_revision(was: RevisionStatus | None, now: RevisionStatus) -> Iterator[Event]:
    state = was.state if was else None
    if state is now.state:
        return
    if now.state in _BAD_ENDS:
        yield Event("Warning", _BAD_ENDS[now.state], f"{now.reason}: {now.message}")
    elif state in _UNPROVEN and now.state in (RevisionState.PROVEN, RevisionState.SERVING) and now.probe is not None:
        yield Event("Normal", EventReason.REVISION_PROVEN, now.message)
        if costs := cost_of_loads(now.probe):
            yield Event("Warning", EventReason.SLOWER_AT_LOAD, f"r{now.number}: {costs}")
    elif now.state is RevisionState.STARTING:
        kind = "with the draft" if now.draft else "without speculation"
        yield Event("Normal", EventReason.REVISION_STARTED, f"r{now.number} is started, {kind}")
