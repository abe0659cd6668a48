"""The Job of a stage: one for each key, created and deleted, never patched."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from eagle3_api.jobs import (
    CONFIG_ANNOTATION,
    FATAL_EXIT_CODES,
    LIBRARY,
    METRICS_PORT,
    CleanConfig,
    ConvertConfig,
    HookConfig,
    InspectConfig,
    JobConfig,
    JobEnvelope,
    ProbeConfig,
    PublishConfig,
    StageName,
)
from eagle3_api.spec import Bucket, Eagle3Draft, Eagle3DraftSpec, Train
from eagle3_operator.decision import Manifest
from eagle3_operator.manifests import hook, names
from eagle3_operator.manifests.credentials import bucket_keys, registry_login
from eagle3_operator.manifests.pods import (
    Mount,
    Program,
    configuration,
    library,
    pod_spec,
    root_mount,
    scraping,
    shared_memory,
    user_mounts,
)
from eagle3_operator.manifests.sizing import (
    is_large,
    stage_gpus,
    stage_grace,
    stage_image,
    stage_placement,
    stage_pods,
    stage_queue,
    wanted_hook,
)
from eagle3_operator.settings import Settings
from eagle3_operator.traits import TRAITS

CONTAINER = "stage"
METRICS_PORT_NAME = "metrics"

#: Failures of a Job's pods that are borne before it fails; disruptions do not count.
BACKOFF_LIMIT = 6


def template_hash(obj: Eagle3Draft, stage: StageName) -> str:
    """A hash of what the user says of a stage's pods: image, GPUs and what lies on them, placement, bucket, queue.

    A Job whose hash differs from this one was made from another wish, and may be made anew under the same name. The
    operator's own version is not in it, so that an upgrade touches no Job.
    """
    wish: dict[str, Any] = {
        "gpus": stage_gpus(obj.spec, stage),
        "placement": stage_placement(obj.spec, stage).to_json(),
    }
    if not TRAITS[stage].own_image:
        wish["image"] = stage_image(obj.spec, stage)
    if stage in (StageName.PUBLISH, StageName.HOOK) and obj.spec.publish is not None:
        wish["publish"] = obj.spec.publish.model_copy(update={"hook": None}).to_json()
    if stage is StageName.HOOK and (wanted := wanted_hook(obj.spec)) is not None:
        wish |= wanted.model_dump(include={"timeout"}, exclude_defaults=True)
    if TRAITS[stage].features and (bucket := obj.spec.storage.features.object_store) is not None:
        wish["bucket"] = bucket.to_json()
    if (pods := stage_pods(obj.spec, stage)) > 1:
        wish["shards" if stage is StageName.EXTRACT else "nodes"] = pods
    if stage is StageName.TRAIN:
        wish |= _laid_out(obj.spec.train)
    if queue := stage_queue(obj.spec, stage):
        wish["queue"] = queue
    return hashlib.sha256(_canonical(wish).encode()).hexdigest()[:16]


def _laid_out(train: Train) -> dict[str, Any]:
    """What is in no key and decides what fits on a GPU: a training that did not fit begins again with another."""
    return {
        **({"sharding": train.sharding} if train.sharding != "Full" else {}),
        **({"tokensPerPass": train.tokens_per_pass} if train.tokens_per_pass is not None else {}),
    }


def job(
    obj: Eagle3Draft,
    settings: Settings,
    *,
    config: JobConfig,
    revision: int | None = None,
    one_node: Collection[str] = (),
) -> Manifest:
    """The Job that carries out one configuration.

    Args:
        obj: the object.
        settings: of the operator: its images.
        config: what to do; it names the stage and the key.
        revision: the revision that a Probe measures; its configuration's own where left out.
        one_node: claims that only one node can have at a time.
    """
    stage = StageName(config.stage)
    if revision is None and isinstance(config, ProbeConfig):
        revision = config.revision
    name, queue, placement = obj.metadata.name, stage_queue(obj.spec, stage), stage_placement(obj.spec, stage)
    annotations = {names.KEY_ANNOTATION: config.key, names.TEMPLATE_ANNOTATION: template_hash(obj, stage)}
    program = _program(obj, settings, config)
    beside = names.together_labels(name) if program.mounts_any(one_node) else None
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": names.metadata(
            obj,
            names.job_name(name, stage, config.key),
            labels=names.labels(name, stage=stage, revision=revision, queue=queue),
            annotations=annotations,
        ),
        "spec": {
            **_completion(stage, stage_pods(obj.spec, stage)),
            # The next pod starts when the last is gone: two trainers never share GPUs or a folder.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules()},
            # Kueue resumes what it has admitted; a Job that ran before would only be stopped again.
            "suspend": obj.spec.suspend or queue is not None,
            "template": {
                "metadata": {
                    # No revision here: a Service selects a revision's pods, and a probe's pod is none of its servers.
                    "labels": {**(placement.labels or {}), **names.labels(name, stage=stage), **(beside or {})},
                    # Who scrapes, and where, is the user's to say otherwise; those of eagle3.dev the schema keeps for us.
                    "annotations": {
                        **(scraping(METRICS_PORT) if stage is StageName.TRAIN else {}),
                        **(placement.annotations or {}),
                        CONFIG_ANNOTATION: _canonical(JobEnvelope(config=config).to_json()),
                    },
                },
                "spec": pod_spec(program, placement, settings, restart_policy="Never", beside=beside),
            },
        },
    }


def _completion(stage: StageName, pods: int) -> Manifest:
    """How many pods, and how many failures are borne: of each, where several work side by side.

    Pods that train together fail together, so that one failure of the training counts as often as there are pods.
    """
    if pods == 1:
        return {"backoffLimit": BACKOFF_LIMIT}
    several = {"completionMode": "Indexed", "completions": pods, "parallelism": pods}
    if stage is StageName.TRAIN:
        return several | {"backoffLimit": BACKOFF_LIMIT * pods}
    return several | {"backoffLimitPerIndex": BACKOFF_LIMIT}


def _program(obj: Eagle3Draft, settings: Settings, config: JobConfig) -> Program:
    stage = StageName(config.stage)
    if isinstance(config, HookConfig):
        placement, grace = stage_placement(obj.spec, stage), stage_grace(obj.spec, stage)
        return hook.program(obj, config, placement, name=CONTAINER, grace=grace)
    own_image = TRAITS[stage].own_image
    return Program(
        name=CONTAINER,
        image=settings.draft_image if own_image else stage_image(obj.spec, stage),
        command=("python3", "-m", "eagle3_draft", stage.value),
        mounts=_mounts(obj, config),
        grace=stage_grace(obj.spec, stage),
        gpus=stage_gpus(obj.spec, stage),
        requests=_requests(config),
        environment={} if own_image else {"PYTHONPATH": LIBRARY},
        secrets=bucket_keys(_bucket(obj.spec, config)),
        own_image=own_image,
        container={"terminationMessagePolicy": "File", **_ports(stage)},
    )


def _requests(config: JobConfig) -> Mapping[str, str]:
    """What a stage's pod asks for where the placement says nothing."""
    requests = TRAITS[StageName(config.stage)].requests
    if isinstance(config, ConvertConfig) and config.memory_bytes is not None:
        return {**requests, "memory": f"{-(-config.memory_bytes // 2**20)}Mi"}
    return requests


def _ports(stage: StageName) -> Manifest:
    """What a stage's container answers: /metrics, where the work takes days."""
    if stage is not StageName.TRAIN:
        return {}
    return {"ports": [{"name": METRICS_PORT_NAME, "containerPort": METRICS_PORT, "protocol": "TCP"}]}


def _mounts(obj: Eagle3Draft, config: JobConfig) -> tuple[Mount, ...]:
    stage = StageName(config.stage)
    placement = stage_placement(obj.spec, stage)
    return (
        configuration(),
        *(() if TRAITS[stage].own_image else (library(read_only=True),)),
        # The others must run where a claim of ours has gone with the features, or is about to
        *((root_mount(obj, "features"),) if _sees_features(config) else ()),
        root_mount(obj, "drafts"),
        *_models(obj, stage),
        *user_mounts(placement, read_only=TRAITS[stage].only_looks),
        *((shared_memory(placement),) if is_large(obj.spec, stage) else ()),
        *(registry_login(obj.spec.publish) if stage is StageName.PUBLISH else ()),
    )


def _sees_features(config: JobConfig) -> bool:
    """Whether a stage makes, reads or removes features, or asks for their space. Where a draft is adopted no inspection does."""
    if isinstance(config, InspectConfig | CleanConfig) and config.features_gone:
        return False
    if isinstance(config, InspectConfig) and config.checkpoint is not None:
        return False
    return TRAITS[StageName(config.stage)].features


def _models(obj: Eagle3Draft, stage: StageName) -> tuple[Mount, ...]:
    """What came from a hub, for those who read the target or the data, and for Fetch, which alone writes there."""
    if not (obj.spec.fetches and TRAITS[stage].fetched):
        return ()
    return (root_mount(obj, "models", read_only=stage is not StageName.FETCH),)


def _bucket(spec: Eagle3DraftSpec, config: JobConfig) -> Bucket | None:
    """The object store that a stage speaks to, if it does."""
    if isinstance(config, PublishConfig):
        return spec.publish.object_store if spec.publish is not None else None
    return spec.storage.features.object_store if _sees_features(config) else None


def _failure_rules() -> list[Manifest]:
    """In order; the first that fits decides. Everything else counts against the backoff limit."""
    fatal = {"containerName": CONTAINER, "operator": "In", "values": list(FATAL_EXIT_CODES)}
    return [
        {"action": "FailJob", "onExitCodes": fatal},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
