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

from eagle3_operator.cluster.queue import backoff
from eagle3_operator.metrics import Metrics
from eagle3_operator.settings import PrometheusServer, Settings
from testcluster import AnyCluster, build, system, wait_for

CHART = Path(__file__).parents[2] / "helm" / "eagle3-operator"
GOLDEN = Path(__file__).parents[1] / "unit" / "manifests" / "golden"
REFERENCE = CHART.parents[1] / "docs" / "reference.md"
DEFINITION = "crd/eagle3drafts.eagle3.dev"
Manifest = dict[str, Any]


def helm(*arguments: str) -> str:
    """What helm prints; RuntimeError with its words if it refuses."""
    done = subprocess.run([build.binary("helm"), *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def all_rendered(*values: str, file: Path | None = None) -> list[Manifest]:
    """The chart's manifests, of a file of values and of those named beside it."""
    words = [word for value in values for word in ("--set", value)] + (["--values", str(file)] if file else [])
    text = helm("template", "e3", str(CHART), "--namespace", "system", "--kube-version", "1.34.0", *words)
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def rendered(*values: str, file: Path | None = None) -> dict[str, Manifest]:
    """The chart's manifests by kind; of several of one kind the operator's own."""
    others = ("-edit", "-view", "-train", "-servers")
    return {m["kind"]: m for m in all_rendered(*values, file=file) if not m["metadata"]["name"].endswith(others)}


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
    assert settings(rendered("listen=::")).listen == "::"


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


def test_the_operators_pod_is_as_the_values_say_and_says_nothing_where_they_do_not(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(EVERY_VALUE))
    manifests, plain = rendered(file=file), rendered()
    template, least = (made["Deployment"]["spec"]["template"] for made in (manifests, plain))
    for name in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "imagePullSecrets"):
        assert template["spec"][name] == EVERY_VALUE[name]
        assert name not in least["spec"]
    assert template["spec"]["securityContext"] == EVERY_VALUE["podSecurityContext"]
    assert container(manifests)["resources"] == EVERY_VALUE["resources"]
    assert container(manifests)["env"] == EVERY_VALUE["env"]
    assert "env" not in container(plain)
    assert container(manifests)["imagePullPolicy"] == "Always"
    assert container(manifests)["args"][-2:] == ["--log-level", "debug"]
    assert "securityContext" not in rendered("podSecurityContext=null")["Deployment"]["spec"]["template"]["spec"]
    assert "resources" not in container(rendered("resources=null"))
    assert {*template["metadata"]["annotations"]} == {"checksum/settings", *EVERY_VALUE["podAnnotations"]}
    assert {*least["metadata"]["annotations"]} == {"checksum/settings", "prometheus.io/scrape", "prometheus.io/port"}
    assert template["metadata"]["labels"].items() >= EVERY_VALUE["podLabels"].items()


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((), "e3-eagle3-operator"),
        (("nameOverride=drafts",), "e3-drafts"),
        (("nameOverride=e",), "e3"),
        (("fullnameOverride=the-drafts", "nameOverride=drafts"), "the-drafts"),
        ((f"nameOverride={'n' * 63}",), f"e3-{'n' * 60}"),
        ((f"nameOverride={'n' * 59}-n",), f"e3-{'n' * 59}"),
    ],
)
def test_all_that_is_made_has_the_releases_name_or_the_one_that_is_given(values: tuple[str, ...], name: str) -> None:
    made = all_rendered(*values, *EVERY_KIND, "crds.enabled=false")
    names = {one["metadata"]["name"] for one in made}
    assert names == {name, *(f"{name}-{which}" for which in ("edit", "view", "train", "servers"))}
    deployment = next(one for one in made if one["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert all(len(label) <= 63 for label in labels.values())


@pytest.mark.parametrize(
    ("values", "made", "name"),
    [
        ((), True, "e3-eagle3-operator"),
        (("serviceAccount.name=drafts",), True, "drafts"),
        (("serviceAccount.create=false", "serviceAccount.name=drafts"), False, "drafts"),
        (("serviceAccount.create=false",), False, "default"),
    ],
)
def test_the_rights_are_the_service_accounts_that_the_operator_runs_as(
    values: tuple[str, ...], made: bool, name: str
) -> None:
    manifests = rendered(*values)
    assert manifests["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == name
    assert manifests["ClusterRoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": name, "namespace": "system"}
    ]
    assert [one["metadata"]["name"] for kind, one in manifests.items() if kind == "ServiceAccount"] == [name] * made


def test_a_service_account_has_the_annotations_that_a_cloud_asks_for() -> None:
    account = rendered(r"serviceAccount.annotations.example\.com/role=drafts")["ServiceAccount"]
    assert account["metadata"]["annotations"] == {"example.com/role": "drafts"}
    assert "annotations" not in rendered()["ServiceAccount"]["metadata"]


def test_roles_can_be_left_to_whoever_hands_them_out() -> None:
    kinds = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    assert not {one["kind"] for one in all_rendered("rbac.create=false", "rbac.aggregateToUserRoles=false")} & kinds
    only_users = [one for one in all_rendered("rbac.create=false") if one["kind"] in kinds]
    assert [one["metadata"]["name"] for one in only_users] == ["e3-eagle3-operator-edit", "e3-eagle3-operator-view"]


def test_who_may_edit_in_a_namespace_may_write_drafts_and_who_may_view_reads_them() -> None:
    given = {
        role["metadata"]["name"].rpartition("-")[2]: (
            sorted(label.rpartition("-")[2] for label, value in role["metadata"]["labels"].items() if value == "true"),
            {resource: " ".join(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]},
        )
        for role in all_rendered("rbac.create=false")
        if role["kind"] == "ClusterRole"
    }
    assert given == {
        "edit": (
            ["admin", "edit"],
            {"eagle3drafts": "create delete deletecollection patch update", "eagle3drafts/scale": "get patch update"},
        ),
        "view": (["admin", "edit", "view"], dict.fromkeys(("eagle3drafts", "eagle3drafts/status"), "get list watch")),
    }


NO_PROMETHEUS = "No Prometheus is named under prometheus.servers"
KEEPS = "Uninstalling keeps the CustomResourceDefinition"


@pytest.mark.parametrize(
    ("values", "words", "others"),
    [
        ((), ("watches all namespaces.", NO_PROMETHEUS, KEEPS), ()),
        (("watchNamespace=llm",), ("watches namespace llm.",), ()),
        (("prometheus.servers.default.url=http://prometheus:9090",), (KEEPS,), (NO_PROMETHEUS,)),
        (("crds.keep=false",), (NO_PROMETHEUS,), (KEEPS,)),
        (("crds.enabled=false",), (NO_PROMETHEUS,), (KEEPS,)),
    ],
)
def test_what_helm_says_after_it_has_installed_is_so(
    api_server: AnyCluster, values: tuple[str, ...], words: tuple[str, ...], others: tuple[str, ...]
) -> None:
    sets = [word for value in values for word in ("--set", value)]
    _, _, notes = api_server.helm("install", "e3", str(CHART), "--dry-run=client", "--take-ownership", *sets).partition(
        "NOTES:"
    )
    assert [one for one in words if one not in notes] + [one for one in others if one in notes] == []


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


def test_pod_monitors_of_an_operator_of_one_namespace_look_for_pods_there() -> None:
    made = all_rendered("podMonitor.enabled=true", "podMonitor.interval=1m", "watchNamespace=llm")
    specs = [one["spec"] for one in made if one["kind"] == "PodMonitor"]
    assert [spec.get("namespaceSelector") for spec in specs] == [None, *[{"matchNames": ["llm"]}] * 2]
    assert [endpoint["interval"] for spec in specs for endpoint in spec["podMetricsEndpoints"]] == ["1m"] * 3


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
AVAILABLE = 'eagle3_operator_object_available{eagle3_namespace="llm",eagle3_name="kimi"}'
QUEUE = 'eagle3_operator_queue_length{pod="operator"}'
FAILED = 'eagle3_operator_errors_total{type="ApiError"}'


def failures(since: int, until: int = 60) -> str:
    """How often one object has failed, each minute of an hour, that does so between two of them: as the queue tries it again."""
    tried = [60.0 * since]
    while tried[-1] < 3600:
        tried.append(tried[-1] + backoff(len(tried)))
    failed = [at for at in tried if at < 60 * until]
    counts = [sum(at <= 60 * minute for at in failed) for minute in range(61)]
    return " ".join(str(count) if count else "_" for count in counts)


#: Series as promtool writes them (one sample a minute), and the alerts that there are at the end of an hour.
FIRING: dict[str, tuple[dict[str, str], list[dict[str, str]]]] = {
    "all is well": ({OBJECT % "Serving": "1x60", AVAILABLE: "1x60", QUEUE: "0 3 0 3 0x56", FAILED: "0x30 1x30"}, []),
    "an object is stuck": (
        {OBJECT % "Serving": "1x30 _x30", OBJECT % "Stalled": "_x30 1x30", QUEUE: "0x60"},
        [
            {
                "alertname": "Eagle3DraftNeedsAttention",
                "eagle3_namespace": "llm",
                "eagle3_name": "kimi",
                "summary": "Eagle3Draft llm/kimi is Stalled or Degraded",
            }
        ],
    ),
    "an object was stuck": ({OBJECT % "Stalled": "1x30 _x30", OBJECT % "Serving": "_x30 1x30", QUEUE: "0x60"}, []),
    "nobody answers while the next draft is trained": (
        {OBJECT % "Training": "1x60", AVAILABLE: "1x30 0x30", QUEUE: "0x60"},
        [
            {
                "alertname": "Eagle3DraftUnavailable",
                "severity": "critical",
                "eagle3_namespace": "llm",
                "eagle3_name": "kimi",
                "summary": "No server of Eagle3Draft llm/kimi is ready",
            }
        ],
    ),
    "nobody answers, and the operator's pod is another one every quarter of an hour": (
        {
            AVAILABLE.replace("{", f'{{pod="{number}",'): " ".join(["_"] * (15 * number) + ["0"] * 14 + ["_"] * 60)
            for number in range(4)
        }
        | {QUEUE: "0x60"},
        [
            {
                "alertname": "Eagle3DraftUnavailable",
                "severity": "critical",
                "eagle3_namespace": "llm",
                "eagle3_name": "kimi",
                "summary": "No server of Eagle3Draft llm/kimi is ready",
            }
        ],
    ),
    "servers came back, or went for a training": (
        {OBJECT % "Training": "1x60", AVAILABLE: "0x30 1x20 _x10", QUEUE: "0x60"},
        [],
    ),
    "the operator is gone": (
        {QUEUE: "0x30 _x30"},
        [{"alertname": "Eagle3OperatorAbsent", "summary": "The operator of Eagle3Drafts tells nothing"}],
    ),
    "the API server was away for a few minutes": ({QUEUE: "0x60", FAILED: failures(20, until=25)}, []),
    "it fails at one object": (
        {QUEUE: "0x60", FAILED: failures(5)},
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
        found = ({"severity": "warning", **alert} for alert in alerts if alert["alertname"] == name)
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
    metrics.known("llm", "kimi", "Stalled", available=False)
    metrics.failed(ValueError())
    told = prometheus_client.generate_latest(metrics.registry).decode()
    runbook = (CHART.parents[1] / "docs" / "runbook.md").read_text()
    for rule in rules:
        (name,) = re.findall(r"eagle3_operator_\w+", rule["expr"])
        assert re.search(rf"^{name}[ {{]", told, re.MULTILINE), name
        assert f"| `{rule['alert']}` |" in runbook


#: What cannot be meant, and what helm says of it.
REFUSED = {
    "replicas=2": "at '/replicas': value must be 1",
    "imag.tag=v2": "additional properties 'imag' not allowed",
    "global=a": "at '/global': got string, want object",
    "image=operator": "at '/image': got string, want object",
    "image.tags=v2": "at '/image': additional properties 'tags' not allowed",
    "image.tag=2": "at '/image/tag': got number, want string",
    "image.repository=null": "at '/image': missing property 'repository'",
    "image.repository=": "at '/image/repository': minLength: got 0, want 1",
    "image.repository=1": "at '/image/repository': got number, want string",
    "image.digest=latest": "at '/image/digest': 'latest' does not match pattern",
    "image.digest=1": "at '/image/digest': got number, want string",
    f"image.digest=sha256:{'a' * 65}": "at '/image/digest'",
    f"image.digest=operator@sha256:{'a' * 64}": "at '/image/digest'",
    "image.pullPolicy=Sometimes": "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
    "draftImage.tags=v2": "at '/draftImage': additional properties 'tags' not allowed",
    "draftImage.pullPolicy=Always": "at '/draftImage/pullPolicy'",
    "pods.imagePullPolicy=Sometimes": "at '/pods/imagePullPolicy'",
    "pods=a": "at '/pods': got string, want object",
    "pods.image=a": "at '/pods': additional properties 'image' not allowed",
    "pods.user=me": "at '/pods/user': got string, want null or integer",
    "pods.user=0": "at '/pods/user': minimum: got 0, want 1",
    "imagePullSecrets=registry": "at '/imagePullSecrets': got string, want array",
    "imagePullSecrets={registry}": "at '/imagePullSecrets/0': got string, want object",
    "imagePullSecrets[0].secret=a": "at '/imagePullSecrets/0': missing property 'name'",
    "imagePullSecrets[0].name=a,imagePullSecrets[0].key=a": "at '/imagePullSecrets/0': additional properties 'key' not",
    "imagePullSecrets[0].name=,imagePullSecrets[1].name=a": "at '/imagePullSecrets/0/name': minLength: got 0, want 1",
    "imagePullSecrets[0].name=1": "at '/imagePullSecrets/0/name': got number, want string",
    "nameOverride=1": "at '/nameOverride': got number, want string",
    f"nameOverride={'a' * 64}": "at '/nameOverride': maxLength: got 64, want 63",
    "fullnameOverride=1": "at '/fullnameOverride': got number, want string",
    f"fullnameOverride={'a' * 64}": "at '/fullnameOverride': maxLength: got 64, want 63",
    "watchNamespace=1": "at '/watchNamespace': got number, want string",
    "watchNamespace=-a": "at '/watchNamespace': '-a' does not match pattern",
    "watchNamespace=a.b": "at '/watchNamespace': 'a.b' does not match pattern",
    f"watchNamespace={'a' * 64}": "at '/watchNamespace': maxLength: got 64, want 63",
    "allowedServiceAccounts=trainer": "at '/allowedServiceAccounts': got string, want array",
    "allowedServiceAccounts={1}": "at '/allowedServiceAccounts/0': got number, want string",
    "allowedServiceAccounts={-a}": "at '/allowedServiceAccounts/0': '-a' does not match pattern",
    "allowedServiceAccounts={a b}": "at '/allowedServiceAccounts/0': 'a b' does not match pattern",
    f"allowedServiceAccounts={{{'a' * 254}}}": "at '/allowedServiceAccounts/0': maxLength: got 254, want 253",
    "prometheus=a": "at '/prometheus': got string, want object",
    "prometheus.server.url=http://a": "at '/prometheus': additional properties 'server' not allowed",
    "prometheus.servers={a}": "at '/prometheus/servers': got array, want object",
    "prometheus.servers.Default.url=http://prometheus:9090": "invalid propertyName 'Default'",
    "prometheus.servers.-a.url=http://prometheus:9090": "invalid propertyName '-a'",
    f"prometheus.servers.{'a' * 41}.url=http://a": f"invalid propertyName '{'a' * 41}'",
    "prometheus.servers.default=http://a": "at '/prometheus/servers/default': got string, want object",
    "prometheus.servers.default.url=prometheus:9090": "at '/prometheus/servers/default/url': 'prometheus:9090' does not match",
    "prometheus.servers.default.url=see http://a": "at '/prometheus/servers/default/url': 'see http://a' does not match",
    "prometheus.servers.default.url=http://": "at '/prometheus/servers/default/url': 'http://' does not match",
    "prometheus.servers.default.url=1": "at '/prometheus/servers/default/url': got number, want string",
    "prometheus.servers.default.uri=a": "at '/prometheus/servers/default': additional properties 'uri' not allowed",
    "prometheus.servers.default.timeoutSeconds=5": "at '/prometheus/servers/default': missing property 'url'",
    "prometheus.servers.default.timeoutSeconds=0": "/timeoutSeconds': exclusiveMinimum: got 0, want 0",
    "prometheus.servers.default.timeoutSeconds=61": "/timeoutSeconds': maximum: got 61, want 60",
    "prometheus.servers.default.timeoutSeconds=5s": "/timeoutSeconds': got string, want number",
    "prometheus.servers.default.tokenSecret=a": "/tokenSecret': got string, want object",
    "prometheus.servers.default.tokenSecret.name=a": "/tokenSecret': missing property 'key'",
    "prometheus.servers.default.caConfigMap.key=a": "/caConfigMap': missing property 'name'",
    "prometheus.servers.default.caConfigMap.file=a": "/caConfigMap': additional properties 'file' not allowed",
    "prometheus.servers.default.caConfigMap.name=": "/caConfigMap/name': minLength: got 0, want 1",
    "prometheus.servers.default.caConfigMap.name=1": "/caConfigMap/name': got number, want string",
    "prometheus.servers.default.tokenSecret.key=": "/tokenSecret/key': minLength: got 0, want 1",
    "prometheus.servers.default.tokenSecret.key=1": "/tokenSecret/key': got number, want string",
    "operator=a": "at '/operator': got string, want object",
    "operator.worker=1": "at '/operator': additional properties 'worker' not allowed",
    "operator.logLevel=loud": "at '/operator/logLevel': value must be one of 'debug', 'info', 'warning', 'error'",
    "operator.workers=0": "at '/operator/workers': minimum: got 0, want 1",
    "operator.workers=257": "at '/operator/workers': maximum: got 257, want 256",
    "operator.workers=1.5": "at '/operator/workers': got string, want integer",
    "operator.resyncSeconds=9": "at '/operator/resyncSeconds': minimum: got 9, want 10",
    "operator.resyncSeconds=10m": "at '/operator/resyncSeconds': got string, want number",
    "operator.pollSeconds=0": "at '/operator/pollSeconds': minimum: got 0, want 1",
    "operator.pollSeconds=1s": "at '/operator/pollSeconds': got string, want number",
    "operator.surgePatienceSeconds=0": "at '/operator/surgePatienceSeconds': minimum: got 0, want 1",
    "operator.surgePatienceSeconds=2m": "at '/operator/surgePatienceSeconds': got string, want number",
    "crds=false": "at '/crds': got boolean, want object",
    "crds.install=false": "at '/crds': additional properties 'install' not allowed",
    "crds.enabled=no": "at '/crds/enabled': got string, want boolean",
    "crds.keep=no": "at '/crds/keep': got string, want boolean",
    "serviceAccount=drafts": "at '/serviceAccount': got string, want object",
    "serviceAccount.labels.a=b": "at '/serviceAccount': additional properties 'labels' not allowed",
    "serviceAccount.create=no": "at '/serviceAccount/create': got string, want boolean",
    "serviceAccount.name=1": "at '/serviceAccount/name': got number, want string",
    "serviceAccount.annotations.a=1": "at '/serviceAccount/annotations/a': got number, want string",
    "rbac=false": "at '/rbac': got boolean, want object",
    "rbac.enabled=false": "at '/rbac': additional properties 'enabled' not allowed",
    "rbac.create=no": "at '/rbac/create': got string, want boolean",
    "rbac.aggregateToUserRoles=no": "at '/rbac/aggregateToUserRoles': got string, want boolean",
    "metrics=false": "at '/metrics': got boolean, want object",
    "metrics.ports=9095": "at '/metrics': additional properties 'ports' not allowed",
    "metrics.port=8080": "at '/metrics/port': 'not' failed",
    "metrics.port=1023": "at '/metrics/port': minimum: got 1,023, want 1,024",
    "metrics.port=65536": "at '/metrics/port': maximum: got 65,536, want 65,535",
    "metrics.port=http": "at '/metrics/port': got string, want integer",
    "metrics.scrapeAnnotations=no": "at '/metrics/scrapeAnnotations': got string, want boolean",
    "podMonitor=true": "at '/podMonitor': got boolean, want object",
    "podMonitor.label.a=b": "at '/podMonitor': additional properties 'label' not allowed",
    "podMonitor.enabled=no": "at '/podMonitor/enabled': got string, want boolean",
    "podMonitor.interval=30": "at '/podMonitor/interval': got number, want string",
    "podMonitor.interval=a 30s": "at '/podMonitor/interval': 'a 30s' does not match pattern",
    "podMonitor.interval=30seconds": "at '/podMonitor/interval': '30seconds' does not match pattern",
    r"podMonitor.labels.app\.kubernetes\.io/instance=a": "'app.kubernetes.io/instance'",
    "prometheusRule=true": "at '/prometheusRule': got boolean, want object",
    "prometheusRule.label.a=b": "at '/prometheusRule': additional properties 'label' not allowed",
    "prometheusRule.enabled=no": "at '/prometheusRule/enabled': got string, want boolean",
    r"prometheusRule.labels.app\.kubernetes\.io/version=a": "'app.kubernetes.io/version'",
    "networkPolicy=true": "at '/networkPolicy': got boolean, want object",
    "networkPolicy.from={a}": "at '/networkPolicy': additional properties 'from' not allowed",
    "networkPolicy.enabled=no": "at '/networkPolicy/enabled': got string, want boolean",
    "networkPolicy.metricsFrom=a": "at '/networkPolicy/metricsFrom': got string, want array",
    "networkPolicy.metricsFrom={a}": "at '/networkPolicy/metricsFrom/0': got string, want object",
    "commonLabels=a": "at '/commonLabels': got string, want object",
    "commonLabels.a=1": "at '/commonLabels/a': got number, want string",
    r"commonLabels.app\.kubernetes\.io/managed-by=Flux": "'app.kubernetes.io/managed-by'",
    r"podLabels.app\.kubernetes\.io/name=a": "'app.kubernetes.io/name'",
    r"podLabels.helm\.sh/chart=a": "'helm.sh/chart'",
    # On the operator's own role it would give every editor the operator's rights
    r"commonLabels.rbac\.authorization\.k8s\.io/aggregate-to-edit=true": "'rbac.authorization.k8s.io/aggregate-to-edit'",
    "env=a": "at '/env': got string, want array",
    "env={a}": "at '/env/0': got string, want object",
    "env[0].value=a": "at '/env/0': missing property 'name'",
    "podSecurityContext=a": "at '/podSecurityContext': got string, want object",
    "resources=a": "at '/resources': got string, want object",
    "podAnnotations=a": "at '/podAnnotations': got string, want object",
    "podAnnotations.a=1": "at '/podAnnotations/a': got number, want string",
    "priorityClassName=1": "at '/priorityClassName': got number, want string",
    "nodeSelector.a=1": "at '/nodeSelector/a': got number, want string",
    "tolerations=a": "at '/tolerations': got string, want array",
    "tolerations={a}": "at '/tolerations/0': got string, want object",
    "affinity=a": "at '/affinity': got string, want object",
}


@pytest.mark.parametrize("value", REFUSED)
def test_values_that_cannot_be_meant_are_refused(value: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        rendered(value)
    assert REFUSED[value] in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        *(f"image.pullPolicy={policy}" for policy in ("Always", "IfNotPresent", "Never")),
        *(f"operator.logLevel={level}" for level in ("debug", "info", "warning", "error")),
        *(
            "pods.user=1",
            "pods.user=null",
            "operator.workers=1",
            "operator.workers=256",
            "metrics.port=1024",
            "metrics.port=65535",
        ),
        *("operator.resyncSeconds=10", "operator.pollSeconds=1", "operator.surgePatienceSeconds=1"),
        *(f"podMonitor.interval=1{unit}" for unit in ("ms", "s", "m", "h")),
        *(f"{name}={'a' * 63}" for name in ("nameOverride", "fullnameOverride", "watchNamespace")),
        *("watchNamespace=team-2", f"allowedServiceAccounts={{a.b-2,{'a' * 253}}}", "global.proxy=a"),
        f"prometheus.servers.{'a' * 40}.url=https://a,prometheus.servers.{'a' * 40}.timeoutSeconds=60",
        "prometheus.servers.b-2.url=http://a,prometheus.servers.b-2.timeoutSeconds=1",
        f"commonLabels.app={'a' * 63},imagePullSecrets[0].name=a",
    ],
)
def test_values_at_the_edge_of_what_can_be_meant_are_taken(value: str) -> None:
    assert rendered(value)


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
    "listen": "::",
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
    cluster.helm(
        *("upgrade", release.name, str(CHART), "--namespace", namespace, "--take-ownership"),
        *("--set", "operator.resyncSeconds=77"),
    )
    following = shutil.copytree(CHART, tmp_path / "eagle3-operator")
    about = following / "Chart.yaml"
    about.write_text(about.read_text().replace("ersion: 0.1.0", "ersion: 0.2.0"))
    # A default goes, and one comes
    for file in (following / name for name in ("values.yaml", "values.schema.json", "templates/configmap.yaml")):
        text = file.read_text()
        file.write_text(re.sub(r'(^  |"|operator\.)workers\b', r"\1threads", text, flags=re.MULTILINE))
    command = next(line for line in REFERENCE.read_text().splitlines() if line.startswith("helm upgrade "))
    _, verb, _, _, _, _, *words = shlex.split(command)
    cluster.helm(verb, release.name, str(following), "--namespace", namespace, *words)
    assert cluster.kubectl(*read) == before
    label = "jsonpath={.metadata.labels.app\\.kubernetes\\.io/version}"
    assert cluster.kubectl("get", DEFINITION, "-o", label) == "0.2.0"
    told = cluster.kubectl(
        "get", "configmap", f"{release.name}-eagle3-operator", "--namespace", namespace, "-o", "yaml"
    )
    assert "resyncSeconds: 77" in told  # what a person has set stays
    image = "jsonpath={.spec.template.spec.containers[0].image}"
    deployment = f"{release.name}-eagle3-operator"
    assert cluster.kubectl("get", "deployment", deployment, "--namespace", namespace, "-o", image).endswith(":0.2.0")
