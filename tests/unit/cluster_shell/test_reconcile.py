"""A reconcile of objects that a real API server would not store: its schema is the one that this version knows."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import prometheus_client
import pytest
from kubernetes.client import Configuration

from eagle3_api import KIND
from eagle3_api.status import Eagle3DraftStatus
from eagle3_operator.cluster.client import ApiError, Client, ConflictError
from eagle3_operator.cluster.observe import Observer
from eagle3_operator.cluster.queue import Key
from eagle3_operator.cluster.reconcile import Decide, Reconciler
from eagle3_operator.decision import Decision, Own
from eagle3_operator.manifests import names
from eagle3_operator.metrics import Metrics
from eagle3_operator.settings import Settings
from unit.samples import SPEC

Json = dict[str, Any]

KEY = Key("llm", "kimi")


class ClientWithOneUnreadableObject(Client):
    """Instead of a server: it holds one object, which is at fault, and remembers what was written."""

    def __init__(self, spec: Json, status: Json) -> None:
        super().__init__(Configuration(host="http://127.0.0.1:1"))
        metadata = {"name": "kimi", "namespace": "llm", "uid": "1", "resourceVersion": "7", "generation": 3}
        self.object: Json = {"metadata": metadata, "spec": spec, "status": status}
        self.events: list[Json] = []

    def get(self, kind: str, namespace: str, name: str, *, cached: bool = False) -> Json | None:
        return self.object

    def create(self, manifest: Json) -> Json:
        self.events.append(manifest)
        return manifest

    def replace_status(self, kind: str, obj: Json, status: Json) -> Json:
        self.object = {**self.object, "status": status}
        return self.object


def never(*_: Any) -> Decision:
    raise AssertionError("there is nothing to decide about what cannot be read")


def reconciler(client: Client, metrics: Metrics, *, decide: Decide = never) -> Reconciler:
    return Reconciler(
        client,
        Observer(client, {}, poll_seconds=10),
        Settings(workers=1),
        decide=decide,
        metrics=metrics,
        now=lambda: datetime(2026, 11, 29, 12, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("spec", "status", "named"),
    [
        ({**SPEC, "target": {}}, {}, "spec.target.model: Field required"),
        (SPEC, {"stages": "lost", "servingRevision": 1}, "stages: Input should be a valid list"),
    ],
    ids=["spec", "status"],
)
def test_an_object_that_cannot_be_read_says_so_and_keeps_what_it_has(spec: Json, status: Json, named: str) -> None:
    client = ClientWithOneUnreadableObject(spec, status)
    told = reconciler(client, Metrics())
    assert asyncio.run(told.reconcile(KEY)) is None
    written = client.object["status"]
    conditions = {one["type"]: (one["status"], one["reason"]) for one in written["conditions"]}
    assert conditions == {
        "Ready": ("False", "InvalidConfiguration"),
        "Reconciling": ("False", "InvalidConfiguration"),
        "Stalled": ("True", "InvalidConfiguration"),
    }
    assert named in written["conditions"][0]["message"]
    assert written.get("servingRevision") == status.get("servingRevision")
    assert [event["reason"] for event in client.events] == ["InvalidConfiguration"]


def test_a_failed_reconcile_is_counted_by_its_error_and_raised() -> None:
    metrics = Metrics()
    away = Client(Configuration(host="http://127.0.0.1:1"))
    with pytest.raises(ApiError):
        asyncio.run(reconciler(away, metrics).reconcile(KEY))
    assert metrics.registry.get_sample_value("eagle3_operator_errors_total", {"type": "ApiError"}) == 1
    assert metrics.registry.get_sample_value("eagle3_operator_reconciles_total", {"result": "failed"}) == 1


class ClientWithOneObject(ClientWithOneUnreadableObject):
    """It can be read, and has no children."""

    def get(self, kind: str, namespace: str, name: str, *, cached: bool = False) -> Json | None:
        return self.object if kind == KIND else None

    def find(self, kind: str, namespace: str, labels: str) -> list[Json]:
        return []


def test_an_object_at_which_deciding_fails_says_so_once_and_is_ready_no_more() -> None:
    ready = {"type": "Ready", "status": "True", "reason": "DraftHealthy", "message": "", "observedGeneration": 2}
    ready["lastTransitionTime"] = "2026-11-29T10:00:00Z"
    client, metrics = ClientWithOneObject(SPEC, {"conditions": [ready], "servingRevision": 1}), Metrics()

    def fails(*_: Any) -> Decision:
        raise OverflowError("date value out of range")

    for _ in range(2):
        with pytest.raises(OverflowError):
            asyncio.run(reconciler(client, metrics, decide=fails).reconcile(KEY))
    written = client.object["status"]
    assert [(one["type"], one["status"], one["reason"]) for one in written["conditions"]] == [
        ("Ready", "False", "InternalError"),
        ("Reconciling", "False", "InternalError"),
        ("Stalled", "True", "InternalError"),
    ]
    assert "OverflowError: date value out of range" in written["conditions"][0]["message"]
    assert written["servingRevision"] == 1
    assert [event["reason"] for event in client.events] == ["InternalError"]
    assert metrics.registry.get_sample_value("eagle3_operator_errors_total", {"type": "OverflowError"}) == 2


def test_a_defect_whose_words_differ_each_time_is_written_and_told_of_once_for_each_generation() -> None:
    """Each write wakes the object: it would be looked at, and written, without end."""
    client, times = ClientWithOneObject(SPEC, {}), iter(range(9))

    def fails(*_: Any) -> Decision:
        raise KeyError(f"<object at 0x{next(times)}>")

    def told() -> str:
        with pytest.raises(KeyError):
            asyncio.run(reconciler(client, Metrics(), decide=fails).reconcile(KEY))
        return str(client.object["status"]["conditions"][0]["message"])

    assert "0x0" in told()
    assert "0x0" in told()
    assert len(client.events) == 1
    client.object["metadata"]["generation"] += 1
    assert "0x2" in told()
    assert len(client.events) == 2


class ClientWithOneClaim(ClientWithOneObject):
    """Each change gives the claim another version, and one of another version than it has is refused."""

    written = 0

    def get(self, kind: str, namespace: str, name: str, *, cached: bool = False) -> Json | None:
        if kind != "PersistentVolumeClaim" or name != "drafts":
            return super().get(kind, namespace, name, cached=cached)
        metadata = {"name": name, "uid": "5", "resourceVersion": str(self.written)}
        return {"metadata": metadata | {"labels": {names.MANAGED_BY_LABEL: names.FIELD_MANAGER}}, "spec": {}}

    def merge(self, kind: str, namespace: str, name: str, patch: Json, *, subresource: str | None = None) -> Json:
        if patch["metadata"]["resourceVersion"] != str(self.written):
            raise ConflictError("a request", 409, "Conflict", "the object has been modified")
        self.written += 1
        return patch


def test_a_claim_whose_owners_were_changed_is_looked_at_anew_and_changed_again() -> None:
    """The write of the status wakes the object at once, long before what is kept of a claim is too old."""
    client = ClientWithOneClaim(SPEC, {"observedGeneration": 3})

    def owns(*_: Any) -> Decision:
        return Decision(Eagle3DraftStatus(observed_generation=3), own=(Own("drafts", ()),))

    operator = reconciler(client, Metrics(), decide=owns)
    for _ in range(2):
        asyncio.run(operator.reconcile(KEY))
    assert client.written == 2


def test_nobody_is_called_for_an_object_that_is_being_deleted() -> None:
    """Somebody's finalizer may keep it for days."""
    client = ClientWithOneUnreadableObject(SPEC, {})
    metrics = Metrics()
    metrics.known(*KEY, "Degraded", available=False)
    client.object["metadata"]["deletionTimestamp"] = "2026-11-29T11:00:00Z"
    asyncio.run(reconciler(client, metrics).reconcile(KEY))
    told = prometheus_client.generate_latest(metrics.registry).decode()
    assert "kimi" not in told
