"""What one child that is refused may stop, and what not."""

from typing import Any

import pytest
from kubernetes.client import Configuration

from eagle3_api.status import Eagle3DraftStatus
from eagle3_operator.cluster.act import Deeds, act
from eagle3_operator.cluster.client import ApiError, Client, ConflictError, NotFoundError
from eagle3_operator.decision import Decision, Own, Scale
from eagle3_operator.manifests import names
from eagle3_operator.observation import Refusal

Json = dict[str, Any]

FORBIDDEN = ApiError("a request", 403, "Forbidden", "exceeded quota")
AWAY = ApiError("a request", 0, "", "no answer")


class RefusingClient(Client):
    """Instead of a server: it refuses what concerns some kinds, and remembers what was done."""

    def __init__(self, found: dict[str, Json] | None = None, **refused: ApiError) -> None:
        super().__init__(Configuration(host="http://127.0.0.1:1"))
        self.found, self.refused = found or {}, refused
        self.done: list[str] = []
        self.patched: Json = {}

    def get(self, kind: str, namespace: str, name: str, *, cached: bool = False) -> Json | None:
        self._refuse(f"get{kind}")
        return self.found.get(kind)

    def apply(self, manifest: Json) -> Json:
        return self._do(manifest)

    def create(self, manifest: Json) -> Json:
        return self._do(manifest)

    def scale(self, namespace: str, name: str, replicas: int) -> None:
        self._refuse("scale")
        self.done.append(f"{name}={replicas}")

    def merge(self, kind: str, namespace: str, name: str, patch: Json, *, subresource: str | None = None) -> Json:
        self.patched = patch
        return patch

    def _do(self, manifest: Json) -> Json:
        self._refuse(manifest["kind"])
        self.done.append(manifest["kind"])
        return manifest

    def _refuse(self, what: str) -> None:
        if what in self.refused:
            raise self.refused[what]


def decided(*kinds: str) -> Decision:
    made = tuple(
        {
            "kind": kind,
            "metadata": {
                "namespace": "llm",
                "name": "kimi",
                "labels": {names.NAME_LABEL: "kimi"},
                "ownerReferences": [],
            },
        }
        for kind in kinds
    )
    return Decision(Eagle3DraftStatus(), apply=made, scale=(Scale("kimi-r1", 1),))


def carried_out(client: Client, *kinds: str, tried: Deeds | None = None) -> Refusal | None:
    known = Deeds() if tried is None else tried
    return act(client, decided(*kinds), namespace="llm", owner="uid-1", seen={}, tried=known)


def test_a_job_that_is_refused_stops_neither_the_service_nor_the_pods_of_a_rollback() -> None:
    client = RefusingClient(Job=FORBIDDEN)
    assert carried_out(client, "Job", "Service") == Refusal("Job", "kimi", "created", "exceeded quota")
    assert client.done == ["Service", "kimi-r1=1"]


def test_nothing_goes_before_what_comes_in_its_place_is_accepted() -> None:
    client = RefusingClient(Deployment=FORBIDDEN)
    assert carried_out(client, "Deployment") is not None
    assert client.done == []


def test_what_was_tried_is_not_tried_twice_and_the_rest_is_done() -> None:
    client, tried = RefusingClient(Service=FORBIDDEN), Deeds()
    assert carried_out(client, "Deployment", "Service", "Job", tried=tried) is not None
    assert carried_out(client, "Deployment", "Service", "Job", tried=tried) is None
    assert client.done == ["Deployment", "kimi-r1=1", "Job"]


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (RefusingClient({"PodDisruptionBudget": {"metadata": {"name": "kimi"}}}), "does not belong to this object"),
        (RefusingClient(getPodDisruptionBudget=FORBIDDEN), "exceeded quota"),
        (RefusingClient(PodDisruptionBudget=FORBIDDEN), "exceeded quota"),
    ],
    ids=["somebody's own", "not to be looked at", "not to be made"],
)
def test_a_budget_that_cannot_be_had_stops_nothing_and_is_told_of(client: RefusingClient, words: str) -> None:
    refusal = carried_out(client, "PodDisruptionBudget", "Service", "Job")
    assert client.done == ["Service", "kimi-r1=1", "Job"]
    assert refusal is not None
    assert (refusal.kind, refusal.verb) == ("PodDisruptionBudget", "applied")
    assert words in refusal.message


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_a_name_that_is_somebody_elses_is_left_alone_and_stops_nothing_else(kind: str) -> None:
    """A rollback and an autoscaler's word are among what else there is."""
    client, tried = RefusingClient({kind: {"metadata": {"name": "kimi", "uid": "a-shops"}}}), Deeds()
    refusal = carried_out(client, "Deployment", "Service", "Job", tried=tried)
    assert refusal is not None
    assert (refusal.kind, refusal.name, refusal.verb) == (kind, "kimi", "applied")
    assert refusal.message.startswith(f"{kind} kimi exists and does not belong to this object")
    assert carried_out(client, "Deployment", "Service", "Job", tried=tried) is None
    assert client.done == [*{"Deployment", "Service"} - {kind}, "kimi-r1=1", "Job"]


def test_somebody_elses_deployment_is_not_scaled() -> None:
    client, theirs = RefusingClient(), {("Deployment", "kimi-r1"): {"name": "kimi-r1", "uid": "a-shops"}}
    refusal = act(client, decided(), namespace="llm", owner="uid-1", seen=theirs, tried=Deeds())
    assert refusal is not None
    assert (refusal.name, refusal.verb, client.done) == ("kimi-r1", "scaled", [])


def test_a_server_that_does_not_answer_refuses_nothing() -> None:
    with pytest.raises(ApiError, match="no answer"):
        carried_out(RefusingClient(PodDisruptionBudget=AWAY), "PodDisruptionBudget")


@pytest.mark.parametrize(
    ("status", "message", "refused"),
    [
        (403, 'jobs.batch "a" is forbidden: exceeded quota: few', True),
        (422, 'jobs.batch "a" is invalid: spec.template', True),
        (500, 'failed calling webhook "policy.example": connection refused', True),
        (418, 'admission webhook "policy.example" denied the request: no', True),
        (500, 'deployments.apps "webhook-bot-r1": etcdserver: request timed out', False),
        (401, "Unauthorized", False),
        (429, "too many requests", False),
        (500, "etcdserver: request timed out", False),
        (0, "the API server cannot be reached", False),
    ],
)
def test_a_refusal_is_told_from_an_api_server_that_is_out_of_order(status: int, message: str, refused: bool) -> None:
    assert ApiError("a request", status, "", message).refused is refused


@pytest.mark.parametrize(
    "error",
    [NotFoundError("a request", 403, "Forbidden", "is being terminated"), ConflictError("a request", 409, "", "")],
)
def test_what_is_gone_or_going_or_has_changed_is_looked_at_again_and_not_called_refused(error: ApiError) -> None:
    with pytest.raises(type(error)):
        carried_out(RefusingClient(Service=error), "Service")


def test_the_words_of_a_refusal_that_are_a_page_are_cut() -> None:
    refusal = carried_out(RefusingClient(Service=ApiError("a request", 422, "Invalid", "nay " * 2000)), "Service")
    assert refusal is not None
    assert refusal.message.endswith("nay…")
    assert len(refusal.message) == 700


OURS, THEIRS = {"kind": "Eagle3Draft", "uid": "uid-1", "controller": True}, {"kind": "Backup", "uid": "uid-9"}


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        ([THEIRS, OURS], (), [THEIRS]),
        ([OURS], (), None),
        ([THEIRS], (OURS,), [THEIRS, OURS]),
        (None, (OURS,), [OURS]),
    ],
    ids=["left beside another", "left", "had beside another", "had"],
)
def test_of_the_owners_of_a_claim_only_the_object_itself_comes_and_goes_and_of_no_claim_but_the_one_that_was_seen(
    before: list[Json] | None, wanted: tuple[Json, ...], after: list[Json] | None
) -> None:
    client, decision = RefusingClient(), Decision(Eagle3DraftStatus(), own=(Own("kimi-drafts", wanted),))
    claim = {"name": "kimi-drafts", "uid": "uid-5", "resourceVersion": "7", "ownerReferences": before}
    seen = {("PersistentVolumeClaim", "kimi-drafts"): claim}
    act(client, decision, namespace="llm", owner="uid-1", seen=seen, tried=Deeds())
    assert client.patched == {"metadata": {"uid": "uid-5", "resourceVersion": "7", "ownerReferences": after}}


class ClientWithDeployment(RefusingClient):
    """It has a Deployment of ours, which may have come since anybody looked."""

    def __init__(self, labels: Json) -> None:
        metadata = {"name": "kimi", "labels": labels, "ownerReferences": [OURS]}
        super().__init__({"Deployment": {"metadata": metadata}})

    def create(self, manifest: Json) -> Json:
        raise ConflictError("a request", 409, "AlreadyExists", "kimi already exists")


def test_a_deployment_that_another_operator_made_since_the_look_is_looked_at_and_not_changed() -> None:
    client = ClientWithDeployment({names.NAME_LABEL: "kimi"})
    with pytest.raises(ConflictError, match="already exists"):
        carried_out(client, "Deployment", "Service")
    assert client.done == []


@pytest.mark.parametrize("labels", [{}, {names.NAME_LABEL: "another"}], ids=["gone", "edited"])
def test_a_deployment_that_no_look_finds_gets_its_labels_back(labels: Json) -> None:
    client = ClientWithDeployment(labels)
    assert carried_out(client, "Deployment") is None
    assert client.done == ["Deployment", "kimi-r1=1"]
