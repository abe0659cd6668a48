"""What people look at: the phase, the printer columns, and the Events of transitions. Derived, never read back."""

from collections.abc import Iterable

from eagle3_api.artifacts import REPORT_PAGE
from eagle3_api.conditions import Condition, Reason, Type
from eagle3_api.estimate import readable_bytes
from eagle3_api.jobs import (
    CleanResult,
    ConvertResult,
    ExtractResult,
    Facts,
    FetchResult,
    PublishResult,
    StageName,
    TrainResult,
)
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_api.status import (
    Eagle3DraftStatus,
    Phase,
    RevisionState,
    RevisionStatus,
    StageState,
    StageStatus,
)
from eagle3_operator.decide import times
from eagle3_operator.decide.conditions import Situation
from eagle3_operator.decide.revisions import Revision
from eagle3_operator.decision import Event

_STAGE_PHASE = {
    StageName.FETCH: Phase.FETCHING,
    StageName.INSPECT: Phase.INSPECTING,
    StageName.EXTRACT: Phase.EXTRACTING,
    StageName.TRAIN: Phase.TRAINING,
    StageName.CONVERT: Phase.CONVERTING,
    StageName.PUBLISH: Phase.PUBLISHING,
    StageName.HOOK: Phase.PUBLISHING,
}
_MEASURING = (Reason.PROBING, Reason.MEASURING_BASELINE)


def phase(at: Situation, conditions: Iterable[Condition]) -> Phase:
    """One word for the whole."""
    by_type = {condition.type: condition for condition in conditions}
    whole = by_type[Type.READY]
    if whole.status == "True":
        return Phase.SERVING if at.spec.serve else Phase.PUBLISHED
    if whole.reason is Reason.SUSPENDED:
        return Phase.SUSPENDED
    if by_type[Type.STALLED].status == "True":
        return Phase.DEGRADED if at.serving else Phase.STALLED
    if at.obstacle is not None:
        return Phase.PENDING
    for name, word in _STAGE_PHASE.items():
        stage = at.stages.get(name)
        if stage is not None and stage.state is not StageState.SUCCEEDED:
            return word
    if at.rollout is not None and at.rollout.candidate is not None:
        return Phase.PROBING if at.rollout.reason in _MEASURING else Phase.ROLLING_OUT
    moving = at.serving is None or whole.reason is Reason.ROLLING_OUT
    return Phase.ROLLING_OUT if moving else Phase.DEGRADED


def columns(at: Situation) -> dict[str, str]:
    """The texts of the printer columns."""
    shown = (at.rollout.candidate if at.rollout else None) or at.serving
    running = next((s for s in at.stages.values() if s.state is StageState.RUNNING and s.progress), None)
    baseline = _baseline(at, shown)
    return {
        "revision": shown.name if shown else "",
        "accept": _accept(shown) if shown else "",
        "speedup": _speedup(shown) if shown else "",
        "baseline": f"{baseline:.1f} tok/s" if baseline else "",
        "progress": _progress(running) if running else "",
        "draft": f"sha256:{shown.status.draft[:8]}…" if shown and shown.status.draft else "",
    }


def _accept(revision: Revision) -> str:
    lengths = [w.accept_length for w in revision.status.windows if w.accept_length is not None]
    probed = revision.status.probe.accept_length if revision.status.probe else None
    latest = lengths[-1] if lengths else probed
    return f"{latest:.2f}" if latest is not None else ""


def _speedup(revision: Revision) -> str:
    probe = revision.status.probe
    if probe is None or not probe.baseline_tokens_per_second:
        return ""
    return f"{probe.tokens_per_second / probe.baseline_tokens_per_second:.2f}x"


def _baseline(at: Situation, shown: Revision | None) -> float | None:
    if at.rollout is None or shown is None:
        return None
    plain = [r for r in at.rollout.revisions if r.status.key == shown.status.plain_key and r.status.probe]
    return plain[-1].status.probe.tokens_per_second if plain and plain[-1].status.probe else None


def _progress(stage: StageStatus) -> str:
    progress = stage.progress
    if progress is None:
        return ""
    left = progress.seconds_left
    return f"{progress.done:.0%}" + (f" {times.duration(left)} left" if left is not None else "")


# ------------------------------------------------------------------------------------------------------- events


def events(before: Eagle3DraftStatus, after: Eagle3DraftStatus, spec: Eagle3DraftSpec) -> list[Event]:
    """What happened between two statuses that is worth telling."""
    return [*_stage_events(before, after, spec), *_room_events(before, after), *_revision_events(before, after)]


def _stage_events(before: Eagle3DraftStatus, after: Eagle3DraftStatus, spec: Eagle3DraftSpec) -> list[Event]:
    former = {stage.name: stage for stage in before.stages}
    made = []
    for stage in after.stages:
        was = former.get(stage.name)
        if was is not None and was.key == stage.key and was.state is stage.state:
            continue
        title = stage.name.value.capitalize()
        if stage.state is StageState.RUNNING:
            made.append(Event("Normal", f"{title}Started", f"Job {stage.job}{_plan(stage, after.resolved, spec)}"))
        elif stage.state is StageState.SUCCEEDED and stage.job is not None:
            made.append(Event("Normal", f"{title}Succeeded", _outcome(stage)))
        elif stage.state is StageState.FAILED:
            made.append(Event("Warning", f"{title}Failed", f"{stage.reason}: {stage.message}"))
    return made


def _room_events(before: Eagle3DraftStatus, after: Eagle3DraftStatus) -> list[Event]:
    """That the servers go for a training, and that they come back. Nothing where none has served yet."""
    if (before.room_for is None) == (after.room_for is None) or after.serving_revision is None:
        return []
    name = f"r{after.serving_revision}"
    if after.room_for is not None:
        return [Event("Normal", "MakingRoom", f"{name} is scaled to zero while the next draft is trained")]
    return [Event("Normal", "RoomEnded", "the GPUs are the servers' again")]


def _plan(stage: StageStatus, facts: Facts | None, spec: Eagle3DraftSpec) -> str:
    if stage.name is StageName.EXTRACT and facts is not None and facts.feature_bytes is not None:
        size = readable_bytes(facts.feature_bytes)
        return f": {spec.extract.gpus} GPUs, at most {size} at {spec.extract.dtype} ({facts.expected_tokens} tokens)"
    if stage.name is StageName.TRAIN:
        return f": {spec.train.gpus} GPUs, {spec.train.epochs} epochs"
    return ""


def _outcome(stage: StageStatus) -> str:
    if stage.name is StageName.FETCH:
        result = FetchResult.model_validate(stage.result)
        return "; ".join(
            f"{one.repository} at {one.commit[:12]}, {one.files} files, {readable_bytes(one.bytes)}, in {one.path}"
            for one in (result.target, result.dataset)
            if one is not None
        )
    if stage.name is StageName.INSPECT:
        facts = Facts.model_validate(stage.result)
        told = f"{facts.architecture}, {facts.num_layers} layers, hidden {facts.hidden_size}"
        return f"{told}; auxiliary layers {facts.auxiliary_layers}" + "".join(f"; {text}" for text in facts.warnings)
    if stage.name is StageName.EXTRACT:
        extracted = ExtractResult.model_validate(stage.result)
        dropped = sum(extracted.dropped.values())
        answered = (
            f"; {extracted.answers} answers of the target's own, {extracted.cut_answers} of them cut by a length"
            if extracted.answers is not None
            else ""
        )
        return (
            f"{extracted.conversations} conversations and {extracted.held_out} held out, {extracted.tokens} tokens, "
            f"{readable_bytes(extracted.bytes)}; {dropped} dropped{answered}"
        )
    if stage.name is StageName.TRAIN:
        trained = TrainResult.model_validate(stage.result)
        how = (
            f"after step {trained.best_step} of {trained.steps}; {_rate(trained.tokens_per_second)}, "
            f"{trained.waiting:.0%} of the time waiting for data"
            if trained.steps
            else "as spec.train.trainer left it"
        )
        return (
            f"expected accept length {trained.expected_accept_lengths[-1]:.2f} at {len(trained.expected_accept_lengths)} "
            f"steps on {trained.held_out} held-out conversations, {how}; report in {stage.artifact}/{REPORT_PAGE}"
        )
    if stage.name is StageName.CLEAN:
        cleaned = CleanResult.model_validate(stage.result)
        return f"{readable_bytes(cleaned.bytes)} removed, {stage.artifact} and the checkpoints of its training"
    if stage.name is StageName.PUBLISH:
        pushed = PublishResult.model_validate(stage.result)
        return f"{readable_bytes(pushed.bytes)}: {pushed.told()}"
    if stage.name is StageName.HOOK:
        return "publish.hook ended well"
    converted = ConvertResult.model_validate(stage.result)
    told = f"draft sha256:{converted.digest[:12]}, {converted.parameters} parameters, in {stage.artifact}"
    if converted.accuracy and converted.chance is not None:
        told += f"; {converted.accuracy[0]:.1%} of its first proposals are the target's, {converted.chance:.1%} would be by chance"
    return told


def _rate(tokens_per_second: float) -> str:
    """Tokens an hour, as people plan with them."""
    hourly = tokens_per_second * 3600
    return f"{hourly / 1e6:.1f} M tokens/h" if hourly >= 1e6 else f"{hourly:,.0f} tokens/h"


_TOLD = {
    RevisionState.REJECTED: ("Warning", "RevisionRejected"),
    RevisionState.STALLED: ("Warning", "RevisionStalled"),
}
_UNPROVEN = (None, RevisionState.STARTING, RevisionState.PROBING, RevisionState.REJECTED, RevisionState.STALLED)


def _revision_events(before: Eagle3DraftStatus, after: Eagle3DraftStatus) -> list[Event]:
    former = {revision.number: revision for revision in before.revisions}
    made = []
    for revision in after.revisions:
        was = former.get(revision.number)
        if event := _revision_event(was, revision):
            made.append(event)
    return made


def _revision_event(was: RevisionStatus | None, now: RevisionStatus) -> Event | None:
    state = was.state if was else None
    if state is now.state:
        return None
    if now.state in _TOLD:
        kind, title = _TOLD[now.state]
        return Event(kind, title, f"{now.reason}: {now.message}")
    if state in _UNPROVEN and now.state in (RevisionState.PROVEN, RevisionState.SERVING) and now.probe is not None:
        return Event("Normal", "RevisionProven", now.message)
    if was is None:
        kind = "with the draft" if now.draft else "without speculation"
        return Event("Normal", "RevisionStarted", f"r{now.number} is started, {kind}")
    return None
