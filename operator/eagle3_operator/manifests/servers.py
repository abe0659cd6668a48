"""The servers of a revision: a Deployment, a Service for probing it; and what follows the serving one: the public Service, a budget."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from eagle3_api.jobs import Facts
from eagle3_api.sglang import adaptive_config
from eagle3_api.spec import Eagle3Draft, Eagle3DraftSpec, Placement
from eagle3_operator.decision import Manifest
from eagle3_operator.manifests import names
from eagle3_operator.manifests.flags import ADAPTIVE_FILE, server_flags, serving, start_budget, watchdog_seconds
from eagle3_operator.manifests.pods import (
    Mount,
    Program,
    annotation_file,
    pod_spec,
    root_mount,
    scraping,
    shared_memory,
    user_mounts,
)
from eagle3_operator.settings import Settings
from eagle3_operator.traits import LARGE

CONTAINER = "server"
PORT_NAME = "http"

#: Seconds on top of the start budget for what comes before the container: finding a node, pulling an image of 20 GB.
BEFORE_THE_CONTAINER = 1800

#: SGLang lets running requests end after SIGTERM.
GRACE = 60

#: Seconds between a pod's leaving the endpoints and its SIGTERM, for proxies to notice.
DRAIN = 5

#: /health asks the engine for a token and answers by itself, with 503, after 20 s: wait for its answer.
_HEALTH_TIMEOUT = 25


def deployment(
    obj: Eagle3Draft,
    settings: Settings,
    facts: Facts,
    *,
    number: int,
    key: str,
    replicas: int,
    draft: str | None,
    record: Mapping[str, str],
    one_node: Collection[str] = (),
) -> Manifest:
    """The Deployment of one revision, ``<name>-r<number>``. Its template never changes, only its replicas do.

    Args:
        obj: the object, with ``serve``.
        settings: of the operator.
        facts: what Inspect found.
        number: of the revision.
        key: of the revision, whole.
        replicas: servers to run now.
        draft: folder of the converted draft; None for the plain revision.
        record: what the revision is, to rebuild a lost status from.
        one_node: claims that only one node can have at a time.
    """
    name, placement = obj.metadata.name, serve_placement(obj.spec)
    # On both, as Kueue itself would copy it: the pods wait for quota one by one, held back by a scheduling gate.
    labels = names.labels(name, revision=number, queue=obj.spec.queue_name)
    program = _program(obj, facts, number, draft, settings.listen)
    beside = names.together_labels(name) if program.mounts_any(one_node) else None
    annotations = {
        names.KEY_ANNOTATION: key,
        names.RECORD_ANNOTATION: json.dumps(dict(record), sort_keys=True, separators=(",", ":"), ensure_ascii=False),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": names.metadata(obj, names.revision_name(name, number), labels=labels, annotations=annotations),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": _selector(name, number)},
            # Only a person restarts a revision's pods (kubectl rollout restart): one by one, and never a pod too many,
            # for which there may be no GPU. Recreate would take all replicas down at once.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": math.ceil(start_budget(obj.spec, facts)) + BEFORE_THE_CONTAINER,
            "template": {
                "metadata": {
                    "labels": {**(placement.labels or {}), **labels, **(beside or {})},
                    # Who scrapes, and where, is the user's to say otherwise; those of eagle3.dev the schema keeps for us.
                    "annotations": {
                        **scraping(serving(obj.spec).port),
                        **(placement.annotations or {}),
                        **_adaptive(obj.spec, draft),
                    },
                },
                "spec": pod_spec(program, placement, settings, restart_policy="Always", beside=beside),
            },
        },
    }


def service(obj: Eagle3Draft, *, number: int) -> Manifest:
    """The Service of one revision, through which it is probed before it gets traffic."""
    name = obj.metadata.name
    return _service(obj, names.revision_name(name, number), names.labels(name, revision=number), number)


def public_service(obj: Eagle3Draft, *, revision: int) -> Manifest:
    """The Service that clients use; it selects the serving revision. Promotion and rollback are this selector."""
    return _service(obj, obj.metadata.name, names.labels(obj.metadata.name), revision)


def disruption_budget(obj: Eagle3Draft, *, revision: int) -> Manifest:
    """Whoever drains nodes takes the ready serving pods one after the other; one that is alone goes too.

    A pod that is not ready goes at any time. What is only tried or kept warm is not covered.
    """
    name = obj.metadata.name
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(obj, names.budget_name(name), labels=names.labels(name)),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": _selector(name, revision)},
        },
    }


def serve_placement(spec: Eagle3DraftSpec) -> Placement:
    """Where and with what servers run: the object's placement under serve's own."""
    return (serving(spec).placement or Placement()).over(spec.placement)


def serve_gpus(spec: Eagle3DraftSpec) -> int:
    """GPUs of one server."""
    gpus = serving(spec).gpus
    return spec.target.tensor_parallel_size if gpus is None else gpus


def serve_grace(spec: Eagle3DraftSpec) -> int:
    """Seconds that a server has between SIGTERM and SIGKILL."""
    return serve_placement(spec).termination_grace_period_seconds or GRACE


def _program(obj: Eagle3Draft, facts: Facts, number: int, draft: str | None, listen: str) -> Program:
    namespace, name = obj.metadata.namespace, obj.metadata.name
    flags = server_flags(obj.spec, facts, namespace=namespace, name=name, number=number, draft=draft, listen=listen)
    return Program(
        name=CONTAINER,
        image=obj.spec.image,
        command=("python3", "-m", "sglang.launch_server", *(word for flag in flags for word in flag.words)),
        mounts=_mounts(obj, draft),
        grace=serve_grace(obj.spec),
        gpus=serve_gpus(obj.spec),
        requests=LARGE,
        container={
            "ports": [{"name": PORT_NAME, "containerPort": serving(obj.spec).port, "protocol": "TCP"}],
            **_probes(start_budget(obj.spec, facts), watchdog_seconds(obj.spec)),
            **_drain(serve_grace(obj.spec)),
            # A server that crashes leaves the last lines of its log where they can be read.
            "terminationMessagePolicy": "FallbackToLogsOnError",
        },
    )


def _adapts(spec: Eagle3DraftSpec, draft: str | None) -> bool:
    return draft is not None and serving(spec).speculative.mode == "Auto"


def _adaptive(spec: Eagle3DraftSpec, draft: str | None) -> dict[str, str]:
    """What a server that adapts its steps reads of them, as a file of its pod."""
    if not _adapts(spec, draft):
        return {}
    return {names.ADAPTIVE_ANNOTATION: json.dumps(adaptive_config(serving(spec).speculative.num_steps))}


def _mounts(obj: Eagle3Draft, draft: str | None) -> tuple[Mount, ...]:
    """The user's volumes, and the drafts for a server that has one.

    The plain revision goes without: it is what remains when all else is lost, and must start also when the drafts'
    volume cannot be mounted.
    """
    placement = serve_placement(obj.spec)
    drafts = () if draft is None else (root_mount(obj, "drafts", read_only=True),)
    models = () if obj.spec.target.repository is None else (root_mount(obj, "models", read_only=True),)
    steps = annotation_file("eagle3-adaptive", names.ADAPTIVE_ANNOTATION, ADAPTIVE_FILE)
    adaptive = (steps,) if _adapts(obj.spec, draft) else ()
    return (*drafts, *models, *adaptive, *user_mounts(placement), shared_memory(placement))


def _probes(budget: float, watchdog: float) -> dict[str, Any]:
    """Readiness notices a minute of silence. A long prefill is silent too (SGLang issue 22511), so liveness waits for
    twice the watchdog's time: SGLang ends a hung server sooner by itself, and leaves stack dumps.

    Args:
        budget: seconds until a server must be ready.
        watchdog: seconds after which SGLang takes a forward pass for hung.
    """
    health = {"httpGet": {"path": "/health", "port": PORT_NAME}, "timeoutSeconds": _HEALTH_TIMEOUT}

    def within(period: int, seconds: float) -> dict[str, Any]:
        return {**health, "periodSeconds": period, "failureThreshold": max(3, math.ceil(seconds / period))}

    return {
        "startupProbe": within(10, budget),
        "readinessProbe": within(10, 30),
        "livenessProbe": within(30, 2 * watchdog),
    }


def _drain(grace: int) -> dict[str, Any]:
    """The pause must be shorter than the grace period, of which it is a part."""
    return {"lifecycle": {"preStop": {"sleep": {"seconds": DRAIN}}}} if grace > DRAIN else {}


def _selector(name: str, number: int) -> dict[str, str]:
    return {names.NAME_LABEL: name, names.REVISION_LABEL: names.revision_label(number)}


def _service(obj: Eagle3Draft, name: str, labels: Mapping[str, str], number: int) -> Manifest:
    port = {"name": PORT_NAME, "port": serving(obj.spec).port, "targetPort": PORT_NAME, "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(obj, name, labels=labels),
        "spec": {"type": "ClusterIP", "selector": _selector(obj.metadata.name, number), "ports": [port]},
    }
