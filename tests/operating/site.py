"""A namespace of a real API server in which objects are made, watched and waited for."""

from collections.abc import Callable, Collection
from typing import Any

from eagle3_api import API_VERSION, KIND, PLURAL
from eagle3_api.jobs import StageName
from operating.kubelet import MERGE_PATCH, StandInKubelet
from testcluster import AnyCluster, wait_for

Json = dict[str, Any]

#: A label that no node has. Where there are nodes, they then leave a pod to the stand-in for a kubelet.
NOWHERE = {"eagle3.dev/no-node-has-this": "true"}

#: How the scheduler says so, of nodes that do not fit and of none at all.
NO_NODE = "nodes are available|no nodes available"

GROUPS = {
    PLURAL: f"apis/{API_VERSION}",
    "jobs": "apis/batch/v1",
    "deployments": "apis/apps/v1",
    "poddisruptionbudgets": "apis/policy/v1",
    "jobsets": "apis/jobset.x-k8s.io/v1alpha2",
}


class Site:
    """A namespace with the claims that the objects name."""

    def __init__(self, cluster: AnyCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.kubelet = StandInKubelet(cluster, namespace)
        for name in ("features", "drafts"):
            size = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Ti"}}}
            self.apply("v1", "PersistentVolumeClaim", name, size)

    def apply(self, version: str, kind: str, name: str, spec: Json, **metadata: Any) -> None:
        named = {"name": name, "namespace": self.namespace, **metadata}
        self.cluster.apply({"apiVersion": version, "kind": kind, "metadata": named, "spec": spec})

    def create(self, name: str, spec: Json) -> None:
        """Create an object whose pods no node takes, where there are any: the stand-in for a kubelet has them."""
        placement = {"nodeSelector": NOWHERE} | (spec.get("placement") or {})
        self.apply(API_VERSION, KIND, name, spec | {"placement": placement})

    def path(self, kind: str, name: str = "") -> str:
        return f"/{GROUPS.get(kind, 'api/v1')}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def get(self, kind: str, name: str) -> Json:
        found: Json = self.cluster.request("GET", self.path(kind, name))
        return found

    def delete(self, kind: str, name: str) -> None:
        self.cluster.request("DELETE", self.path(kind, name))

    def all(self, kind: str) -> list[Json]:
        found: list[Json] = self.cluster.request("GET", self.path(kind))["items"]
        return found

    def jobs(self, name: str, stage: StageName) -> list[Json]:
        """The Jobs of one stage of an object."""
        return [job for job in self.all("jobs") if job["metadata"]["name"].startswith(f"{name}-{stage}-")]

    def events(self, name: str) -> list[Json]:
        """What was told about an object."""
        about = [(one, one["involvedObject"]) for one in self.all("events")]
        return [one for one, involved in about if (involved["kind"], involved["name"]) == (KIND, name)]

    def object(self, name: str) -> Json:
        return self.get(PLURAL, name)

    def poke(self, name: str, word: str) -> None:
        """Change something of one of the object's Jobs that means nothing: the object is looked at again."""
        job = next(job["metadata"]["name"] for job in self.all("jobs") if job["metadata"]["name"].startswith(name))
        self.cluster.request(
            "PATCH", self.path("jobs", job), {"metadata": {"annotations": {"poke": word}}}, MERGE_PATCH
        )

    def retry(self, name: str, what: str) -> None:
        """Ask for another try of a stage or a revision."""
        asked = {"metadata": {"annotations": {"eagle3.dev/retry": what}}}
        self.cluster.request("PATCH", self.path(PLURAL, name), asked, MERGE_PATCH)

    def until(
        self, what: str, check: Callable[[], Any], *, seconds: float = 60, hold: Collection[StageName] = ()
    ) -> Any:
        """Wait for something while the stand-in for the nodes goes on."""

        def stepped() -> Any:
            self.kubelet.step(hold=hold)
            return check()

        return wait_for(what, seconds, stepped, tolerate=(NotYetError,))

    def until_says(self, name: str, kind: str, reason: str, *, hold: Collection[StageName] = ()) -> Json:
        """Wait until a condition of the object has this reason, and return it."""

        def check() -> Json:
            said = condition(self.object(name), kind)
            if said.get("reason") != reason:
                raise NotYetError(str(said))
            return said

        said: Json = self.until(f"{kind} of {name} to say {reason}", check, hold=hold)
        return said

    def until_ready(self, name: str, status: str = "True") -> Json:
        """Wait until the object's Ready is so, and return the object."""

        def check() -> Json:
            obj = self.object(name)
            said = condition(obj, "Ready")
            if said.get("status") != status:
                raise NotYetError(f"{obj.get('status', {}).get('phase')}: {said}")
            return obj

        made: Json = self.until(f"{name} to be Ready={status}", check, seconds=120)
        return made


class NotYetError(Exception):
    """What is seen instead of what is waited for."""


def condition(obj: Json, kind: str) -> Json:
    """One condition of an object; empty if it is absent."""
    conditions = obj.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {})
