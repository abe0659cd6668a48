"""A stand-in for the nodes of a control plane that has none: it says in the pods' status what a kubelet would say.

No container runs. Jobs' pods end at once with the report of a stage that went well, servers' pods are ready at once. The
controllers, the garbage collector and the API server are real. What really runs in the pods is tested in tests/e2e.
"""

from collections.abc import Collection
from typing import Any

from eagle3_api.base import Model
from eagle3_api.conditions import Reason
from eagle3_api.jobs import CONFIG_ANNOTATION, JobConfig, JobEnvelope, ProbeConfig, Report, StageName
from eagle3_operator.manifests import names
from testcluster import AnyCluster
from unit.samples import RESULTS, measured

#: Containers of the operator's own pods.
OURS = frozenset({"stage", "server"})

MERGE_PATCH = "application/merge-patch+json"
WHEN = "2026-11-29T12:00:00Z"


class StandInKubelet:
    """Plays the kubelet for the pods of one namespace, whenever ``step`` is called."""

    def __init__(self, cluster: AnyCluster, namespace: str) -> None:
        self._cluster = cluster
        #: Where the servers of all pods are reached; nowhere without.
        self.address: str | None = None
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        #: UIDs of the Jobs that ran, by what they were made for.
        self._jobs: dict[str, set[str]] = {}

    def step(self, *, hold: Collection[StageName] = ()) -> None:
        """End the pods of Jobs, but for those of the stages to hold, and make servers ready."""
        for pod in self._cluster.request("GET", self._pods)["items"]:
            labels, metadata = pod["metadata"].get("labels") or {}, pod["metadata"]
            if pod["status"]["phase"] != "Pending" or "deletionTimestamp" in metadata:
                continue
            if names.STAGE_LABEL not in labels:
                self._say(pod, _running(self.address))
            elif labels[names.STAGE_LABEL] not in hold:
                config = JobEnvelope.model_validate_json(metadata["annotations"][CONFIG_ANNOTATION]).config
                self._say(pod, _ended(config))
                self._jobs.setdefault(config.model_dump_json(), set()).add(metadata["ownerReferences"][0]["uid"])

    def fail(self, pod: dict[str, Any], *, code: int, reason: Reason, message: str) -> None:
        """End a pod of a Job with the report of a stage that went wrong."""
        config = JobEnvelope.model_validate_json(pod["metadata"]["annotations"][CONFIG_ANNOTATION]).config
        report = Report(stage=StageName(config.stage), key=config.key, ok=False, reason=reason, message=message)
        ending = {"exitCode": code, "startedAt": WHEN, "finishedAt": WHEN, "message": report.dump()}
        self._say(pod, {"phase": "Failed", "containerStatuses": [{"ready": False, "state": {"terminated": ending}}]})

    def ran_twice(self) -> list[str]:
        """What more than one Job was made for and run."""
        return [config for config, jobs in self._jobs.items() if len(jobs) > 1]

    def _say(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        """Of every container that it does what is said of the one: where others are added, they end with it."""
        said = [
            {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
            | status["containerStatuses"][0]
            for container in pod["spec"]["containers"]
        ]
        for one in said:
            if one["name"] not in OURS and "terminated" in one["state"]:
                one["state"] = {"terminated": one["state"]["terminated"] | {"exitCode": 143, "message": ""}}
        made = status | {"containerStatuses": said}
        self._cluster.request("PATCH", f"{self._pods}/{pod['metadata']['name']}/status", {"status": made}, MERGE_PATCH)


def _running(address: str | None) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": WHEN}
    running = {"ready": True, "state": {"running": {"startedAt": WHEN}}}
    reached = {"podIP": address, "podIPs": [{"ip": address}]} if address else {}
    return {"phase": "Running", "conditions": [ready], "containerStatuses": [running], **reached}


def _ended(config: JobConfig) -> dict[str, Any]:
    report = Report(stage=StageName(config.stage), key=config.key, ok=True, result=_result(config).to_json())
    ending = {"exitCode": 0, "reason": "Completed", "startedAt": WHEN, "finishedAt": WHEN, "message": report.dump()}
    return {"phase": "Succeeded", "containerStatuses": [{"ready": False, "state": {"terminated": ending}}]}


def _result(config: JobConfig) -> Model:
    if isinstance(config, ProbeConfig):
        return measured() if config.baseline is None else measured(accept=2.7, speed=120.0)
    result: Model = RESULTS[StageName(config.stage)]
    return result
