"""The probe of one revision: its Job, and what its end means for the revision."""

from dataclasses import replace

from eagle3_api.conditions import Reason
from eagle3_api.jobs import Facts, ProbeResult, StageName
from eagle3_api.status import RevisionStatus, StageState, StageStatus
from eagle3_operator.decide.pipeline.chain import advance
from eagle3_operator.decide.pods.waiting import advised, held_up
from eagle3_operator.decide.revisions import Revision, Wanted
from eagle3_operator.decide.serving.starts import Failure
from eagle3_operator.decide.stages import PROBE, Probed
from eagle3_operator.decide.view import Step, View
from eagle3_operator.decision import Because, Delete
from eagle3_operator.judge.probe import judge_probe
from eagle3_operator.manifests.servers import BEFORE_THE_CONTAINER
from eagle3_operator.observation import Job


def fits(measured: ProbeResult, view: View, wanted: Wanted) -> bool:
    """Whether a measurement says all that one made now would, with the same prompts. It may say more: of loads that are no longer asked for."""
    asked = view.obj.spec.probe
    if measured.prompts_digest != wanted.draft.prompts_digest or measured.concurrency != asked.concurrency:
        return False
    return {*asked.further_loads} <= {at.concurrency for at in measured.loads}


def measure(
    revision: Revision, plain: Revision | None, view: View, wanted: Wanted, facts: Facts, *, serving: int | None
) -> tuple[RevisionStatus, Step]:
    """The probe of a revision whose server is ready, one step further. It does not share the server with one that was retried.

    Args:
        revision: what is measured.
        plain: the proven plain revision that it is compared with.
        view: the object, its children and the time.
        wanted: what the object wants served.
        facts: what Inspect found.
        serving: number of the revision that serves. In its place nobody waits for a probe that is never started.
    """
    link = PROBE.link(Probed(view.obj, revision, plain, wanted, facts))
    former = [job for job in _under_way(revision, view) if job.key != link.key]
    waiting = Because(Reason.PENDING, "the previous probe is being ended") if former else None
    step = advance(link, None, view, waiting)
    gone = (Delete("Job", job.name) for job in former if not job.terminating)
    step = replace(step, delete=(*step.delete, *gone))
    status, ended = revision.status, step.status
    if ended.state is StageState.SUCCEEDED:
        return _measured(revision, link.artifact or "", ProbeResult.model_validate(ended.result), view, wanted), step
    if ended.state is StageState.FAILED:
        failed = replace(step, delete=(*step.delete, *([Delete("Job", ended.job)] if ended.job else [])))
        return _not_measured(status, ended.message), failed
    alone = revision.replaces(serving)
    trouble = _never_starts(view.job(link), view, alone=alone) or (_refused(revision, ended, view) if alone else None)
    if trouble is not None:
        return _given_up(revision, trouble, f" in place of r{serving}" if alone else ""), step
    return status, step


def _under_way(revision: Revision, view: View) -> list[Job]:
    probes = (job for job in view.seen.jobs.values() if job.stage == StageName.PROBE and job.owned)
    return [job for job in probes if job.revision == revision.number and not job.finished]


def _never_starts(job: Job | None, view: View, *, alone: bool) -> Because | None:
    """What has kept a probe's pod from being started for too long; what is only slow, a volume or a pull, is given more time.

    Beside what serves it is waited for, but on a node where nothing comes of it: the next one may be given another.
    """
    if job is None or job.finished or job.terminating or any(pod.started for pod in job.pods):
        return None
    no_pod = Because(Reason.PROBE_ERROR, f"Job {job.name} has created no pod (is a quota used up?)")
    trouble = held_up(job.pods, view.now) if job.pods else no_pod
    if not alone and (trouble is None or trouble.reason is not Reason.POD_NOT_STARTED):
        return None
    waited = (view.now - job.created_at).total_seconds()
    if waited <= (view.settings.surge_patience_seconds if trouble else BEFORE_THE_CONTAINER):
        return None
    why = trouble or Because(Reason.PROBE_ERROR, f"the pod of Job {job.name} has not started")
    return advised(why._replace(message=f"{why.message} (for {waited / 60:.0f} min)"))


def _refused(revision: Revision, probe: StageStatus, view: View) -> Because | None:
    """What has kept a probe's Job from being made ever since the server is ready, for too long."""
    pods = revision.deployment.pods if revision.deployment is not None else ()
    waited = max(((view.now - pod.ready_since).total_seconds() for pod in pods if pod.ready_since), default=0.0)
    if probe.reason is not Reason.REFUSED or waited <= view.settings.surge_patience_seconds:
        return None
    return Because(probe.reason, probe.message)


def _given_up(revision: Revision, trouble: Because, where: str) -> RevisionStatus:
    """As a start that failed for good: the pod finds no other end by itself, and meanwhile a server or the Service waits for it."""
    problem = f"its probe could not be started{where}: {trouble.message}"
    failed = Failure(revision.serve.start_retries + 1, trouble.reason, problem)
    return revision.status.model_copy(update=failed.changes)


def _measured(revision: Revision, artifact: str, result: ProbeResult, view: View, wanted: Wanted) -> RevisionStatus:
    status, policy = revision.status, view.obj.spec.probe
    if not fits(result, view, wanted):
        asked = _at(policy.concurrency, policy.further_loads, wanted.draft.prompts_digest)
        measured_at = _at(result.concurrency, [at.concurrency for at in result.loads], result.prompts_digest)
        text = f"it measured at {measured_at}, but {asked} was asked for"
        return _not_measured(status, f"{revision.name}: {text}")
    verdict = judge_probe(result, policy, expected=status.expected_accept_length, name=revision.name)
    if verdict.passed or verdict.failed:
        measured = {"probe": result, "proof": None, "probe_folder": artifact, "probe_problem": ""}
        return status.model_copy(update=measured)
    return _not_measured(status, verdict.message)


def _at(concurrency: int, loads: list[int], prompts: str) -> str:
    return f"concurrency {', '.join(map(str, (concurrency, *loads)))} with prompts {prompts[:8]}"


def _not_measured(status: RevisionStatus, message: str) -> RevisionStatus:
    """Errors of measurement reject nothing; they are counted, and too many stop the roll-out."""
    return status.model_copy(update={"probe_errors": status.probe_errors + 1, "probe_problem": message})
