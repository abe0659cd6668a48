"""The operator beside others who change, refuse or look after what is its own: webhooks, Argo CD, Kueue, people."""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_api import API_VERSION, KIND
from eagle3_api.jobs import StageName
from operating import OperatorProcess, Site
from operating.admission import admitting
from operating.kubelet import MERGE_PATCH
from operating.site import NOWHERE
from testcluster import AnyCluster, wait_for
from testcluster.provide import choice
from unit.samples import SPEC, merged

Json = dict[str, Any]

#: Trains and serves, without a Prometheus; a former revision goes at once.
SERVING = merged(SPEC, {"watch": None, "serve": {"bakeTime": "0s"}})

CHILDREN = ("jobs", "deployments", "services", "poddisruptionbudgets", "persistentvolumeclaims")

#: What writes, of the requests that the operator counts.
WRITING = ("POST", "PUT", "PATCH", "DELETE")

PROXY = {"name": "linkerd-proxy", "image": "proxy.example/proxy:1", "ports": [{"name": "http", "containerPort": 4143}]}
TOLERATION = {"key": "team", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def operator(api_server: AnyCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator for all namespaces."""
    with OperatorProcess(api_server.kubeconfig, tmp_path_factory.mktemp("operator"), pollSeconds=1) as running:
        running.wait_until_alive()
        yield running
    print(*running.log(), sep="\n")


@pytest.fixture
def calling(api_server: AnyCluster) -> AnyCluster:
    """The cluster, where its API server reaches a webhook on this machine."""
    if choice(node=False) != "embedded":
        pytest.skip("this cluster's API server does not reach this machine")
    return api_server


@pytest.fixture
def site(operator: OperatorProcess, api_server: AnyCluster, namespace: str) -> Site:
    return Site(api_server, namespace)


def added(*path: str, value: Any) -> Json:
    """The operation that adds to an object what may be there already."""
    return {
        "op": "add",
        "path": "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path),
        "value": value,
    }


def labelled(obj: Json) -> list[Json]:
    """What a platform adds to everything: a label and an annotation."""
    metadata = obj["metadata"]
    return [
        added("metadata", "labels", value={**(metadata.get("labels") or {}), "cost-center": "llm"}),
        added("metadata", "annotations", value={**(metadata.get("annotations") or {}), "policy.example/seen": "yes"}),
    ]


def with_a_template(obj: Json) -> list[Json]:
    """What a policy makes of the pods of a Job or a Deployment: a toleration, a label, another order of what is there."""
    spec, labels = obj["spec"]["template"]["spec"], obj["spec"]["template"]["metadata"]["labels"]
    tolerations = [one for one in spec.get("tolerations") or () if one != TOLERATION]
    return [
        *labelled(obj),
        added("spec", "template", "spec", "tolerations", value=[TOLERATION, *tolerations]),
        added("spec", "template", "metadata", "labels", value={**labels, "cost-center": "llm"}),
    ]


def meshed(pod: Json) -> list[Json]:
    """What Linkerd makes of a pod: its proxy comes first."""
    containers = pod["spec"]["containers"]
    if any(container["name"] == PROXY["name"] for container in containers):
        return []
    return [*labelled(pod), added("spec", "containers", value=[PROXY, *containers])]


def written(operator: OperatorProcess) -> float:
    """Requests so far that write anything."""
    counted = operator.metrics("requests_total")
    return sum(count for labels, count in counted.items() if any(f'method="{one}"' in labels for one in WRITING))


def looks(operator: OperatorProcess) -> float:
    return sum(operator.metrics("reconciles_total").values())


def _more_looks(operator: OperatorProcess, than: float) -> bool:
    return looks(operator) > than


def looked_at(site: Site, operator: OperatorProcess, times: int) -> None:
    """Wait until an object was looked at again so many times, each because a child of it was changed."""
    for _ in range(times):
        before = looks(operator)
        site.poke("kimi", str(time.monotonic()))
        wait_for("another look", 20, partial(_more_looks, operator, before))


def settled(operator: OperatorProcess) -> float:
    """Wait until two seconds pass in which nothing is written; what was until then."""

    def quiet() -> float:
        before = written(operator)
        time.sleep(2)  # nothing tells that nothing happens
        return before if written(operator) == before else 0

    return wait_for("the operator to write no more", 60, quiet)


def versions(site: Site) -> dict[str, str]:
    """Of what is the operator's to write, but for the Jobs, which the test itself changes."""
    kinds = [kind for kind in CHILDREN if kind != "jobs"]
    found = {
        f"{kind}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
        for kind in kinds
        for one in site.all(kind)
    }
    return found | {KIND: site.object("kimi")["metadata"]["resourceVersion"]}


def test_what_webhooks_add_is_kept_and_never_fought_over(
    site: Site, operator: OperatorProcess, calling: AnyCluster, tmp_path: Path
) -> None:
    """A mesh puts its container first, policies add labels and tolerations to all that is made and at each change of it."""
    answers = {
        **dict.fromkeys(CHILDREN, labelled),
        "pods": meshed,
        "jobs": with_a_template,
        "deployments": with_a_template,
    }
    with admitting(calling, tmp_path, site.namespace, answers):
        site.create("kimi", merged(SERVING, {"storage": {"features": {"claim": None, "size": "1Gi"}}}))
        site.until_ready("kimi")
        before, former = settled(operator), versions(site)
        looked_at(site, operator, 3)
        assert (written(operator), versions(site)) == (before, former)
        site.create(
            "kimi", merged(SERVING, {"storage": {"features": {"claim": None, "size": "1Gi"}}, "serve": {"replicas": 2}})
        )
        site.until("two servers", lambda: site.object("kimi")["status"]["replicas"] == 2)
        served = site.get("deployments", "kimi-r1")
        assert served["metadata"]["labels"]["cost-center"] == "llm"
        assert TOLERATION in served["spec"]["template"]["spec"]["tolerations"]
        assert {pod["spec"]["containers"][0]["name"] for pod in site.all("pods")} == {PROXY["name"]}
        assert site.kubelet.ran_twice() == []


def test_words_of_a_webhook_that_carry_the_time_are_written_and_told_once(
    site: Site, operator: OperatorProcess, calling: AnyCluster, tmp_path: Path
) -> None:
    def denied(job: Json) -> str:
        return f"no GPUs for you at {time.strftime('%Y-%m-%dT%H:%M:%S')}.{time.time_ns() % 1000:03}Z"

    with admitting(calling, tmp_path, site.namespace, {"jobs": denied}):
        site.create("kimi", SERVING)
        assert "no GPUs for you at 20" in site.until_says("kimi", "Ready", "Refused")["message"]
        version, tries = site.object("kimi")["metadata"]["resourceVersion"], 'reconciles_total{result="refused"}'
        before = operator.metric(tries)
        wait_for("three more tries", 90, lambda: operator.metric(tries) >= before + 3)
        assert site.object("kimi")["metadata"]["resourceVersion"] == version
        assert [(one["reason"], one["count"]) for one in site.events("kimi")] == [("Refused", 1)]
        told = [
            line for line in operator.log() if line.get("namespace") == site.namespace and line["level"] == "warning"
        ]
        assert len(told) == 1


def test_an_object_of_argo_cds_differs_from_its_repository_in_nothing_and_what_others_add_to_its_children_stays(
    site: Site, operator: OperatorProcess
) -> None:
    spec = merged(SERVING, {"placement": {"nodeSelector": NOWHERE}})
    ours = {"argocd.argoproj.io/tracking-id": f"llm:{API_VERSION}/{KIND}:{site.namespace}/kimi"}
    metadata = {"name": "kimi", "namespace": site.namespace, "labels": {"app.kubernetes.io/instance": "llm"}}
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata | {"annotations": ours}, "spec": spec}
    text, by_server = yaml.safe_dump(manifest), ("--server-side", "--field-manager=argocd-controller")
    site.cluster.kubectl("apply", *by_server, "-f", "-", stdin=text)
    site.until_ready("kimi")
    settled(operator)
    assert site.cluster.kubectl("diff", *by_server, "-f", "-", stdin=text) == ""
    version = site.object("kimi")["metadata"]["resourceVersion"]
    site.cluster.kubectl("apply", *by_server, "-f", "-", stdin=text)
    assert site.object("kimi")["metadata"]["resourceVersion"] == version, "to heal what is well changes nothing"
    names = {name for one in site.all("deployments") for name in one["metadata"]["labels"]}
    assert "app.kubernetes.io/instance" not in names, "Argo CD would prune what carries it and is in no repository"

    theirs = {
        "metadata": {"labels": {"team": "search"}, "annotations": {"external-dns.example/hostname": "kimi.example"}}
    }
    site.cluster.request("PATCH", site.path("services", "kimi"), theirs, MERGE_PATCH)
    manifest["spec"] = merged(spec, {"serve": {"speculative": {"numSteps": 2, "numDraftTokens": 3}}})
    site.cluster.kubectl("apply", *by_server, "-f", "-", stdin=yaml.safe_dump(manifest))
    site.until("the next revision", lambda: site.object("kimi")["status"]["servingRevision"] == 2)
    public = site.get("services", "kimi")
    assert public["spec"]["selector"]["eagle3.dev/revision"] == "r2"
    assert public["metadata"]["labels"]["team"] == "search"
    assert public["metadata"]["annotations"] == theirs["metadata"]["annotations"]


def test_a_job_that_somebody_else_suspends_waits_for_whoever_that_was(site: Site) -> None:
    """As Kueue does with every Job where it manages those without a queue's name too."""
    hold = (StageName.EXTRACT,)
    site.create("kimi", SERVING)
    (job,) = site.until("the extraction", lambda: site.jobs("kimi", StageName.EXTRACT), hold=hold)
    path = f"{site.path('jobs', job['metadata']['name'])}?fieldManager=kueue-job-controller"
    site.cluster.request("PATCH", path, {"spec": {"suspend": True}}, MERGE_PATCH)
    said = site.until_says("kimi", "FeaturesReady", "Suspended", hold=hold)
    assert "was suspended by kueue-job-controller" in said["message"]
    site.poke("kimi", "again")
    assert site.jobs("kimi", StageName.EXTRACT)[0]["spec"]["suspend"] is True
    site.cluster.request("PATCH", path, {"spec": {"suspend": False}}, MERGE_PATCH)
    assert site.until_ready("kimi")["status"]["servingRevision"] == 1


def autoscaler(site: Site, version: str, kind: str, name: str) -> None:
    """The cluster's own, which wants two pods at least, so that it needs to measure nothing."""
    target = {"apiVersion": version, "kind": kind, "name": name}
    site.apply(
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        name,
        {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 3},
    )


def test_an_autoscaler_of_an_object_scales_what_serves_and_changes_nothing_else(site: Site) -> None:
    site.create("kimi", SERVING)
    before = site.until_ready("kimi")["status"]
    autoscaler(site, API_VERSION, KIND, "kimi")

    def grown() -> Json | None:
        status: Json = site.object("kimi")["status"]
        return status if status["replicas"] == 2 else None

    after = site.until("two servers", grown, seconds=90)
    assert (after["servingRevision"], after["stages"]) == (before["servingRevision"], before["stages"])
    assert [one["key"] for one in after["revisions"]] == [one["key"] for one in before["revisions"]]
    assert "ScaleOverruled" not in {one["reason"] for one in site.events("kimi")}


def test_an_autoscaler_of_a_revision_is_overruled_and_told_of_at_each_try(site: Site) -> None:
    site.create("kimi", SERVING)
    site.until_ready("kimi")
    autoscaler(site, "apps/v1", "Deployment", "kimi-r1")

    def told() -> Json | None:
        return next((one for one in site.events("kimi") if one["reason"] == "ScaleOverruled"), None)

    event = site.until("the second of its tries", lambda: (one := told()) and one["count"] > 1 and one, seconds=90)
    said = "kube-controller-manager (a HorizontalPodAutoscaler) has scaled Deployment kimi-r1 to 2. The operator restored 1"
    assert event["message"].startswith(said)
    site.cluster.request("DELETE", f"/apis/autoscaling/v2/namespaces/{site.namespace}/horizontalpodautoscalers/kimi-r1")
    site.until("one pod again", lambda: site.get("deployments", "kimi-r1")["spec"]["replicas"] == 1)
    assert site.until_ready("kimi")["status"]["servingRevision"] == 1


def test_who_scales_a_revision_that_does_not_serve_is_overruled_and_told_of(site: Site) -> None:
    site.create("kimi", SERVING)
    site.until_ready("kimi")
    site.until("r0 to retire", lambda: site.object("kimi")["status"]["revisions"][0]["replicas"] == 0)
    site.cluster.kubectl("scale", "deployment", "kimi-r0", "--replicas=2", "-n", site.namespace)

    def told() -> str | None:
        return next((one["message"] for one in site.events("kimi") if one["reason"] == "ScaleOverruled"), None)

    said = site.until("the event", told)
    assert "has scaled Deployment kimi-r0 to 2. The operator restored 0, because r0 does not serve" in said
    assert site.get("deployments", "kimi-r0")["spec"]["replicas"] == 0


def test_a_server_that_somebody_edits_is_put_back_whole_and_told_of_and_one_that_is_restarted_is_left(
    site: Site,
) -> None:
    """An image, a flag or a variable that nobody has measured served on, under the verdict of what was proven."""
    site.create("kimi", SERVING)
    site.until_ready("kimi")
    made, ours = site.get("deployments", "kimi-r1"), ("-n", site.namespace)
    proven = made["spec"]["template"]["spec"]["containers"][0]["image"]
    site.cluster.kubectl("set", "image", "deployment/kimi-r1", "server=sglang.example/sglang:v0.5.22", *ours)

    def told(times: int) -> list[Json]:
        events = [one for one in site.events("kimi") if one["reason"] == "ServerEdited"]
        return events if sum(one["count"] for one in events) == times else []

    (event,) = site.until("the edit to be told", lambda: told(1))
    said = "kubectl-set has changed Deployment kimi-r1 (spec.containers[server].image): what runs is not what was proven. The operator restores it"
    assert (event["type"], event["message"][: len(said)]) == ("Warning", said)
    assert site.get("deployments", "kimi-r1")["spec"] == made["spec"]
    assert site.until_ready("kimi")["status"]["servingRevision"] == 1

    site.cluster.kubectl("rollout", "restart", "deployment/kimi-r1", *ours)
    restarted = site.get("deployments", "kimi-r1")
    assert restarted["spec"] != made["spec"]
    site.until(
        "its pod anew", lambda: len([pod for pod in site.all("pods") if "deletionTimestamp" not in pod["metadata"]])
    )
    assert site.until_ready("kimi")["status"]["servingRevision"] == 1

    site.cluster.kubectl("set", "env", "deployment/kimi-r1", "STAKATER_HF_TOKEN_SECRET=1", *ours)
    site.until_ready("kimi")
    variables = site.get("deployments", "kimi-r1")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert variables[-1]["name"] == "STAKATER_HF_TOKEN_SECRET", "a restart is nobody's edit"

    gone = json.dumps([{"op": "remove", "path": "/spec/template/spec/containers/0/livenessProbe"}])
    site.cluster.kubectl("patch", "deployment/kimi-r1", "--type=json", f"--patch={gone}", *ours)
    site.until("what is taken out to be told", lambda: told(2))
    assert site.get("deployments", "kimi-r1")["spec"] == made["spec"]
    assert site.until_ready("kimi")["status"]["servingRevision"] == 1

    site.cluster.kubectl("set", "image", "deployment/kimi-r1", "server=sglang.example/sglang:v0.5.22", *ours)
    said = site.until_says("kimi", "ServerAvailable", "ServerEdited")["message"]
    assert "the same edit was made again: it is left in place" in said
    site.cluster.kubectl("set", "image", "deployment/kimi-r1", f"server={proven}", *ours)
    assert site.until_ready("kimi")["status"]["servingRevision"] == 1
