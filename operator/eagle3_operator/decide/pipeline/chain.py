"""The stages before serving: which Job to make, to delete or to wait for, and what to say of it.

``advance`` looks at one stage, with its Job as it is now and what the status said before, and is the only place that
knows how a Job ends. A stage that has succeeded under its key is never run again; a failed one waits for the user.
"""

import math
from collections.abc import Mapping
from datetime import datetime

from eagle3_api import times
from eagle3_api.conditions import Reason
from eagle3_api.jobs import RESULTS, Report, StageName
from eagle3_api.status import StageProgress, StageState, StageStatus
from eagle3_operator.decide import commands
from eagle3_operator.decide.pods.waiting import advised, held_up
from eagle3_operator.decide.stages import Link
from eagle3_operator.decide.view import Actions, Step, View
from eagle3_operator.decision import Because, Delete, Suspend
from eagle3_operator.manifests import group, jobs, names
from eagle3_operator.manifests.sizing import stall_timeout
from eagle3_operator.observation import Job, Pod
from eagle3_operator.traits import Part, stages_of

#: Characters of what a container said last that a message quotes.
_LAST_WORDS = 300

#: Progress that is less than a percent is told so often.
_PROGRESS_SECONDS = 60.0

#: Said of a Job whose progress is not known whole. In the same words each time, whichever pod it is.
_UNREAD = "the log of one of its pods cannot be read (see the operator's log), so its progress is incomplete and a stall of that pod would go unnoticed"

#: What keeps a single pod of a Job from being started.
_OF_ONE_POD = (
    Reason.UNSCHEDULABLE,
    Reason.QUEUED,
    Reason.POD_NOT_STARTED,
    Reason.IMAGE_PULL,
    Reason.INVALID_CONFIGURATION,
)

#: Without a progress line a Job is ended and resumed once; the second time it has failed.
STALLS_ALLOWED = 1

#: A Job that completed without a report of the whole is made anew twice; the third time it has failed.
LOSSES_ALLOWED = 2

#: Why nobody has said what came of a Job that completed, and what a person can do where that happens again and again.
_REPORT_LOST = ("its report is lost", "See what removes its pods, or their termination messages, before they are read.")
_PARTS_UNSEEN = (
    "each of its pods ended before it saw the others' last part",
    "Find out why a pod does not see at once what another pod has written to the features' storage (nodes that cache it, a bucket that lags).",
)


def advance(link: Link, before: StageStatus | None, view: View, waiting: Because | None = None) -> Step:
    """One stage, one step further.

    Args:
        link: the stage as it is wanted.
        before: what the status says of the stage of this name, of this key or another.
        view: the object, its children and the time.
        waiting: what keeps its Job from being started or resumed; a running one is left alone.
    """
    status = before if before is not None and before.key == link.key else new_status(link)
    job = view.job(link)
    if status.state is StageState.SUCCEEDED:
        return Step(status, delete=_needless(job))
    if job is None:
        return _start(link, status, view, waiting)
    if job.terminating and status.state is StageState.FAILED:
        return Step(status)
    if job.terminating:
        return Step(
            _say(status, StageState.WAITING, Reason.PENDING, "waiting for the pods of the previous Job to end", job)
        )
    if jobs.template_hash(view.obj, link.stage) != job.template and not _works(job):
        return _replace(status, job, "its image or placement changed")
    if job.complete:
        return _completed(link, status, job, view)
    if job.failed:
        return Step(_failed(status, job, view))
    return _running(link, status, job, view, waiting)


def in_use(job: Job) -> bool:
    """Whether a pod of it runs, or it is done: then it is left as it is, whatever its object says by now."""
    return job.complete or (not job.failed and any(pod.started for pod in job.pods))


def _works(job: Job) -> bool:
    """The same, where what only holds a pod whose work has ended does not count: its object may be edited to be rid of that."""
    return job.complete or (not job.failed and any(pod.started and pod.held_by is None for pod in job.pods))


def stale(view: View, wanted: Mapping[str, Link]) -> list[Delete]:
    """Jobs of the chain's stages that nobody wants any more: of a key that is no longer the object's."""
    return [Delete(job.kind, job.name) for job in _of_chain(view) if job.name not in wanted]


def halt(view: View, actions: Actions) -> None:
    """What runs is suspended with its object, whether or not its stage is reached: an inspection or an obstacle may come before."""
    decided = {deleted.name for deleted in actions.delete} | {suspended.name for suspended in actions.suspend}
    for job in _of_chain(view):
        if job.finished or job.name in decided:
            continue
        if job.queue is not None:
            actions.delete.append(Delete(job.kind, job.name))
        elif not job.suspended:
            actions.suspend.append(Suspend(job.kind, job.name, True))


def _of_chain(view: View) -> list[Job]:
    jobs = view.seen.jobs.values()
    return [job for job in jobs if job.stage != StageName.PROBE and job.owned and not job.terminating]


def _needless(job: Job | None) -> tuple[Delete, ...]:
    """A Job that still runs for what is finished: the edit that wanted it was taken back."""
    running = job is not None and job.owned and not job.finished and not job.terminating
    return (Delete(job.kind, job.name),) if job is not None and running else ()


def new_status(link: Link) -> StageStatus:
    """Of a stage that nothing has been done for yet."""
    return StageStatus(
        name=link.stage,
        key=link.key,
        state=StageState.WAITING,
        attempt=link.attempt,
        artifact=link.artifact,
    )


def _say(
    status: StageStatus, state: StageState, reason: Reason | None, message: str, job: Job | None = None
) -> StageStatus:
    update: dict[str, object] = {"state": state, "reason": reason, "message": message}
    if job is not None:
        update["job"] = job.name
        update["started_at"] = times.text(job.started_at) if job.started_at else status.started_at
    return status.model_copy(update=update)


def _start(link: Link, status: StageStatus, view: View, waiting: Because | None) -> Step:
    if status.state is StageState.FAILED:
        return Step(status)
    if view.obj.spec.suspend:
        return Step(_say(status, StageState.WAITING, Reason.SUSPENDED, "spec.suspend is true: nothing new is started"))
    if waiting is not None:
        return Step(_say(status, StageState.WAITING, waiting.reason, waiting.message), waits_for=waiting)
    name, made = names.job_name(view.obj.metadata.name, link.stage, link.key), view.manifests(link)
    if refused := view.refused_of(made):
        return Step(_say(status, StageState.WAITING, refused.reason, refused.message))
    started = status.model_copy(update={"job": name, "started_at": times.text(view.now), "finished_at": None})
    said = f"{made[-1]['kind']} {name} is being started"
    return Step(_say(started, StageState.RUNNING, Reason.PENDING, said), apply=made)


def _replace(status: StageStatus, job: Job, why: str) -> Step:
    return Step(
        _say(status, StageState.WAITING, Reason.PENDING, f"{job.kind} {job.name} is recreated: {why}", job),
        delete=(Delete(job.kind, job.name),),
    )


def _completed(link: Link, status: StageStatus, job: Job, view: View) -> Step:
    """Done means Complete and a report. Without one (the pod is gone) the Job runs again; the artifact makes it instant.

    A command of the user's leaves no report.
    """
    report = job.report if link.stage in RESULTS else Report(stage=link.stage, key=link.key, ok=True)
    if report is None or report.key != link.key:
        return _unsaid(status, job, _REPORT_LOST, view)
    if report.partial:
        return _unsaid(status, job, _PARTS_UNSEEN, view)
    finished = {
        "result": report.result,
        "progress": None,
        "finished_at": times.text(job.finished_at) if job.finished_at else None,
    }
    return Step(_say(status, StageState.SUCCEEDED, None, report.message, job).model_copy(update=finished))


def _unsaid(status: StageStatus, job: Job, why: tuple[str, str], view: View) -> Step:
    """Made anew, but not for ever: something may take every report away before it is read, or hide the pods' parts from each other.

    A probe is tried again by its revision, which counts that.
    """
    what, advice = why
    if status.state is StageState.FAILED:  # its Job is still to go
        return Step(status, delete=(Delete(job.kind, job.name),))
    if status.name in stages_of(Part.REVISION):
        return Step(
            _ended(status, job, view, Because(Reason.JOB_FAILED, f"Job {job.name} completed, but {what}. {advice}"))
        )
    status = status.model_copy(update={"lost": status.lost + 1})
    if status.lost <= LOSSES_ALLOWED:
        return _replace(status, job, f"it completed, but {what}")
    said = f"{job.kind} {job.name} completed {status.lost} times, but {what}. {advice}"
    return Step(_ended(status, job, view, Because(Reason.JOB_FAILED, said)), delete=(Delete(job.kind, job.name),))


def _failed(status: StageStatus, job: Job, view: View) -> StageStatus:
    return _ended(status, job, view, _why_failed(job))


def _ended(status: StageStatus, job: Job, view: View, why: Because) -> StageStatus:
    """A stage that has failed, with what a person can do."""
    finished = times.text(job.finished_at or view.now)
    message = why.message
    again = (job.report.retry if job.report is not None else None) or status.name
    if again not in stages_of(Part.REVISION):  # which tries it again by itself
        command = commands.retry(view.obj.metadata, again, finished)
        mended = (
            "A correction of the spec is tried at once; after any other repair, run"
            if again is status.name
            else "To run that stage again"
        )
        message += f" {mended}: {command}"
    said = _say(status, StageState.FAILED, why.reason, message, job)
    return said.model_copy(update={"progress": None, "finished_at": finished})


def _why_failed(job: Job) -> Because:
    pods = sorted(job.pods, key=lambda pod: pod.finished_at or pod.created_at)
    last = pods[-1] if pods else None
    if last is not None and last.oom_killed:
        return Because(
            Reason.OUT_OF_MEMORY, f"pod {last.name} ran out of memory and was killed; raise placement.memory."
        )
    if last is not None and last.timed_out:
        said = f"pod {last.name} was ended because it took longer than publish.hook.timeout.{_quoted(last)}"
        return Because(Reason.HOOK_TIMED_OUT, f"{said} See what it waits for, or raise publish.hook.timeout.")
    report = job.report
    if report is not None and not report.ok:
        return Because(report.reason or Reason.JOB_FAILED, _sentence(report.message))
    ending = (
        f"pod {last.name} ended with code {last.exit_code}" if last and last.exit_code is not None else "no pod is left"
    )
    said = _sentence(job.failure_message or job.failure_reason or "no reason given")
    quoted = _quoted(last) if last else ""
    return Because(Reason.JOB_FAILED, f"{job.kind} {job.name} failed ({said.rstrip('.')}; {ending}).{quoted}")


def _quoted(pod: Pod) -> str:
    words = pod.termination_message.strip()[-_LAST_WORDS:]
    return f" Its last words: {_sentence(words)}" if words else ""


def _sentence(message: str) -> str:
    return message if message.endswith((".", "!", "?", "…")) else f"{message}."


def _running(link: Link, status: StageStatus, job: Job, view: View, waiting: Because | None) -> Step:
    suspended = view.obj.spec.suspend
    if suspended and job.queue is not None:
        return _end_queued(status, job)
    if suspended and job.suspended:
        return Step(_say(status, StageState.RUNNING, Reason.SUSPENDED, f"{job.kind} {job.name} is suspended", job))
    if waiting is not None and not suspended and not in_use(job):
        return Step(_say(status, StageState.RUNNING, waiting.reason, waiting.message, job), waits_for=waiting)
    if job.suspended and job.queue is not None:
        said = (
            f"{job.kind} {job.name} waits for quota in queue {job.queue} (kubectl get workloads -n {view.obj.metadata.namespace}). Without "
            "Kueue, or a LocalQueue of that name, it waits for ever"
        )
        return Step(_say(status, StageState.RUNNING, Reason.QUEUED, said, job))
    if job.suspended and not suspended and job.suspended_by not in (None, names.FIELD_MANAGER):
        said = f"{job.kind} {job.name} was suspended by {job.suspended_by} and continues when {job.suspended_by} resumes it"
        return Step(_say(status, StageState.RUNNING, Reason.SUSPENDED, said, job))
    if job.suspended != suspended:
        word = "suspended" if suspended else "resumed"
        return Step(
            _say(status, StageState.RUNNING, Reason.PENDING, f"{job.kind} {job.name} is being {word}", job),
            suspend=(Suspend(job.kind, job.name, suspended),),
        )
    pending = (pod for pod in job.pods if pod.phase == "Pending")
    trouble = _podless(job, view) or _unmade(job, view) or held_up(pending, view.now) or _held(job, view)
    told, shown = advised(trouble) if trouble is not None else None, _progress(job, status.progress, view)
    # Shards wait for no other one: those that are at work tell how far they are, and may hang
    others_work = link.stage is StageName.EXTRACT and shown is not None
    if told is not None and not (others_work and told.reason in _OF_ONE_POD):
        return Step(_say(status, StageState.RUNNING, told.reason, told.message, job))
    if _stalled(link, job, shown, view):
        return _end_stalled(status, job)
    shown = _worth_telling(status.progress, shown, view.now)
    said = told.message if told is not None else _tries(job) or (_UNREAD if job.progress_problem else "")
    reason = told.reason if told is not None else None
    return Step(_say(status, StageState.RUNNING, reason, said, job).model_copy(update={"progress": shown}))


def _worth_telling(before: StageProgress | None, progress: StageProgress | None, now: datetime) -> StageProgress | None:
    """Progress anew when a percent is done or a minute has passed, for each is a line for everybody who watches the object."""
    if before is None or progress is None or before.heard is None or f"{before.done:.0%}" != f"{progress.done:.0%}":
        return progress
    return before if times.age(before.heard, now) < _PROGRESS_SECONDS else progress


def _end_queued(status: StageStatus, job: Job) -> Step:
    """Kueue resumes what it has admitted, whoever suspended it: to suspend the object its Job is deleted.

    Its successor of the same name goes on from its last part or checkpoint.
    """
    said = f"{job.kind} {job.name} is deleted because spec.suspend is true; the next one continues where it stopped"
    return Step(_say(status, StageState.WAITING, Reason.SUSPENDED, said, job), delete=(Delete(job.kind, job.name),))


def _tries(job: Job) -> str:
    """What became of the pods before this one: a Job that fails again and again is not simply under way."""
    failed = [pod for pod in job.pods if pod.phase == "Failed" and (pod.exit_code is not None or pod.timed_out)]
    if not failed:
        return ""
    last = max(failed, key=lambda pod: pod.finished_at or pod.created_at)
    said = Report.parse(last.termination_message)
    why = said.message if said else last.termination_message.strip()[-_LAST_WORDS:]
    end = "took longer than publish.hook.timeout" if last.timed_out else f"ended with code {last.exit_code}"
    return f"pod {last.name} {end}" + (f" ({why})" if why else "") + "; it is tried again"


def _podless(job: Job, view: View) -> Because | None:
    """It has no pod: one is made at once, unless something lets none be made, of which only an Event of the Job's tells."""
    waited = (view.now - (job.started_at or job.created_at)).total_seconds()
    if job.pods or job.unmade or waited <= view.settings.surge_patience_seconds:
        return None
    name = job.name if job.kind == "Job" else group.job_of(job.name)
    told = f"kubectl describe job {name} -n {view.obj.metadata.namespace}"
    said = f"Job {name} gets no pod: a quota or an admission rule refuses it; {told} shows which"
    return Because(Reason.UNSCHEDULABLE, said)


def _unmade(job: Job, view: View) -> Because | None:
    told = f"kubectl describe jobset {job.name} -n {view.obj.metadata.namespace}"
    said = f"JobSet {job.name} has created no Job yet: see {told}, and the log of JobSet's controller"
    return Because(Reason.PENDING, said) if job.unmade else None


def _held(job: Job, view: View) -> Because | None:
    """A container that is not ours has had time to notice that ours has ended, and runs on: so does the Job, and keeps its GPUs."""
    for pod in job.pods:
        waited = (view.now - (pod.finished_at or view.now)).total_seconds()
        if pod.held_by is not None and waited > view.settings.surge_patience_seconds:
            said = f"pod {pod.name} has finished its work, but container {pod.held_by}, which was injected into it, keeps running"
            return Because(Reason.HELD_BY_SIDECAR, said)
    return None


def _progress(job: Job, before: StageProgress | None, view: View) -> StageProgress | None:
    """The last progress line, and when it is first told: its own time is its node's, whose clock may be an hour off."""
    said = job.progress
    if said is None:
        return None
    time = times.text(datetime.fromtimestamp(said.time, view.now.tzinfo))
    known = before.heard or before.time if before is not None and before.time == time else None
    return StageProgress(
        done=said.done,
        seconds_left=said.seconds_left,
        message=said.message,
        time=time,
        heard=known or times.text(view.now),
    )


def _stalled(link: Link, job: Job, progress: StageProgress | None, view: View) -> bool:
    """A container runs and has printed no progress line for so long. Its pod's wait before that does not count."""
    timeout = stall_timeout(view.obj.spec, link.stage)
    running = [pod.started_at for pod in job.pods if pod.started_at is not None and pod.phase == "Running"]
    # Where a log is missing, those that came tell of themselves; none of them, of nothing
    if timeout is None or not running or (job.progress_problem and progress is None):
        return False
    silent = min(
        (view.now - max(running)).total_seconds(), times.age(progress.heard, view.now) if progress else math.inf
    )
    return silent > timeout


def _end_stalled(status: StageStatus, job: Job) -> Step:
    """Ended and resumed once; if it stalls again, it has failed and keeps its GPUs no longer."""
    stalls = status.stalls + 1
    message = f"{job.kind} {job.name} printed no progress line for longer than stallTimeout"
    again = stalls <= STALLS_ALLOWED
    said = _say(
        status,
        StageState.WAITING if again else StageState.FAILED,
        Reason.JOB_STALLED,
        f"{message}; it is ended and resumed" if again else f"{message}, again after it was resumed; see its pod's log",
        job,
    )
    return Step(said.model_copy(update={"stalls": stalls, "progress": None}), delete=(Delete(job.kind, job.name),))
