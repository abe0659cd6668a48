"""The chart, rendered by real helm and installed into a real API server."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_operator.settings import PrometheusServer, Settings
from testcluster import AnyCluster, build, wait_for

CHART = Path(__file__).parents[2] / "helm" / "eagle3-operator"
GOLDEN = Path(__file__).parents[1] / "unit" / "manifests" / "golden"
DEFINITION = "crd/eagle3drafts.eagle3.dev"
Manifest = dict[str, Any]


def helm(*arguments: str) -> str:
    """What helm prints; RuntimeError with its words if it refuses."""
    done = subprocess.run([build.binary("helm"), *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def all_rendered(*values: str) -> list[Manifest]:
    """The chart's manifests."""
    sets = [word for value in values for word in ("--set", value)]
    text = helm("template", "e3", str(CHART), "--namespace", "system", "--kube-version", "1.34.0", *sets)
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def rendered(*values: str) -> dict[str, Manifest]:
    """The chart's manifests by kind; of several of one kind the operator's own."""
    others = ("-edit", "-view", "-train", "-servers")
    return {m["kind"]: m for m in all_rendered(*values) if not m["metadata"]["name"].endswith(others)}


def container(manifests: dict[str, Manifest]) -> Manifest:
    (only,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def settings(manifests: dict[str, Manifest]) -> Settings:
    return Settings.model_validate(yaml.safe_load(manifests["ConfigMap"]["data"]["settings.yaml"]))


def test_helm_finds_nothing_to_say_about_the_chart() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_the_chart_brings_the_definition_as_generated_and_keeps_it() -> None:
    definition = rendered()["CustomResourceDefinition"]
    assert definition["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert definition["metadata"].pop("labels")["app.kubernetes.io/managed-by"] == "Helm"
    assert definition == yaml.safe_load((CHART / "files" / "crd.yaml").read_text())


def test_the_definition_can_be_left_out_or_let_go() -> None:
    assert "CustomResourceDefinition" not in rendered("crds.enabled=false")
    assert "annotations" not in rendered("crds.keep=false")["CustomResourceDefinition"]["metadata"]


def test_one_operator_runs_and_never_two_at_a_time() -> None:
    spec = rendered()["Deployment"]["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_the_operator_runs_without_privileges_on_a_read_only_file_system() -> None:
    manifests = rendered()
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(manifests)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert all("hostPath" not in volume for volume in pod["volumes"])


def test_without_values_the_operator_reads_its_own_defaults() -> None:
    assert settings(rendered()) == Settings(draft_image="eagle3-operator/draft:0.1.0")


def test_values_reach_the_operators_settings() -> None:
    read = settings(
        rendered(
            "draftImage.repository=registry.example.com/draft",
            "draftImage.tag=v2",
            "draftImage.pullPolicy=Always",
            "watchNamespace=llm",
            "operator.workers=3",
            "operator.pollSeconds=5",
            "operator.surgePatienceSeconds=30",
            "operator.resyncSeconds=60",
            "metrics.port=9999",
            "allowedServiceAccounts={trainer,server}",
            "prometheus.servers.default.url=http://prometheus.monitoring:9090",
            "prometheus.servers.tenant.url=https://metrics.example.com/tenant",
            "prometheus.servers.tenant.timeoutSeconds=2",
            "prometheus.servers.tenant.tokenSecret.name=metrics-token",
            "prometheus.servers.tenant.tokenSecret.key=token",
        )
    )
    assert read == Settings(
        draft_image="registry.example.com/draft:v2",
        image_pull_policy="Always",
        namespace="llm",
        workers=3,
        poll_seconds=5,
        surge_patience_seconds=30,
        resync_seconds=60,
        metrics_port=9999,
        allowed_service_accounts=["trainer", "server"],
        prometheus={
            "default": PrometheusServer(url="http://prometheus.monitoring:9090"),
            "tenant": PrometheusServer(
                url="https://metrics.example.com/tenant",
                timeout_seconds=2,
                token_file="/etc/eagle3/prometheus/tenant/token",
            ),
        },
    )


def test_a_prometheus_token_is_mounted_where_the_settings_say() -> None:
    manifests = rendered(
        "prometheus.servers.tenant.url=https://metrics.example.com",
        "prometheus.servers.tenant.tokenSecret.name=metrics-token",
        "prometheus.servers.tenant.tokenSecret.key=bearer",
    )
    (mount,) = (mount for mount in container(manifests)["volumeMounts"] if mount["name"] == "prometheus-tenant")
    assert settings(manifests).prometheus["tenant"].token_file == f"{mount['mountPath']}/token"
    volumes = manifests["Deployment"]["spec"]["template"]["spec"]["volumes"]
    (volume,) = (volume for volume in volumes if volume["name"] == "prometheus-tenant")
    assert volume["secret"] == {"secretName": "metrics-token", "items": [{"key": "bearer", "path": "token"}]}


def test_changed_settings_restart_the_operator() -> None:
    def checksum(*values: str) -> str:
        template = rendered(*values)["Deployment"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/settings"])

    assert checksum() == checksum("image.tag=v2")
    assert checksum() != checksum("operator.workers=9")


def test_its_ports_are_those_that_the_settings_and_the_probes_name() -> None:
    manifests = rendered("metrics.port=9999")
    ports = {port["name"]: port["containerPort"] for port in container(manifests)["ports"]}
    assert ports == {"health": 8080, "metrics": 9999}
    annotations = manifests["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "9999"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(manifests)[probe]["httpGet"] == {"path": "/healthz", "port": "health"}


@pytest.mark.parametrize("values", [(), ("watchNamespace=llm",)])
def test_no_rule_reads_secrets_or_reaches_for_everything(values: tuple[str, ...]) -> None:
    manifests = rendered(*values)
    rules = manifests["Role" if values else "ClusterRole"]["rules"]
    for rule in rules:
        assert "*" not in rule["resources"] + rule["verbs"] + rule["apiGroups"]
        assert "secrets" not in rule["resources"]
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
    claims = next(rule for rule in rules if "persistentvolumeclaims" in rule["resources"])
    assert "delete" not in claims["verbs"]


def test_an_operator_of_one_namespace_has_no_right_outside_it() -> None:
    manifests = rendered("watchNamespace=llm", "rbac.aggregateToUserRoles=false")
    assert manifests["Role"]["metadata"]["namespace"] == "llm"
    assert manifests["RoleBinding"]["metadata"]["namespace"] == "llm"
    assert not manifests.keys() & {"ClusterRole", "ClusterRoleBinding"}


def test_a_pod_monitor_selects_the_operators_pod() -> None:
    assert "PodMonitor" not in rendered()
    manifests = rendered("podMonitor.enabled=true", "podMonitor.labels.release=prometheus")
    monitor, pod = manifests["PodMonitor"], manifests["Deployment"]["spec"]["template"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "metrics", "interval": "30s"}]


def test_another_pod_monitor_selects_the_pods_that_train() -> None:
    monitors = [m for m in all_rendered("podMonitor.enabled=true") if m["kind"] == "PodMonitor"]
    (monitor,) = (m for m in monitors if m["metadata"]["name"].endswith("-train"))
    pod = yaml.safe_load((GOLDEN / "train-runs-on-the-CPU.yaml").read_text())["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (port,) = pod["spec"]["containers"][0]["ports"]
    assert endpoint["port"] == port["name"]
    assert set(monitor["spec"]["podTargetLabels"]) <= set(pod["metadata"]["labels"])
    assert monitor["spec"]["namespaceSelector"] == {"any": True}


def test_another_pod_monitor_selects_the_servers_of_revisions() -> None:
    monitors = [m for m in all_rendered("podMonitor.enabled=true") if m["kind"] == "PodMonitor"]
    (monitor,) = (m for m in monitors if m["metadata"]["name"].endswith("-servers"))
    server = yaml.safe_load((GOLDEN / "a-draft-revision-speculates-with-EAGLE3.yaml").read_text())
    pod, selector = server["spec"]["template"], monitor["spec"]["selector"]
    assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (expression,) = selector["matchExpressions"]
    assert expression["operator"] == "Exists"
    assert expression["key"] in pod["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (port,) = pod["spec"]["containers"][0]["ports"]
    assert endpoint["port"] == port["name"]
    assert monitor["spec"]["namespaceSelector"] == {"any": True}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("replicas=2", "at '/replicas': value must be 1"),
        ("imag.tag=v2", "additional properties 'imag' not allowed"),
        ("operator.workers=0", "at '/operator/workers': minimum: got 0, want 1"),
        ("operator.logLevel=loud", "at '/operator/logLevel'"),
        ("image.pullPolicy=Sometimes", "at '/image/pullPolicy'"),
        ("metrics.port=8080", "at '/metrics/port'"),
        ("prometheus.servers.default.url=prometheus:9090", "at '/prometheus/servers/default/url'"),
        ("prometheus.servers.default.timeoutSeconds=5", "missing property 'url'"),
        ("prometheus.servers.Default.url=http://prometheus:9090", "'Default'"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(value: str, words: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        rendered(value)
    assert words in str(refused.value)


@dataclass(frozen=True)
class Release:
    """The chart, installed."""

    cluster: AnyCluster
    name: str
    namespace: str

    def may(self, verb: str, resource: str) -> bool:
        """Whether the operator may do that in every namespace; ``resource`` as ``group/resource[/subresource]``."""
        group, kind, *below = resource.split("/")
        attributes = {"verb": verb, "group": group, "resource": kind, "subresource": "".join(below)}
        account = f"system:serviceaccount:{self.namespace}:{self.name}-eagle3-operator"
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": account, "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.cluster.request("POST", path, review)["status"]["allowed"])


@pytest.fixture
def release(api_server: AnyCluster, namespace: str) -> Iterator[Release]:
    name = namespace[-6:]
    # The kind is there already in the tests' cluster, put by somebody else.
    api_server.helm("install", f"x{name}", str(CHART), "--namespace", namespace, "--take-ownership")
    yield Release(api_server, f"x{name}", namespace)
    if f"x{name}" in api_server.helm("list", "--short", "--namespace", namespace):
        api_server.helm("uninstall", f"x{name}", "--namespace", namespace)


ALLOWED = """
    list eagle3.dev/eagle3drafts        update eagle3.dev/eagle3drafts/status    update eagle3.dev/eagle3drafts/finalizers
    create batch/jobs                   delete batch/jobs                        watch /pods
    get /pods/log                       patch apps/deployments                   patch apps/deployments/scale
    create /services                    create /persistentvolumeclaims           create /events
    create policy/poddisruptionbudgets  patch policy/poddisruptionbudgets        get policy/poddisruptionbudgets
    list jobset.x-k8s.io/jobsets        create jobset.x-k8s.io/jobsets           delete jobset.x-k8s.io/jobsets
"""
FORBIDDEN = """
    get /secrets                        list /secrets                            get /configmaps
    create /pods                        create /pods/exec                        delete /persistentvolumeclaims
    update eagle3.dev/eagle3drafts      delete eagle3.dev/eagle3drafts           get /nodes
    create rbac.authorization.k8s.io/clusterroles
"""


def test_the_installed_operator_may_do_its_work_and_no_more(release: Release) -> None:
    wait_for("the rights to be granted", 10, lambda: release.may("list", "eagle3.dev/eagle3drafts"))
    allowed, forbidden = (list(zip(*[iter(words.split())] * 2, strict=True)) for words in (ALLOWED, FORBIDDEN))
    assert [question for question in allowed if not release.may(*question)] == []
    assert [question for question in forbidden if release.may(*question)] == []


def test_uninstalling_keeps_the_kind_and_its_objects(release: Release) -> None:
    cluster, namespace = release.cluster, release.namespace
    example = CHART.parents[1] / "examples" / "minimal.yaml"
    cluster.kubectl("apply", "--namespace", namespace, "-f", str(example))
    cluster.helm("uninstall", release.name, "--namespace", namespace)
    assert cluster.kubectl("get", "deployments", "--namespace", namespace, "-o", "name") == ""
    assert "llama-8b" in cluster.kubectl("get", "e3d", "--namespace", namespace, "-o", "name")
    cluster.kubectl("get", DEFINITION)


def test_the_chart_upgrades_itself_and_the_definition(release: Release) -> None:
    arguments = ("--namespace", release.namespace, "--set", "operator.workers=2")
    release.cluster.helm("upgrade", release.name, str(CHART), *arguments)
    history = release.cluster.helm("history", release.name, "--namespace", release.namespace)
    assert history.splitlines()[-1].startswith("2")
    assert "deployed" in history.splitlines()[-1]
