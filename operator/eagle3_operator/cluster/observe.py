"""Everything that one reconcile looks at besides the object itself, read anew from the API server each time.

The order matters. Jobs are read before their pods: the controller sets a Job's condition after it has seen its pods end,
so a Job that is read as Complete has its pods' reports in the later answer. Caches of several watches could not say that.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from eagle3_api import KIND
from eagle3_api.jobs import Progress, StageName
from eagle3_api.spec import Eagle3Draft, Metadata, Watch, seconds
from eagle3_api.status import Eagle3DraftStatus, RevisionStatus, StageState
from eagle3_operator.cluster import parse
from eagle3_operator.cluster.client import ApiError, Client, Json
from eagle3_operator.cluster.kept import Kept
from eagle3_operator.cluster.prometheus import MetricsUnavailableError, Prometheus
from eagle3_operator.cluster.readings import LogReading, Readings
from eagle3_operator.cluster.servers import Servers
from eagle3_operator.decide.pods.waiting import time_left
from eagle3_operator.judge import counters, promql
from eagle3_operator.manifests import names
from eagle3_operator.observation import Budget, Claim, Deployment, Job, Observation, Pod, ServerMetrics, Service

logger = logging.getLogger(__name__)

#: Lines of a running Job's log in which its last progress line is looked for.
PROGRESS_LINES = 200
#: Lines of a server's log that a diagnosis gets.
SERVER_LINES = 60
#: Seconds of one look after which no further log is asked for. Where none can be had each takes its time to say so, and an
#: object may have 64 pods: nothing would be decided about it, and the operator would be taken for one that hangs.
LOGS_SECONDS = 10.0

#: How old what is told of a claim may be. One that is resized or deleted is waited for longer than that anyway.
CLAIMS_KEPT_SECONDS = 5.0
#: The same of a budget of disruptions, in polls: each look at it is a request, and nobody but a person changes it.
BUDGETS_KEPT_POLLS = 6

_FORBIDDEN, _NOT_FOUND = 403, 404


@dataclass(frozen=True)
class Seen:
    """What was observed, and the metadata of the objects behind it, by kind and name, for whoever acts on them."""

    observation: Observation
    metadata: Mapping[tuple[str, str], Json]


class Observer:
    """Looks at one object's children.

    Args:
        client: of the API server.
        prometheus: the servers of the chart's values, by name.
        poll_seconds: how old what logs said may be.
        clock: seconds that only go on.
    """

    def __init__(
        self,
        client: Client,
        prometheus: Mapping[str, Prometheus],
        *,
        poll_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._clock = clock
        self._prometheus = prometheus
        self._claims = Kept(client, "PersistentVolumeClaim", seconds=CLAIMS_KEPT_SECONDS)
        self._budgets = Kept(client, "PodDisruptionBudget", seconds=BUDGETS_KEPT_POLLS * poll_seconds)
        self._servers = Servers()
        self._readings = Readings(seconds=poll_seconds)

    def observe(self, obj: Eagle3Draft, status: Eagle3DraftStatus, now: datetime) -> Seen:
        """The children as they are.

        Args:
            obj: the object.
            status: its status, as stored.
            now: the time.
        """
        owner, until = obj.metadata.uid, self._clock() + LOGS_SECONDS
        metadata: dict[tuple[str, str], Json] = {}
        jobs = self._find(obj, "Job", metadata)
        jobsets = self._jobsets(obj, jobs, metadata) if _may_have_jobsets(obj, status, jobs) else None
        runs = parse.runs(jobs, jobsets or ())
        # serve can be added to an object but never taken away: without it there never was a server.
        deployments = self._find(obj, "Deployment", metadata) if obj.spec.serve else []
        services = self._services(obj, metadata) if obj.spec.serve else []
        told = all(_remembered(run, status) for run in runs)
        pods = self._find(obj, "Pod", {}) if deployments or not told else []
        kept = self._kept_from(obj.metadata.namespace, pods, now)
        revisions = {
            made.revision: replace(made, pods=_told(made.pods, kept))
            for made in (self._deployment(obj, deployment, pods, until) for deployment in deployments)
            if made is not None
        }
        runs_seen = (self._job(obj, run, pods, now, until) for run in runs)
        served = {made.name: made for made in (parse.service_from(one, owner=owner) for one in services)}
        observation = Observation(
            jobs={made.name: replace(made, pods=_told(made.pods, kept)) for made in runs_seen},
            deployments=revisions,
            services=served,
            budget=self._budget(obj, served.get(obj.metadata.name), metadata) if deployments else None,
            claims={made.name: made for made in self._storage(obj, status, metadata)},
            metrics=self.metrics(obj, status, revisions, now),
            jobsets=jobsets is not None,
        )
        return Seen(observation, metadata)

    def metrics(
        self, obj: Eagle3Draft, status: Eagle3DraftStatus, deployments: Mapping[int, Deployment], now: datetime
    ) -> ServerMetrics | None:
        """What is heard of the serving revision's counters; None where no window has ended, or nothing serves."""
        policy = obj.spec.watched if status.room_for is None else None  # servers that make room have no traffic
        serving = next((r for r in status.revisions if r.number == status.serving_revision), None)
        if policy is None or serving is None:
            return None
        try:
            if policy.prometheus is None:
                deployment = deployments.get(serving.number)
                pods = deployment.pods if deployment else ()
                return self._read(serving, policy, pods, now)
            return self._ask(obj.metadata, serving, policy, policy.prometheus.name, now)
        except MetricsUnavailableError as error:
            return ServerMetrics(serving.number, problem=str(error))

    def forget(self, namespace: str, claim: str) -> None:
        """Look at a claim anew the next time: it is about to be changed, which wakes the object at once."""
        self._claims.forget(namespace, claim)

    def _ask(
        self, metadata: Metadata, serving: RevisionStatus, policy: Watch, prometheus: str, now: datetime
    ) -> ServerMetrics | None:
        """The answer of Prometheus for the next window."""
        span = promql.due(serving, policy, now)
        if span is None:
            return None
        server = self._prometheus.get(prometheus)
        if server is None:
            raise MetricsUnavailableError(f'the chart\'s values name no Prometheus "{prometheus}"')
        questions = promql.queries(metadata.namespace, metadata.name, serving.number, seconds(policy.window))
        answer = promql.window(server.values(questions, span[1].astimezone(UTC)), *span)
        if isinstance(answer, str):
            raise MetricsUnavailableError(answer)
        return ServerMetrics(serving.number, window=answer)

    def _read(self, serving: RevisionStatus, policy: Watch, pods: Sequence[Pod], now: datetime) -> ServerMetrics | None:
        """What the serving pods themselves say, where a window begins or ends; None too while none of them is ready."""
        ready = [pod for pod in pods if pod.ready and pod.address and pod.port and not pod.terminating]
        if not ready or not counters.due(serving, policy, now):
            return None
        reading = self._servers.read(ready, now)
        born = {pod.name: pod.created_at for pod in ready}
        window = counters.window(counters.last(serving), reading, born)
        return ServerMetrics(serving.number, window=window, reading=reading)

    def _find(self, obj: Eagle3Draft, kind: str, metadata: dict[tuple[str, str], Json]) -> list[Json]:
        found = self._client.find(kind, obj.metadata.namespace, f"{names.NAME_LABEL}={obj.metadata.name}")
        metadata.update({(kind, item["metadata"]["name"]): item["metadata"] for item in found})
        return found

    def _services(self, obj: Eagle3Draft, metadata: dict[tuple[str, str], Json]) -> list[Json]:
        """The object's Services; and whoever's has the public one's name, while it has none: it may not carry our labels."""
        found, name = self._find(obj, "Service", metadata), obj.metadata.name
        if ("Service", name) in metadata:
            return found
        other = self._client.get("Service", obj.metadata.namespace, name, cached=True)
        return found if other is None else [*found, other]

    def _budget(self, obj: Eagle3Draft, public: Service | None, metadata: dict[tuple[str, str], Json]) -> Budget | None:
        """The budget of disruptions; looked at anew unless it follows the public Service as it was seen last.

        None too where the operator's role does not show it: it is applied then, and what comes of that is told.
        """
        namespace, name = obj.metadata.namespace, names.budget_name(obj.metadata.name)
        try:
            for anew in (False, True):
                found = self._budgets.get(namespace, name, anew=anew)
                made = parse.budget_from(found, owner=obj.metadata.uid) if found else None
                if made is None or (public and made.revision == public.selected_revision):
                    break  # what is not there is not kept: it was asked for just now
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
            return None
        if found:
            metadata["PodDisruptionBudget", name] = found["metadata"]
        return made

    def _storage(
        self, obj: Eagle3Draft, status: Eagle3DraftStatus, metadata: dict[tuple[str, str], Json]
    ) -> list[Claim]:
        claims = []
        edited = obj.metadata.generation != status.observed_generation  # what is done for that must be done on what is
        features = obj.spec.storage.features
        cleaned = next((stage for stage in status.stages if stage.name is StageName.CLEAN), None)
        deleted = {names.claim_name(obj, "features")} if features.size is not None and cleaned else set()
        for name in sorted({names.claim_name(obj, root) for root in names.roots(obj.spec)}):
            if claim := self._claims.get(obj.metadata.namespace, name, anew=edited or name in deleted):
                metadata["PersistentVolumeClaim", name] = claim["metadata"]
                made = parse.claim_from(claim, owner=obj.metadata.uid)
                if name in deleted and not made.terminating and cleaned is not None and cleaned.job is None:
                    made = replace(made, used_by=self._users(obj.metadata, name))
                claims.append(made)
        return claims + self._volumes(obj, {claim.name for claim in claims}, anew=edited)

    def _volumes(self, obj: Eagle3Draft, known: set[str], *, anew: bool) -> list[Claim]:
        """The claims that are volumes of all the object's pods: how far they can be shared says where these may run."""
        named = {volume.persistent_volume_claim.claim_name for volume in obj.spec.placement.volumes or ()} - known
        found = (self._claims.get(obj.metadata.namespace, name, anew=anew) for name in sorted(named))
        return [parse.claim_from(claim, owner=obj.metadata.uid) for claim in found if claim is not None]

    def _users(self, metadata: Metadata, claim: str) -> tuple[str, ...]:
        """The objects, it among them, that name a claim anywhere in their specs, and the pods of others that mount it, or will."""
        objects = self._client.find(KIND, metadata.namespace, "")
        named = [one["metadata"]["name"] for one in objects if parse.names_claim(one["spec"], claim)]
        pods = self._client.find("Pod", metadata.namespace, f"{names.NAME_LABEL}!={metadata.name}")
        mounting = [pod["metadata"]["name"] for pod in pods if parse.mounts_claim(pod, claim)]
        return (*named, *mounting)

    def _kept_from(self, namespace: str, pods: list[Json], now: datetime) -> Mapping[str, str]:
        """Which of the object's pods, by name, that are late on their nodes are kept from a claim by a pod elsewhere, anybody's."""
        late = [pod for pod in pods if (left := time_left(parse.pod_from(pod), now)) is not None and left < 0]
        mounted = {claim for pod in late for claim in parse.claims_of(pod)}
        found = (self._claims.get(namespace, claim) for claim in sorted(mounted))
        one_node = {
            claim.name for one in found if one is not None and (claim := parse.claim_from(one, owner="")).one_node
        }
        others = self._client.find("Pod", namespace, "") if one_node else []
        return {pod["metadata"]["name"]: why for pod in late if (why := parse.kept_from(pod, others, one_node))}

    def _jobsets(self, obj: Eagle3Draft, jobs: list[Json], metadata: dict[tuple[str, str], Json]) -> list[Json] | None:
        """The object's JobSets. None where the cluster serves none, or the operator's role does not name them.

        The question is its own discovery, asked anew each time: JobSet may be installed and removed while objects train.
        """
        try:
            return self._find(obj, "JobSet", metadata)
        except ApiError as error:
            if error.status == _NOT_FOUND or (error.status == _FORBIDDEN and not any(map(parse.of_a_jobset, jobs))):
                return None
            raise

    def _job(self, obj: Eagle3Draft, run: parse.Run, pods: list[Json], now: datetime, until: float) -> Job:
        made = parse.job_from(run, pods, owner=obj.metadata.uid)
        running = [pod for pod in made.pods if pod.started and pod.phase == "Running" and not pod.terminating]
        if made.finished or not running:
            return made
        if made.completions == 1:  # a pod that is replaced may run on for a moment
            running = [max(running, key=lambda pod: pod.created_at)]
        read = self._reading([_named(pods, pod.name) for pod in running], made, now, until)
        return replace(made, progress=read.progress, progress_problem=read.problem)

    def _reading(self, running: list[Json], job: Job, now: datetime, until: float) -> LogReading:
        """What the logs of a Job's running pods say, or said a moment ago."""
        read = tuple(pod["metadata"]["uid"] for pod in running)
        if known := self._readings.get(read, now):
            return known
        before, unread = self._readings.unread(read), set()
        said, problems = [], []
        # Those that gave none come last: they may use up the time, at each look, before another is asked
        for pod in sorted(running, key=lambda pod: pod["metadata"]["uid"] in before):
            uid, asked = pod["metadata"]["uid"], self._clock() < until
            log, problem = self._log(pod, PROGRESS_LINES, until)
            said.append(Progress.last(log))
            problems.append(problem)
            if problem if asked else uid in before:
                unread.add(uid)
        together = parse.together([one for one in said if one is not None], job.succeeded, job.completions)
        reading = LogReading(together, next(filter(None, problems), ""), frozenset(unread))
        self._readings.keep(read, now, reading)
        return reading

    def _deployment(self, obj: Eagle3Draft, deployment: Json, pods: list[Json], until: float) -> Deployment | None:
        made = parse.deployment_from(deployment, pods, owner=obj.metadata.uid)
        if made is None or made.ready_replicas >= made.replicas or not made.pods:
            return made
        newest = max(made.pods, key=lambda pod: pod.created_at)
        if not newest.started:
            return made
        # A container that waits to be started again has no log of its own yet.
        again = newest.waiting_reason is not None
        log, _ = self._log(_named(pods, newest.name), SERVER_LINES, until, previous=again)
        return replace(made, log=tuple(log.splitlines()))

    def _log(self, pod: Json, lines: int, until: float, *, previous: bool = False) -> tuple[str, str]:
        """The last lines of the pod's main container, and why they could not be read, if so."""
        metadata, container = pod["metadata"], parse.main_container(pod)
        if self._clock() >= until:
            return "", f"the log of pod {metadata['name']} was not read: the other logs took {LOGS_SECONDS:.0f} s"
        try:
            log = self._client.log(metadata["namespace"], metadata["name"], container, lines=lines, previous=previous)
        except ApiError as error:
            logger.info("the log of pod %s cannot be read: %s", metadata["name"], error)
            return "", str(error)
        return log, ""


def _may_have_jobsets(obj: Eagle3Draft, status: Eagle3DraftStatus, jobs: list[Json]) -> bool:
    """Whether an object trains, or trained, in a way in which a JobSet matters. Others pay for no request."""
    known = {job["metadata"]["name"] for job in jobs}
    begun = [stage.job for stage in status.stages if (stage.name, stage.state) == (StageName.TRAIN, StageState.RUNNING)]
    return obj.spec.train.nodes > 1 or any(map(parse.of_a_jobset, jobs)) or not known.issuperset(filter(None, begun))


def _remembered(run: parse.Run, status: Eagle3DraftStatus) -> bool:
    """Whether the status holds all that these pods had to say: their stage has succeeded."""
    metadata = run.made["metadata"]
    stage = (metadata.get("labels") or {}).get(names.STAGE_LABEL)
    key = (metadata.get("annotations") or {}).get(names.KEY_ANNOTATION)
    return any((s.name, s.key, s.state) == (stage, key, StageState.SUCCEEDED) for s in status.stages)


def _told(pods: tuple[Pod, ...], kept: Mapping[str, str]) -> tuple[Pod, ...]:
    return tuple(replace(pod, kept_from=kept.get(pod.name)) for pod in pods) if kept else pods


def _named(pods: list[Json], name: str) -> Json:
    return next(pod for pod in pods if pod["metadata"]["name"] == name)
