"""A real Prometheus as a pod: Debian's binary, from the machine's /usr, scraping every pod that asks for it.

A pod asks by the usual annotations: `prometheus.io/scrape: "true"`, `prometheus.io/port`, and `prometheus.io/path` if
it is not /metrics. Its series carry the labels `namespace` and `pod`. A second container finds these pods (`discovery`).
"""

import urllib.parse
from dataclasses import dataclass
from typing import Any

import yaml

from testcluster import discovery
from testcluster.any_cluster import AnyCluster
from testcluster.wait import wait_for

NAME = "prometheus"
IMAGE = "kit.local/prometheus:1"
DISCOVERY, TARGETS = "/discovery.py", "/data/targets.json"
PORT = 9090
NOBODY = 65534
READY_SECONDS = 120


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus that is ready."""

    cluster: AnyCluster
    namespace: str
    service_ip: str

    @property
    def url(self) -> str:
        """Where pods reach it."""
        return f"http://{NAME}.{self.namespace}:{PORT}"

    @property
    def host_url(self) -> str:
        """Where this machine reaches it, if it has a route to Services (it has one to an embedded cluster's)."""
        return f"http://{self.service_ip}:{PORT}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query: one entry with `metric` and `value` for each series."""
        arguments = urllib.parse.urlencode({"query": expression})
        service = f"/api/v1/namespaces/{self.namespace}/services/{NAME}:{PORT}"
        answer = self.cluster.request("GET", f"{service}/proxy/api/v1/query?{arguments}")
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


def configuration(scrape_interval: str) -> str:
    """Prometheus's own configuration file. Which pods to scrape comes from `discovery`, with their labels."""
    discovered = {"job_name": "pods", "file_sd_configs": [{"files": [TARGETS]}]}
    times = {"scrape_interval": scrape_interval, "scrape_timeout": scrape_interval}
    return yaml.safe_dump({"global": times, "scrape_configs": [discovered]}, sort_keys=False)


def manifests(namespace: str, scrape_interval: str) -> list[dict[str, Any]]:
    """The objects of a Prometheus, in the order in which they are applied."""
    metadata = {"name": NAME, "namespace": namespace}
    cluster_name = f"{namespace}-{NAME}"
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": cluster_name},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": cluster_name},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": cluster_name},
            "subjects": [subject],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"prometheus.yml": configuration(scrape_interval)},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": {"app": NAME}, "ports": [{"port": PORT}]},
        },
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": _deployment()},
    ]


def _deployment() -> dict[str, Any]:
    def container(name: str, *command: str, **more: Any) -> dict[str, Any]:
        security = {
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = [{"name": "config", "mountPath": "/etc/prometheus"}, {"name": "data", "mountPath": "/data"}]
        common = {"securityContext": security, "volumeMounts": mounts}
        return {"name": name, "image": IMAGE, "command": list(command), **common, **more}

    server = container(
        NAME,
        "/usr/bin/prometheus",
        "--config.file=/etc/prometheus/prometheus.yml",
        "--storage.tsdb.path=/data/series",
        ports=[{"containerPort": PORT}],
        readinessProbe={"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 1},
    )
    finder = container("discovery", "/usr/bin/python3", DISCOVERY, TARGETS)
    annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT)}
    return {
        "selector": {"matchLabels": {"app": NAME}},
        "template": {
            "metadata": {"labels": {"app": NAME}, "annotations": annotations},
            "spec": {
                "serviceAccountName": NAME,
                "securityContext": {"runAsUser": NOBODY, "runAsGroup": NOBODY, "fsGroup": NOBODY},
                "terminationGracePeriodSeconds": 1,
                "containers": [server, finder],
                "volumes": [{"name": "config", "configMap": {"name": NAME}}, {"name": "data", "emptyDir": {}}],
            },
        },
    }


def deploy(cluster: AnyCluster, namespace: str = "monitoring", scrape_interval: str = "1s") -> Prometheus:
    """Runs a Prometheus and returns when it is ready."""
    cluster.image(IMAGE, add=[(discovery.__file__, DISCOVERY)])
    cluster.apply(*manifests(namespace, scrape_interval))
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/{NAME}"
    wait_for(
        f"Prometheus in {namespace} to be ready",
        READY_SECONDS,
        lambda: cluster.request("GET", deployment)["status"].get("readyReplicas"),
    )
    service = cluster.request("GET", f"/api/v1/namespaces/{namespace}/services/{NAME}")
    return Prometheus(cluster, namespace, service["spec"]["clusterIP"])
