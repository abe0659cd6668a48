"""What is asked of the API server to see an object's children. What it answers is tested in tests/cluster."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes.client import Configuration

from eagle3_api import KIND
from eagle3_api.jobs import Progress, StageName
from eagle3_api.spec import Eagle3Draft
from eagle3_api.status import Eagle3DraftStatus, StageProgress, StageState, StageStatus
from eagle3_operator.cluster.client import ApiError, Client, NotFoundError
from eagle3_operator.cluster.kept import Kept
from eagle3_operator.cluster.observe import Observer
from eagle3_operator.manifests import names
from unit.samples import SPEC, merged

Json = dict[str, Any]
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


class ClientThatNotesWhatItIsAsked(Client):
    """Instead of a server: it has these Jobs and nothing else."""

    def __init__(self, jobs: Sequence[Json]) -> None:
        super().__init__(Configuration(host="http://127.0.0.1:1"))
        self.jobs = list(jobs)
        self.services: dict[str, Json] = {}
        self.claims: set[str] = set()
        self.others: dict[str, list[Json]] = {}
        self.deployments: list[Json] = []
        self.budget: Json | None = None
        self.asked: list[str] = []
        self.no_jobsets: ApiError | None = None
        self.pods: list[Json] = []
        self.words: str | ApiError = ""

    def find(self, kind: str, namespace: str, labels: str) -> list[Json]:
        self.asked.append(kind)
        if kind == "JobSet" and self.no_jobsets is not None:
            raise self.no_jobsets
        if labels in ("", f"{names.NAME_LABEL}!=kimi"):  # whoever else is in the namespace
            return self.others.get(kind, [])
        mine = [one for one in self.services.values() if "ownerReferences" in one["metadata"]]
        return {"Job": self.jobs, "Service": mine, "Deployment": self.deployments, "Pod": self.pods}.get(kind, [])

    def log(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        self.asked.append(f"log of {pod}")
        if isinstance(self.words, ApiError):
            raise self.words
        return self.words

    def get(self, kind: str, namespace: str, name: str, *, cached: bool = False) -> Json | None:
        assert cached
        self.asked.append(name)
        if kind == "Service":
            return self.services.get(name)
        if kind == "PodDisruptionBudget":
            return self.budget
        assert kind == "PersistentVolumeClaim"
        once = {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"]}}
        return once if name in self.claims else None

    def serve(self, revision: str, *, guarded: str) -> None:
        """From now on the public Service selects one revision, and the budget of disruptions perhaps another."""
        selector = {names.NAME_LABEL: "kimi", names.REVISION_LABEL: revision}
        metadata = {"name": f"kimi-{revision}", "labels": selector, "creationTimestamp": "2026-11-29T11:00:00Z"}
        self.deployments = [{"metadata": metadata, "spec": {"replicas": 1}}]
        self.services = {"kimi": {"metadata": {"name": "kimi"}, "spec": {"selector": selector}}}
        guards = {"matchLabels": selector | {names.REVISION_LABEL: guarded}}
        self.budget = {"metadata": {"name": "kimi-servers"}, "spec": {"selector": guards}}


def job(stage: StageName, key: str) -> Json:
    metadata = {
        "name": f"kimi-{stage}-{key}",
        "namespace": "llm",
        "uid": f"uid-{stage}",
        "creationTimestamp": "2026-11-29T11:00:00Z",
        "labels": names.labels("kimi", stage=stage),
        "annotations": {names.KEY_ANNOTATION: key},
    }
    return {"metadata": metadata, "spec": {}, "status": {}}


def asked(jobs: Sequence[Json], *stages: StageStatus) -> list[str]:
    """The kinds that are listed for an object that only trains."""
    metadata = {"name": "kimi", "namespace": "llm", "uid": "1"}
    obj = Eagle3Draft.model_validate({"metadata": metadata, "spec": merged(SPEC, {"serve": None, "watch": None})})
    client = ClientThatNotesWhatItIsAsked(jobs)
    Observer(client, {}, poll_seconds=10).observe(obj, Eagle3DraftStatus(stages=list(stages)), NOW)
    return [kind for kind in client.asked if kind[0].isupper()]


def told(key: str, state: StageState) -> StageStatus:
    return StageStatus(name=StageName.INSPECT, key=key, state=state)


@pytest.mark.parametrize(
    ("jobs", "stages", "kinds"),
    [
        ([], (), ["Job"]),
        ([job(StageName.INSPECT, "k1")], (told("k1", StageState.SUCCEEDED),), ["Job"]),
        ([job(StageName.INSPECT, "k1")], (told("k1", StageState.RUNNING),), ["Job", "Pod"]),
        ([job(StageName.INSPECT, "k2")], (told("k1", StageState.SUCCEEDED),), ["Job", "Pod"]),
        (
            [job(StageName.INSPECT, "k1"), job(StageName.TRAIN, "k3")],
            (told("k1", StageState.SUCCEEDED),),
            ["Job", "Pod"],
        ),
    ],
    ids=["no Job", "a Job whose stage succeeded", "one under way", "one of another key", "one of two"],
)
def test_pods_are_asked_for_only_where_a_job_may_have_something_new_to_say(
    jobs: list[Json], stages: tuple[StageStatus, ...], kinds: list[str]
) -> None:
    assert asked(jobs, *stages) == kinds


def service(name: str, *, owner: str | None) -> Json:
    metadata: Json = {"name": name, "namespace": "llm"}
    if owner is not None:
        metadata["ownerReferences"] = [{"kind": "Eagle3Draft", "name": name, "uid": owner, "controller": True}]
    return {"metadata": metadata, "spec": {"selector": {names.REVISION_LABEL: "r3"}}}


@pytest.mark.parametrize(
    ("services", "owned", "looks"),
    [([], None, 1), ([service("kimi", owner=None)], False, 1), ([service("kimi", owner="1")], True, 0)],
    ids=["nobody's", "a stranger's without our labels", "its own"],
)
def test_who_has_the_name_of_the_public_service_is_looked_up_until_the_object_has_it(
    services: list[Json], owned: bool | None, looks: int
) -> None:
    metadata = {"name": "kimi", "namespace": "llm", "uid": "1"}
    client = ClientThatNotesWhatItIsAsked([])
    client.services = {one["metadata"]["name"]: one for one in services}
    obj = Eagle3Draft.model_validate({"metadata": metadata, "spec": SPEC})
    seen = Observer(client, {}, poll_seconds=10).observe(obj, Eagle3DraftStatus(), NOW)
    public = seen.observation.services.get("kimi")
    assert (public and public.owned) == owned
    assert client.asked.count("kimi") == looks


def of_a_jobset(job: Json) -> Json:
    job["metadata"]["ownerReferences"] = [{"kind": "JobSet", "name": "s", "uid": "uid-s", "controller": True}]
    return job


def looked(
    jobs: Sequence[Json], *stages: StageStatus, nodes: int = 1, answer: ApiError | None = None
) -> tuple[bool, bool]:
    """Whether JobSets are asked for, and whether the cluster is found to serve them."""
    metadata = {"name": "kimi", "namespace": "llm", "uid": "1"}
    spec = merged(SPEC, {"serve": None, "watch": None, "train": {"nodes": nodes}})
    obj = Eagle3Draft.model_validate({"metadata": metadata, "spec": spec})
    client = ClientThatNotesWhatItIsAsked(jobs)
    client.no_jobsets = answer
    seen = Observer(client, {}, poll_seconds=10).observe(obj, Eagle3DraftStatus(stages=list(stages)), NOW)
    return "JobSet" in client.asked, seen.observation.jobsets


MISSING = NotFoundError("GET jobsets", 404, "NotFound", "the server could not find the requested resource")
REFUSED = ApiError("GET jobsets", 403, "Forbidden", "jobsets.jobset.x-k8s.io is forbidden")
BEGUN = StageStatus(name=StageName.TRAIN, key="k3", state=StageState.RUNNING, job="kimi-train-k3")


def test_only_who_trains_on_several_nodes_or_did_asks_for_jobsets() -> None:
    assert looked([]) == (False, False)
    assert looked([job(StageName.TRAIN, "k3")], BEGUN) == (False, False)
    assert looked([], nodes=2) == (True, True)
    assert looked([of_a_jobset(job(StageName.TRAIN, "k3"))]) == (True, True), "it was finished so"
    assert looked([], BEGUN) == (True, True), "its JobSet may have made no Job yet"


@pytest.mark.parametrize("answer", [MISSING, REFUSED], ids=["not installed", "not in the operator's role"])
def test_a_cluster_without_jobsets_for_us_is_one_without_jobsets(answer: ApiError) -> None:
    assert looked([], nodes=2, answer=answer) == (True, False)


def test_a_jobset_that_is_not_shown_any_more_is_not_taken_for_one_that_is_gone() -> None:
    with pytest.raises(ApiError, match="is forbidden"):
        looked([of_a_jobset(job(StageName.TRAIN, "k3"))], nodes=2, answer=REFUSED)


def test_a_server_that_cannot_say_whether_there_are_jobsets_is_asked_again() -> None:
    with pytest.raises(ApiError, match="overloaded"):
        looked([], nodes=2, answer=ApiError("GET jobsets", 503, "Unavailable", "overloaded"))


def test_a_claim_that_is_there_is_asked_for_once_in_a_while_however_many_objects_want_it() -> None:
    client, now = ClientThatNotesWhatItIsAsked([]), [0.0]
    claims = Kept(client, "PersistentVolumeClaim", seconds=5.0, clock=lambda: now[0])
    assert claims.get("llm", "drafts") is None
    client.claims = {"drafts", "features"}
    for now[0] in (0.1, 5.0, 5.0 + 0.2):
        assert claims.get("llm", "drafts") is not None
        assert claims.get("llm", "features") is not None
    assert client.asked == ["drafts", "drafts", "features", "drafts", "features"]


def test_a_claim_is_asked_for_anew_where_what_is_done_depends_on_it() -> None:
    client = ClientThatNotesWhatItIsAsked([])
    client.claims = {"drafts"}
    claims = Kept(client, "PersistentVolumeClaim", seconds=5.0, clock=lambda: 0.0)
    for anew in (False, True, False):
        claims.get("llm", "drafts", anew=anew)
    assert client.asked == ["drafts", "drafts"]


def test_a_claim_of_the_same_name_in_another_namespace_is_another() -> None:
    client = ClientThatNotesWhatItIsAsked([])
    client.claims = {"drafts"}
    claims = Kept(client, "PersistentVolumeClaim", seconds=5.0, clock=lambda: 0.0)
    claims.get("llm", "drafts")
    claims.get("vision", "drafts")
    assert client.asked == ["drafts", "drafts"]


def other(name: str, *, spec: Json, phase: str = "Running") -> Json:
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}


def volumes(claim: str) -> list[Json]:
    return [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]


@pytest.mark.parametrize(
    ("kind", "others", "used_by"),
    [
        ("Pod", [], ()),
        (KIND, [other("kimi", spec={"storage": {"features": {"size": "1Ti"}}})], ()),
        (KIND, [other("another", spec={"storage": {"features": {"claim": "kimi-features"}}})], ("another",)),
        (KIND, [other("another", spec={"serve": {"placement": {"volumes": volumes("kimi-features")}}})], ("another",)),
        (KIND, [other("another", spec={"storage": {"features": {"claim": "nvme"}}})], ()),
        ("Pod", [other("notebook", spec={"volumes": volumes("kimi-features")})], ("notebook",)),
        ("Pod", [other("notebook", spec={"volumes": volumes("kimi-features")}, phase="Succeeded")], ()),
        ("Pod", [other("notebook", spec={"volumes": [{"name": "v", "emptyDir": {}}]})], ()),
    ],
    ids=[
        "nobody",
        "an object that has it made",
        "an object as its features",
        "an object as a volume",
        "another claim",
        "a pod",
        "a pod that has ended",
        "a pod with another volume",
    ],
)
def test_who_uses_a_claim_is_looked_up_before_it_is_deleted(
    kind: str, others: list[Json], used_by: tuple[str, ...]
) -> None:
    client = ClientThatNotesWhatItIsAsked([])
    client.claims, client.others = {"kimi-features"}, {kind: others}
    spec = merged(SPEC, {"serve": None, "watch": None, "storage": {"features": {"claim": None, "size": "1Ti"}}})
    obj = Eagle3Draft.model_validate({"metadata": {"name": "kimi", "namespace": "llm", "uid": "1"}, "spec": spec})
    going = StageStatus(name=StageName.CLEAN, key="k9", state=StageState.RUNNING)
    for stages, found in (([], None), ([going], used_by), ([going.model_copy(update={"job": "kimi-clean-k9"})], None)):
        seen = Observer(client, {}, poll_seconds=10).observe(obj, Eagle3DraftStatus(stages=stages), NOW)
        assert seen.observation.claims["kimi-features"].used_by == found


def test_a_claim_that_is_found_gone_is_not_told_of_any_more() -> None:
    client = ClientThatNotesWhatItIsAsked([])
    client.claims = {"features"}
    claims = Kept(client, "PersistentVolumeClaim", seconds=5.0, clock=lambda: 0.0)
    assert claims.get("llm", "features") is not None
    client.claims = set()
    assert claims.get("llm", "features", anew=True) is None
    assert claims.get("llm", "features") is None


def test_a_budget_is_looked_at_once_in_a_while_and_anew_when_it_does_not_follow_the_service() -> None:
    client = ClientThatNotesWhatItIsAsked([])
    observer = Observer(client, {}, poll_seconds=10)
    obj = Eagle3Draft.model_validate({"metadata": {"name": "kimi", "namespace": "llm", "uid": "1"}, "spec": SPEC})

    def seen(*, selected: str, guarded: str) -> int | None:
        client.serve(selected, guarded=guarded)
        budget = observer.observe(obj, Eagle3DraftStatus(), NOW).observation.budget
        assert budget is not None
        return budget.revision

    assert [seen(selected="r1", guarded="r1") for _ in range(3)] == [1, 1, 1]
    assert seen(selected="r2", guarded="r2") == 2
    assert client.asked.count("kimi-servers") == 2
    assert seen(selected="r3", guarded="r2") == 2
    assert client.asked.count("kimi-servers") == 3


def running(job: Json, name: str = "kimi-train-k3-x") -> Json:
    """The pod of a Job, at work."""
    owner = {"uid": job["metadata"]["uid"], "controller": True}
    born = "2026-11-29T11:00:00Z"
    state = {"name": "main", "state": {"running": {"startedAt": born}}}
    return {
        "metadata": {
            "name": name,
            "namespace": "llm",
            "uid": f"uid-{name}",
            "creationTimestamp": born,
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Running", "containerStatuses": [state]},
    }


def test_a_log_is_read_once_a_poll_however_often_an_object_is_looked_at() -> None:
    """Progress is told once a percent or a minute: that it was told long ago is no reason to read it at every look."""
    made = job(StageName.TRAIN, "k3")
    client = ClientThatNotesWhatItIsAsked([made])
    client.pods = [running(made)]
    observer = Observer(client, {}, poll_seconds=10)
    obj = Eagle3Draft.model_validate({"metadata": {"name": "kimi", "namespace": "llm", "uid": "1"}, "spec": SPEC})
    heard = StageProgress(done=0.1, time="2026-11-29T11:59:00Z", heard="2026-11-29T11:59:05Z")
    stage = StageStatus(name=StageName.TRAIN, key="k3", state=StageState.RUNNING, progress=heard)

    def seen(seconds: float) -> tuple[float | None, str]:
        now = NOW + timedelta(seconds=seconds)
        seen = observer.observe(obj, Eagle3DraftStatus(stages=[stage]), now).observation.jobs["kimi-train-k3"]
        return seen.progress.done if seen.progress else None, seen.progress_problem

    client.words = Progress(done=0.101, time=NOW.timestamp()).dump()
    assert seen(0) == (0.101, "")
    client.words = Progress(done=0.102, time=NOW.timestamp()).dump()
    assert [seen(3), seen(9.9)] == [(0.101, ""), (0.101, "")]
    assert client.asked.count("log of kimi-train-k3-x") == 1
    assert seen(10) == (0.102, "")
    client.words = ApiError("GET log", 500, "", "the kubelet is away")
    assert seen(20) == seen(25) == (None, "GET log: the kubelet is away (500 )")
    assert client.asked.count("log of kimi-train-k3-x") == 3


def test_the_log_of_a_pod_that_takes_anothers_place_is_read_at_once() -> None:
    made = job(StageName.TRAIN, "k3")
    client = ClientThatNotesWhatItIsAsked([made])
    observer = Observer(client, {}, poll_seconds=10)
    obj = Eagle3Draft.model_validate({"metadata": {"name": "kimi", "namespace": "llm", "uid": "1"}, "spec": SPEC})
    for name in ("kimi-train-k3-x", "kimi-train-k3-y"):
        client.pods = [running(made, name)]
        observer.observe(obj, Eagle3DraftStatus(), NOW)
    assert client.asked.count("log of kimi-train-k3-y") == 1


def test_logs_that_do_not_come_are_not_all_waited_for() -> None:
    """The kubelets cannot be reached, and every log of 64 shards takes the time after which it is given up."""
    made = job(StageName.EXTRACT, "k2")
    made["spec"] = {"completions": 64, "parallelism": 64}
    clock = [0.0]

    class ClientWithoutLogs(ClientThatNotesWhatItIsAsked):
        def log(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
            clock[0] += 5.0
            return super().log(namespace, pod, container, lines=lines, previous=previous)

    client = ClientWithoutLogs([made])
    client.pods = [running(made, f"kimi-extract-k2-{shard}") for shard in range(64)]
    client.words = ApiError("GET log", 0, "Unreachable", "the API server cannot be reached: timed out")
    observer = Observer(client, {}, poll_seconds=10, clock=lambda: clock[0])
    obj = Eagle3Draft.model_validate({"metadata": {"name": "kimi", "namespace": "llm", "uid": "1"}, "spec": SPEC})
    seen = observer.observe(obj, Eagle3DraftStatus(), NOW).observation.jobs["kimi-extract-k2"]
    assert sum(asked.startswith("log of") for asked in client.asked) == 2
    assert (seen.progress, seen.progress_problem) == (None, str(client.words))


def test_pods_whose_logs_do_not_come_are_asked_last_the_next_time() -> None:
    """The nodes of the first three cannot be reached: the others would never be heard of."""
    made = job(StageName.EXTRACT, "k2")
    made["spec"] = {"completions": 16, "parallelism": 16}
    clock, away = [0.0], {f"kimi-extract-k2-{shard:02}" for shard in range(3)}

    class ClientOfWhichSomeAreAway(ClientThatNotesWhatItIsAsked):
        def log(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
            if pod in away:
                clock[0] += 5.0
                raise ApiError("GET log", 0, "Unreachable", "timed out")
            return super().log(namespace, pod, container, lines=lines, previous=previous)

    client = ClientOfWhichSomeAreAway([made])
    client.pods = [running(made, f"kimi-extract-k2-{shard:02}") for shard in range(16)]
    client.words = Progress(done=0.5, time=NOW.timestamp(), message="reading").dump()
    observer = Observer(client, {}, poll_seconds=10, clock=lambda: clock[0])
    obj = Eagle3Draft.model_validate({"metadata": {"name": "kimi", "namespace": "llm", "uid": "1"}, "spec": SPEC})
    said = []
    for look in range(4):
        now = NOW + timedelta(seconds=20 * look)
        progress = observer.observe(obj, Eagle3DraftStatus(), now).observation.jobs["kimi-extract-k2"].progress
        said.append(progress.message if progress else None)
    assert said == [None, *["13 of 16 pods at work; reading"] * 3]


def test_a_pod_that_is_late_on_its_node_names_whoever_has_its_claim_on_another() -> None:
    """Two objects on one ReadWriteOnce claim: the Event said Multi-Attach, and nobody which pod to look for."""

    def placed(name: str, node: str, **labels: str) -> Json:
        mounted = [{"name": "drafts", "persistentVolumeClaim": {"claimName": "drafts"}}]
        made = running(made_for, name)
        given = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-29T11:00:00Z"}
        spec = {"nodeName": node, "volumes": mounted, **made["spec"]}
        return made | {
            "metadata": made["metadata"] | {"labels": labels},
            "spec": spec,
            "status": {"phase": "Pending", "conditions": [given]},
        }

    made_for = job(StageName.TRAIN, "k3")
    client = ClientThatNotesWhatItIsAsked([made_for])
    client.claims = {"features", "drafts"}
    client.pods = [placed("kimi-train-k3-x", "gpu-1")]
    beside, elsewhere = placed("beside", "gpu-1"), placed("llama-r1-x", "gpu-2", **names.labels("llama", revision=1))
    obj = Eagle3Draft.model_validate({"metadata": {"name": "kimi", "namespace": "llm", "uid": "1"}, "spec": SPEC})

    def seen(now: datetime, *others: Json) -> str | None:
        client.others = {"Pod": [*client.pods, *others]}
        observer = Observer(client, {}, poll_seconds=10)
        (pod,) = observer.observe(obj, Eagle3DraftStatus(), now).observation.jobs["kimi-train-k3"].pods
        return pod.kept_from

    said = (
        "claim drafts can be mounted by one node at a time, and gpu-2 has it, for pod llama-r1-x of Eagle3Draft llama"
    )
    assert seen(NOW, beside, elsewhere) == said
    assert seen(NOW, beside) is None
    ended = elsewhere | {"status": {"phase": "Succeeded"}}
    assert seen(NOW, ended) is None
    client.asked.clear()
    assert seen(NOW - timedelta(minutes=40), elsewhere) is None
    assert client.asked.count("Pod") == 1, "no other pod is looked at before it is late"
