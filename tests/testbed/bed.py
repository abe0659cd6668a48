"""A test cluster with the product on it."""

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environment as sglang_environment
from image import recipe as sglang_image
from image import require_seen_by_pods
from kubernetes.client import ApiException

from testbed import images
from testbed.draft import Draft
from testcluster import prometheus
from testcluster.any_cluster import AnyCluster, ExternalCluster
from testcluster.provide import provided
from testcluster.wait import wait_for
from tiny.make import cached as tiny_target

NAMESPACE = "llm"
SYSTEM = "eagle3-system"
VOLUMES = ("models", "data", "features", "drafts")
CHART = images.ROOT / "helm" / "eagle3-operator"
METRICS_PORT = 9095
RECONCILES = "eagle3_operator_reconciles_total"
DRAFTS = "/apis/eagle3.dev/v1alpha1/namespaces/{namespace}/eagle3drafts"


def say(text: str) -> None:
    """A line of progress on stderr, with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Testbed:
    """The product on a cluster: the operator runs, the claims are there, the target and the data lie on them."""

    __test__ = False  # not a test class, whatever its name looks like

    cluster: AnyCluster
    namespace: str
    prometheus_url: str

    @classmethod
    @contextlib.contextmanager
    def up(cls, *, gpus: int = 2) -> Iterator["Testbed"]:
        """Everything from nothing; what was started ends with the context, what was built is kept for the next time."""
        require_seen_by_pods()
        say("the CPU environment of SGLang")
        recipe = sglang_image()
        say("the cluster")
        with provided(node=True, gpus=gpus, share=recipe.share) as cluster:
            yield cls.on(cluster)

    @classmethod
    def on(cls, cluster: AnyCluster) -> "Testbed":
        """Everything on a cluster with a node that shares what an SGLang image needs; again after a change of the code."""
        if not isinstance(cluster, ExternalCluster):  # whose images and volumes its owner provides
            _make_images(cluster)
            say("the tiny target and its conversations")
            _fill(cluster, tiny_target(str(sglang_environment.ensure() / "bin" / "python3")))
        say("Prometheus")
        server = prometheus.deploy(cluster)
        with contextlib.suppress(ApiException):
            cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for volume in VOLUMES:
            cluster.claim(NAMESPACE, volume)
        bed = cls(cluster, NAMESPACE, server.url)
        bed.install()
        return bed

    def install(self) -> None:
        """The chart, by real helm, with the test's images; returns when the operator is ready, anew if its code is another."""
        say("the operator, by helm")
        values = {
            "image.repository": images.OPERATOR.rpartition(":")[0],
            "image.tag": images.OPERATOR.rpartition(":")[2],
            "draftImage.repository": images.DRAFT.rpartition(":")[0],
            "draftImage.tag": images.DRAFT.rpartition(":")[2],
            "prometheus.servers.default.url": self.prometheus_url,
            "operator.pollSeconds": "1",
            "operator.surgePatienceSeconds": "10",
            # The image's name is the same whatever is in it
            r"podAnnotations.kit\.local/code": images.wheel().name,
        }
        settings = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        self.cluster.helm(
            *("upgrade", "--install", "eagle3", str(CHART), "--namespace", SYSTEM, "--create-namespace"),
            *("--wait", "--timeout", "3m", *settings),
        )

    # ------------------------------------------------------------------------------------------------- objects

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """kubectl in the object's namespace."""
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, stdin=stdin)

    def create(self, manifest: dict[str, Any]) -> None:
        """``kubectl apply``, as a user would."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def edit(self, name: str, **sections: Any) -> None:
        """Merge into the sections of an object's spec."""
        self.kubectl("patch", "e3d", name, "--type", "merge", "--patch", json.dumps({"spec": sections}))

    def get(self, name: str) -> Draft:
        """The object as it is now."""
        path = DRAFTS.format(namespace=self.namespace)
        return Draft(self.cluster.request("GET", f"{path}/{name}"))

    def wait(self, name: str, check: Callable[[Draft], bool], *, seconds: float, what: str = "") -> Draft:
        """Wait until the object is as it should be; one that stalls against expectation ends the wait at once."""
        last: list[Draft] = []

        def good() -> bool:
            draft = self.get(name)
            last[:] = [draft]
            if check(draft):
                return True
            if draft.stalled:
                raise UnexpectedlyStalledError(f"{name} stalled while waiting for {what or 'it'}:\n{draft}")
            return False

        try:
            wait_for(what or f"e3d/{name}", seconds, good)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{last[0] if last else ''}\n{self.pods()}") from None
        return last[0]

    def pods(self) -> str:
        """What a person would look at first."""
        return self.kubectl("get", "jobs,pods,deployments,services", "-o", "wide")

    def folder(self, volume: str) -> Path:
        """A volume's folder on this machine."""
        return self.cluster.volume_folder(volume)

    def service_url(self, name: str) -> str:
        """Where this machine reaches a Service of the object's namespace."""
        found = self.cluster.request("GET", f"/api/v1/namespaces/{self.namespace}/services/{name}")
        return f"http://{found['spec']['clusterIP']}:{found['spec']['ports'][0]['port']}"

    def kill_operator(self) -> None:
        """As by a node that dies: no grace, no farewell."""
        self.cluster.kubectl(
            *("--namespace", SYSTEM, "delete", "pod", "--all", "--grace-period=0", "--force", "--wait=false")
        )

    def wait_for_operator(self) -> None:
        """Wait until a killed operator is back and has looked at every object anew."""

        def back() -> bool:
            pods = self._operator_pods()
            conditions = pods[0]["status"].get("conditions", []) if len(pods) == 1 else []
            return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

        wait_for("the operator to be back", 90, back)
        count = len(self.cluster.request("GET", DRAFTS.format(namespace=self.namespace))["items"])
        wait_for("the operator to have looked at every object", 60, lambda: self._reconciles() >= count)

    def _operator_pods(self) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = self.cluster.request("GET", f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
        return pods

    def _reconciles(self) -> float:
        """How many reconciles the operator that runs now has ended, by its own metrics."""
        (pod,) = self._operator_pods()
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod['metadata']['name']}:{METRICS_PORT}/proxy/metrics"
        lines = self.cluster.request("GET", path).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(RECONCILES))


class UnexpectedlyStalledError(Exception):
    """The object says that nothing more will happen, and that was not what the test waits for."""


def _make_images(cluster: AnyCluster) -> None:
    say("the images")
    for name, folders in images.ours():
        variables = {"PYTHONPATH": images.PLACE, "PYTHONDONTWRITEBYTECODE": "1"}
        cluster.image(name, add=folders, entrypoint=["python3"], env=variables)
    recipe = sglang_image()
    cluster.image(recipe.name, add=recipe.add, env=recipe.env, path=recipe.path)


def _fill(cluster: AnyCluster, target: Path) -> None:
    """The target and the data onto their volumes; copies, because the kubelet changes their group."""
    for volume in ("models", "data"):
        shutil.copytree(target / volume, cluster.volume_folder(volume), dirs_exist_ok=True)
