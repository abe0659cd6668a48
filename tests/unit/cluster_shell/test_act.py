"""What one child that is refused may stop, and what not."""

from typing import Any

import pytest
from kubernetes.client import Configuration

from eagle3_api.status import Eagle3DraftStatus
from eagle3_operator.cluster.act import act
from eagle3_operator.cluster.client import ApiError, Client
from eagle3_operator.decision import Decision, Event, Scale

Json = dict[str, Any]

FORBIDDEN = ApiError("a request", 403, "Forbidden", "exceeded quota")
AWAY = ApiError("a request", 0, "", "no answer")


class RefusingClient(Client):
    """Instead of a server: it refuses what concerns some kinds, and remembers what was done."""

    def __init__(self, found: dict[str, Json] | None = None, **refused: ApiError) -> None:
        super().__init__(Configuration(host="http://127.0.0.1:1"))
        self.found, self.refused = found or {}, refused
        self.done: list[str] = []

    def get(self, kind: str, namespace: str, name: str, *, cached: bool = False) -> Json | None:
        self._refuse(f"get{kind}")
        return self.found.get(kind)

    def apply(self, manifest: Json) -> Json:
        return self._do(manifest)

    def create(self, manifest: Json) -> Json:
        return self._do(manifest)

    def scale(self, namespace: str, name: str, replicas: int) -> None:
        self.done.append(f"{name}={replicas}")

    def _do(self, manifest: Json) -> Json:
        self._refuse(manifest["kind"])
        self.done.append(manifest["kind"])
        return manifest

    def _refuse(self, what: str) -> None:
        if what in self.refused:
            raise self.refused[what]


def carried_out(client: Client, *kinds: str) -> tuple[Event, ...]:
    made = tuple(
        {"kind": kind, "metadata": {"namespace": "llm", "name": "kimi", "ownerReferences": []}} for kind in kinds
    )
    decision = Decision(Eagle3DraftStatus(), apply=made, scale=(Scale("kimi-r1", 1),))
    return act(client, decision, namespace="llm", owner="uid-1", seen={})


def test_a_job_that_is_refused_stops_neither_the_service_nor_the_pods_of_a_rollback() -> None:
    client = RefusingClient(Job=FORBIDDEN)
    with pytest.raises(ApiError, match="exceeded quota"):
        carried_out(client, "Job", "Service")
    assert client.done == ["Service", "kimi-r1=1"]


@pytest.mark.parametrize(
    "client",
    [
        RefusingClient({"PodDisruptionBudget": {"metadata": {"name": "kimi"}}}),
        RefusingClient(getPodDisruptionBudget=FORBIDDEN),
        RefusingClient(PodDisruptionBudget=FORBIDDEN),
    ],
    ids=["somebody's own", "not to be looked at", "not to be made"],
)
def test_a_budget_that_cannot_be_had_stops_nothing_and_is_told_of(client: RefusingClient) -> None:
    (event,) = carried_out(client, "PodDisruptionBudget", "Service", "Job")
    assert client.done == ["Service", "kimi-r1=1", "Job"]
    assert (event.type, event.reason) == ("Warning", "BudgetLeftOut")


def test_a_server_that_does_not_answer_is_asked_again_for_the_budget() -> None:
    with pytest.raises(ApiError, match="no answer"):
        carried_out(RefusingClient(PodDisruptionBudget=AWAY), "PodDisruptionBudget")
