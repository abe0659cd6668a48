"""The chart, rendered by real helm and installed into a real API server."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml

from eagle3_operator.metrics import Metrics
from eagle3_operator.settings import PrometheusServer, Settings
from testcluster import AnyCluster, build, system, wait_for

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


def test_every_value_is_explained_and_used() -> None:
    text = (CHART / "values.yaml").read_text()
    assert [block for block in text.split("\n\n") if not re.search(r"^ *# \w", block, re.MULTILINE)] == []
    templates = "".join(template.read_text() for template in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([\w.]+)", templates))
    assert [
        path for path in leaves(yaml.safe_load(text)) if not any(f"{path}.".startswith(f"{one}.") for one in used)
    ] == []


def test_the_chart_brings_the_definition_as_generated_and_keeps_it() -> None:
    definition = rendered()["CustomResourceDefinition"]
    assert definition["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert definition["metadata"].pop("labels")["app.kubernetes.io/managed-by"] == "Helm"
    assert definition == yaml.safe_load((CHART / "files" / "crd.yaml").read_text())


def test_the_definition_can_be_left_out_or_let_go() -> None:
    assert "CustomResourceDefinition" not in rendered("crds.enabled=false")
    assert "annotations" not in rendered("crds.keep=false")["CustomResourceDefinition"]["metadata"]


def test_the_command_that_the_first_page_shows_installs_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHART.parents[1])
    (shown,) = re.findall(r"^helm install (.*?)^```", Path("README.md").read_text(), re.MULTILINE | re.DOTALL)
    words = [word for word in shlex.split(shown.replace("\\\n", " "), comments=True) if word != "--create-namespace"]
    made = [one for one in yaml.safe_load_all(helm("template", *words, "--kube-version", "1.34.0")) if one]
    by_kind = {one["kind"]: one for one in made if one["kind"] in ("ConfigMap", "Deployment")}
    assert container(by_kind)["image"] == "registry.example.com/eagle3/operator:0.1.0"
    assert settings(by_kind).draft_image == "registry.example.com/eagle3/draft:0.1.0"
    assert settings(by_kind).prometheus == {"default": PrometheusServer(url="http://prometheus.monitoring:9090")}


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


def test_a_cluster_may_choose_the_user_of_pods() -> None:
    assert settings(rendered("pods.user=null")).user is None


def test_values_reach_the_operators_settings() -> None:
    read = settings(
        rendered(
            "draftImage.repository=registry.example.com/draft",
            "draftImage.tag=v2",
            "pods.imagePullPolicy=Always",
            "pods.user=1000",
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
            "prometheus.servers.tenant.caConfigMap.name=service-ca",
            "prometheus.servers.tenant.caConfigMap.key=service-ca.crt",
        )
    )
    assert read == Settings(
        draft_image="registry.example.com/draft:v2",
        image_pull_policy="Always",
        user=1000,
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
                ca_file="/etc/eagle3/prometheus-ca/tenant/ca.crt",
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


def test_the_authority_of_a_prometheus_is_mounted_where_the_settings_say() -> None:
    manifests = rendered(
        "prometheus.servers.tenant.url=https://metrics.example.com",
        "prometheus.servers.tenant.caConfigMap.name=service-ca",
        "prometheus.servers.tenant.caConfigMap.key=service-ca.crt",
    )
    (mount,) = (mount for mount in container(manifests)["volumeMounts"] if mount["name"] == "ca-tenant")
    assert settings(manifests).prometheus["tenant"].ca_file == f"{mount['mountPath']}/ca.crt"
    volumes = manifests["Deployment"]["spec"]["template"]["spec"]["volumes"]
    (volume,) = (volume for volume in volumes if volume["name"] == "ca-tenant")
    assert volume["configMap"] == {"name": "service-ca", "items": [{"key": "service-ca.crt", "path": "ca.crt"}]}


def test_no_two_volumes_of_prometheus_servers_have_one_name() -> None:
    read = ("a.caConfigMap", "a-ca.tokenSecret", "ca-a.tokenSecret", "ca-a.caConfigMap")
    manifests = rendered(
        *(f"prometheus.servers.{name}.url=https://metrics.example.com" for name in ("a", "a-ca", "ca-a")),
        *(f"prometheus.servers.{one}.{field}={field}" for one in read for field in ("name", "key")),
    )
    volumes = [volume["name"] for volume in manifests["Deployment"]["spec"]["template"]["spec"]["volumes"]]
    assert len(set(volumes)) == len(volumes) == 2 + len(read)
    assert sorted(mount["name"] for mount in container(manifests)["volumeMounts"]) == sorted(volumes)


def test_images_are_pinned_by_their_digests() -> None:
    digest = f"sha256:{'a' * 64}"
    manifests = rendered("image.tag=v2", f"image.digest={digest}", f"draftImage.digest={digest}")
    assert container(manifests)["image"] == f"eagle3-operator/operator@{digest}"
    assert settings(manifests).draft_image == f"eagle3-operator/draft@{digest}"


#: Values with which the chart makes all that it can.
EVERY_KIND = ("podMonitor.enabled=true", "prometheusRule.enabled=true", "networkPolicy.enabled=true")


def test_a_label_of_the_platforms_is_on_all_that_the_chart_makes_and_selects_nothing() -> None:
    made = all_rendered("commonLabels.team=llm", *EVERY_KIND)
    assert [one["kind"] for one in made if one["metadata"]["labels"].get("team") != "llm"] == []
    deployment = next(one for one in made if one["kind"] == "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"]["team"] == "llm"
    assert "team" not in deployment["spec"]["selector"]["matchLabels"], "which nobody could change later"


def test_a_label_that_is_given_twice_stands_once_and_as_the_narrower_says() -> None:
    narrower = ("podLabels.team=pods", "podMonitor.labels.team=monitors", "prometheusRule.labels.team=rules")
    sets = [word for value in ("commonLabels.team=llm", *narrower, *EVERY_KIND) for word in ("--set", value)]
    text = helm("template", "e3", str(CHART), "--kube-version", "1.34.0", *sets)
    labels = {
        re.search(r"^kind: (\w+)", one, re.MULTILINE)[1]: re.findall(r"^ +team: (\w+)", one, re.MULTILINE)  # type: ignore[index]
        for one in text.split("\n---\n")
    }
    own = {"Deployment": ["llm", "pods"], "PodMonitor": ["monitors"], "PrometheusRule": ["rules"]}
    assert labels == {kind: own.get(kind, ["llm"]) for kind in labels}
    assert own.keys() < labels.keys()


def test_a_cluster_that_chooses_users_itself_is_left_to() -> None:
    chosen = [f"podSecurityContext.{field}=null" for field in ("runAsUser", "runAsGroup", "fsGroup")]
    pod = rendered(*chosen)["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_where_policies_are_asked_for_only_metrics_are_let_in() -> None:
    assert "NetworkPolicy" not in rendered()
    (rule,) = rendered("networkPolicy.enabled=true")["NetworkPolicy"]["spec"]["ingress"]
    assert rule == {"ports": [{"port": "metrics", "protocol": "TCP"}]}
    one = "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring"
    spec = rendered("networkPolicy.enabled=true", one)["NetworkPolicy"]["spec"]
    assert spec["ingress"][0]["from"] == [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]
    assert spec["policyTypes"] == ["Ingress"]


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


#: Every right of the operator: what one of its requests needs, and nothing else. It has none to read Secrets, to make pods itself,
#: or to change what users write.
RIGHTS = {
    "eagle3.dev/eagle3drafts": "get list watch",
    "eagle3.dev/eagle3drafts/status": "update",
    "eagle3.dev/eagle3drafts/finalizers": "update",
    "batch/jobs": "create delete get list patch watch",
    "jobset.x-k8s.io/jobsets": "create delete get list patch",
    "/pods": "list watch",
    "/pods/log": "get",
    "apps/deployments": "create delete get list patch watch",
    "apps/deployments/scale": "patch",
    "/services": "create delete get list patch watch",
    "policy/poddisruptionbudgets": "create delete get patch",
    "/persistentvolumeclaims": "create delete get patch",
    "/events": "create patch",
}
RIGHTS_EVERYWHERE = {"/namespaces": "list watch", "apiextensions.k8s.io/customresourcedefinitions": "list watch"}


@pytest.mark.parametrize(
    ("values", "rights"),
    [((), RIGHTS | RIGHTS_EVERYWHERE), (("watchNamespace=llm",), RIGHTS)],
    ids=["all namespaces", "one namespace"],
)
def test_the_operator_has_these_rights_and_no_others(values: tuple[str, ...], rights: dict[str, str]) -> None:
    given = {
        f"{group}/{resource}": " ".join(sorted(rule["verbs"]))
        for rule in rendered(*values)["Role" if values else "ClusterRole"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert given == rights


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


OBJECT = 'eagle3_operator_object_phase{eagle3_namespace="llm",eagle3_name="kimi",phase="%s"}'
QUEUE = 'eagle3_operator_queue_length{pod="operator"}'
FAILED = 'eagle3_operator_errors_total{type="ApiError"}'
#: Series as promtool writes them (one sample a minute), and the alerts that there are at the end of an hour.
FIRING: dict[str, tuple[dict[str, str], list[dict[str, str]]]] = {
    "all is well": ({OBJECT % "Serving": "1x60", QUEUE: "0 3 0 3 0x56", FAILED: "0x30 1x30"}, []),
    "an object is stuck": (
        {OBJECT % "Serving": "1x30 _x30", OBJECT % "Stalled": "_x30 1x30", QUEUE: "0x60"},
        [
            {
                "alertname": "Eagle3DraftNeedsAttention",
                "phase": "Stalled",
                "eagle3_namespace": "llm",
                "eagle3_name": "kimi",
                "summary": "Eagle3Draft llm/kimi is Stalled",
            }
        ],
    ),
    "an object was stuck": ({OBJECT % "Stalled": "1x30 _x30", OBJECT % "Serving": "_x30 1x30", QUEUE: "0x60"}, []),
    "the operator is gone": (
        {QUEUE: "0x30 _x30"},
        [{"alertname": "Eagle3OperatorAbsent", "summary": "The operator of Eagle3Drafts tells nothing"}],
    ),
    "it fails": (
        {QUEUE: "0x60", FAILED: "0+1x60"},
        [
            {
                "alertname": "Eagle3OperatorFailing",
                "type": "ApiError",
                "summary": "Reconciles fail again and again with ApiError",
            }
        ],
    ),
    "it is behind": (
        {QUEUE: "7x60"},
        [
            {
                "alertname": "Eagle3OperatorBehind",
                "pod": "operator",
                "summary": "Objects have waited for the operator for a quarter of an hour",
            }
        ],
    ),
}


def test_an_alert_fires_when_its_time_has_come_and_not_otherwise(tmp_path: Path) -> None:
    """promtool reads the rules that the chart renders, and evaluates each case over an hour."""
    made = rendered("prometheusRule.enabled=true", "prometheusRule.labels.release=prometheus")["PrometheusRule"]
    assert made["metadata"]["labels"]["release"] == "prometheus"
    rules = made["spec"]["groups"][0]["rules"]
    for rule in rules:
        assert rule["annotations"].pop("description")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(made["spec"]))

    def expected(name: str, alerts: list[dict[str, str]]) -> list[Manifest]:
        found = ({**alert, "severity": "warning"} for alert in alerts if alert["alertname"] == name)
        return [{"exp_annotations": {"summary": labels.pop("summary")}, "exp_labels": labels} for labels in found]

    tests = [
        {
            "name": case,
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [
                {"eval_time": "1h", "alertname": rule["alert"], "exp_alerts": expected(rule["alert"], alerts)}
                for rule in rules
            ],
        }
        for case, (series, alerts) in FIRING.items()
    ]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    words = [system.promtool(), "test", "rules", "test.yaml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_are_over_metrics_that_the_operator_tells_and_stand_in_the_runbook() -> None:
    rules = rendered("prometheusRule.enabled=true")["PrometheusRule"]["spec"]["groups"][0]["rules"]
    metrics = Metrics()
    metrics.phase("llm", "kimi", "Stalled")
    metrics.failed(ValueError())
    told = prometheus_client.generate_latest(metrics.registry).decode()
    runbook = (CHART.parents[1] / "docs" / "runbook.md").read_text()
    for rule in rules:
        (name,) = re.findall(r"eagle3_operator_\w+", rule["expr"])
        assert re.search(rf"^{name}[ {{]", told, re.MULTILINE), name
        assert f"| `{rule['alert']}` |" in runbook


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("replicas=2", "at '/replicas': value must be 1"),
        ("imag.tag=v2", "additional properties 'imag' not allowed"),
        ("operator.workers=0", "at '/operator/workers': minimum: got 0, want 1"),
        ("operator.logLevel=loud", "at '/operator/logLevel'"),
        ("image.pullPolicy=Sometimes", "at '/image/pullPolicy'"),
        ("draftImage.pullPolicy=Always", "at '/draftImage/pullPolicy'"),
        ("pods.imagePullPolicy=Sometimes", "at '/pods/imagePullPolicy'"),
        ("pods.user=0", "at '/pods/user': minimum: got 0, want 1"),
        ("metrics.port=8080", "at '/metrics/port'"),
        ("prometheus.servers.default.url=prometheus:9090", "at '/prometheus/servers/default/url'"),
        ("prometheus.servers.default.timeoutSeconds=5", "missing property 'url'"),
        ("image.digest=latest", "at '/image/digest'"),
        (r"commonLabels.app\.kubernetes\.io/managed-by=Flux", "'app.kubernetes.io/managed-by'"),
        (r"podLabels.app\.kubernetes\.io/name=a", "'app.kubernetes.io/name'"),
        (r"podLabels.helm\.sh/chart=a", "'helm.sh/chart'"),
        (r"podMonitor.labels.app\.kubernetes\.io/instance=a", "'app.kubernetes.io/instance'"),
        ("prometheus.servers.Default.url=http://prometheus:9090", "'Default'"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(value: str, words: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        rendered(value)
    assert words in str(refused.value)


#: Each value of the chart, set to something else than its default.
EVERY_VALUE: Manifest = {
    "image": {
        "repository": "registry.example.com/operator",
        "tag": "v2",
        "digest": f"sha256:{'a' * 64}",
        "pullPolicy": "Always",
    },
    "draftImage": {
        "repository": "registry.example.com/draft",
        "tag": "v2",
        "digest": f"sha256:{'b' * 64}",
    },
    "pods": {"imagePullPolicy": "Never", "user": 1000},
    "imagePullSecrets": [{"name": "registry"}],
    "nameOverride": "drafts",
    "fullnameOverride": "the-drafts",
    "watchNamespace": "default",
    "allowedServiceAccounts": ["trainer"],
    "prometheus": {
        "servers": {
            "default": {"url": "http://prometheus:9090"},
            "tenant": {
                "url": "https://metrics.example.com/tenant",
                "timeoutSeconds": 2,
                "tokenSecret": {"name": "metrics-token", "key": "token"},
                "caConfigMap": {"name": "metrics-ca", "key": "ca.crt"},
            },
        }
    },
    "operator": {"logLevel": "debug", "workers": 3, "resyncSeconds": 60, "pollSeconds": 5, "surgePatienceSeconds": 30},
    "crds": {"enabled": True, "keep": False},
    "serviceAccount": {"create": True, "name": "drafts", "annotations": {"example.com/role": "drafts"}},
    "rbac": {"create": True, "aggregateToUserRoles": False},
    "metrics": {"port": 9999, "scrapeAnnotations": False},
    "podMonitor": {"enabled": True, "interval": "1m", "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
    },
    "commonLabels": {"cost-center": "llm"},
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}],
    "podSecurityContext": {
        "runAsNonRoot": False,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "Unconfined"},
    },
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "podAnnotations": {"example.com/team": "llm"},
    "podLabels": {"team": "llm"},
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "control", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]
            }
        }
    },
}


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The values that can be set, by their dotted paths; what the chart leaves empty is one."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path


@pytest.mark.parametrize("everything", [False, True], ids=["defaults", "every value set"])
def test_a_real_api_server_takes_what_the_chart_renders(
    api_server: AnyCluster, namespace: str, tmp_path: Path, everything: bool
) -> None:
    """In strict validation: no field that it does not know. The Prometheus operator's kinds are not there to ask."""
    known = list(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    given = list(leaves(EVERY_VALUE))
    assert [path for path in known if not any(f"{one}.".startswith(f"{path}.") for one in given)] == []
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(EVERY_VALUE if everything else {}))
    text = helm(
        "template", "e3", str(CHART), "--namespace", namespace, "--kube-version", "1.34.0", "--values", str(file)
    )
    manifests = [one for one in yaml.safe_load_all(text) if one]
    ours = [one for one in manifests if not one["apiVersion"].startswith("monitoring.coreos.com/")]
    assert len(manifests) - len(ours) == (4 if everything else 0)
    said = api_server.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(ours, sort_keys=False)
    )
    assert said.count("(server dry run)") == len(ours)


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
    delete /persistentvolumeclaims      get /services                            list /pods
    create policy/poddisruptionbudgets  patch policy/poddisruptionbudgets        get policy/poddisruptionbudgets
    list jobset.x-k8s.io/jobsets        create jobset.x-k8s.io/jobsets           delete jobset.x-k8s.io/jobsets
"""
FORBIDDEN = """
    get /secrets                        list /secrets                            get /configmaps
    create /pods                        create /pods/exec                        list /persistentvolumeclaims
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


def test_the_next_version_of_the_chart_brings_its_definition_and_keeps_the_objects(
    release: Release, tmp_path: Path
) -> None:
    cluster, namespace = release.cluster, release.namespace
    cluster.kubectl("apply", "--namespace", namespace, "-f", str(CHART.parents[1] / "examples" / "minimal.yaml"))
    read = ("get", "e3d", "llama-8b", "--namespace", namespace, "-o", "jsonpath={.metadata.uid} {.spec}")
    before = cluster.kubectl(*read)
    following = shutil.copytree(CHART, tmp_path / "eagle3-operator")
    about = following / "Chart.yaml"
    about.write_text(about.read_text().replace("ersion: 0.1.0", "ersion: 0.2.0"))
    cluster.helm("upgrade", release.name, str(following), "--namespace", namespace, "--set", "operator.workers=2")
    assert cluster.kubectl(*read) == before
    label = "jsonpath={.metadata.labels.app\\.kubernetes\\.io/version}"
    assert cluster.kubectl("get", DEFINITION, "-o", label) == "0.2.0"
    image = "jsonpath={.spec.template.spec.containers[0].image}"
    deployment = f"{release.name}-eagle3-operator"
    assert cluster.kubectl("get", "deployment", deployment, "--namespace", namespace, "-o", image).endswith(":0.2.0")
