"""Every manifest as a whole: one golden file a case, whose name says the case."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_api.jobs import StageName, TrainConfig
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.decision import Manifest
from eagle3_operator.manifests import group
from eagle3_operator.manifests.claims import claim
from eagle3_operator.manifests.jobs import job
from eagle3_operator.manifests.servers import deployment, disruption_budget, public_service, service
from unit.samples import (
    DATA,
    DRAFT,
    FACTS,
    FROM_A_HUB,
    KIMI,
    MODELS,
    PUBLISH,
    SETTINGS,
    config,
    draft,
    full_placement,
)

GOLDEN = Path(__file__).parent / "golden"
SHARDED: dict[str, Any] = {"extract": {"gpus": 8, "shards": 4}}
PLAIN = {"plain": "5e5e5e5e5e5e5e5e"}
DRAFTED = {"artifact": DRAFT, "digest": "sha256:4444", "plain": "5e5e5e5e5e5e5e5e"}


def stage(name: StageName, obj: Eagle3Draft | None = None, *, one_node: tuple[str, ...] = ()) -> Manifest:
    return job(obj or draft(), SETTINGS, config=config(name), one_node=one_node)


def together(*, jobsets: bool, **spec: Any) -> tuple[Manifest, ...]:
    """What is made for a training on two nodes."""
    training = config(StageName.TRAIN)
    assert isinstance(training, TrainConfig)
    return group.launched(draft(train={"gpus": 8, "nodes": 2}, **spec), SETTINGS, training, jobsets=jobsets)


def plain(obj: Eagle3Draft) -> Manifest:
    return deployment(obj, SETTINGS, FACTS, number=0, key="5e5e5e5e5e5e5e5e", replicas=1, draft=None, record=PLAIN)


def drafted(obj: Eagle3Draft, *, replicas: int = 1) -> Manifest:
    return deployment(
        obj, SETTINGS, FACTS, number=1, key="d1d1d1d1d1d1d1d1", replicas=replicas, draft=DRAFT, record=DRAFTED
    )


def kimi() -> Manifest:
    obj = draft(
        name="kimi-k25",
        target={"model": "/models/Kimi-K2.5", "tensorParallelSize": 8, "trustRemoteCode": True},
        serve={"placement": {"shmSize": "64Gi"}, "maxRunningRequests": 64, "contextLength": 32768},
        placement={"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-B200"}, "volumes": [MODELS]},
    )
    folder = "/eagle3/drafts/llm/kimi-k25/convert/c1c1c1c1c1c1c1c1"
    return deployment(obj, SETTINGS, KIMI, number=1, key="d2d2d2d2d2d2d2d2", replicas=1, draft=folder, record=DRAFTED)


ON_THE_CPU: dict[str, Any] = {
    "extract": {"gpus": 0},
    "train": {"gpus": 0},
    "serve": {
        "gpus": 0,
        "startTimeout": "10m",
        "arguments": ["--device", "cpu", "--watchdog-timeout", "900", "--dist-timeout=900"],
    },
}
ONE_CLAIM: dict[str, Any] = {
    "storage": {"features": {"claim": "everything"}, "drafts": {"claim": "everything"}},
    "placement": {
        "volumes": [
            {
                "name": "models",
                "mountPath": "/models",
                "subPath": "models",
                "persistentVolumeClaim": {"claimName": "everything", "readOnly": True},
            }
        ]
    },
}
BUCKET = {
    "features": {
        "objectStore": {"url": "s3://features/team", "endpoint": "https://s3.example.com", "secret": "bucket"}
    },
    "drafts": {"claim": "drafts"},
}
OWN_CLAIMS = {
    "features": {"size": "2Ti", "storageClassName": "nvme"},
    "drafts": {"size": "20Gi", "accessMode": "ReadWriteMany"},
}

OF_A_HUB: dict[str, Any] = {
    "target": {"model": "meta-llama/Llama-3.1-8B-Instruct", "revision": "main"},
    "storage": {"features": {"claim": "scratch"}, "drafts": {"claim": "drafts"}, "models": {"size": "100Gi"}},
    "placement": {"volumes": [DATA], "env": [{"name": "HF_TOKEN", "secretKeyRef": {"name": "hub", "key": "token"}}]},
}

CASES: dict[str, Callable[[], Manifest]] = {
    "fetch alone writes where the target is kept": lambda: job(
        draft(**OF_A_HUB), SETTINGS, config=config(StageName.FETCH)
    ),
    "inspect runs in our image and only looks at the volumes": lambda: stage(StageName.INSPECT),
    "extract runs in the serving image on its GPUs": lambda: stage(StageName.EXTRACT),
    "extract shares its parts among the pods of an Indexed Job": lambda: stage(StageName.EXTRACT, draft(**SHARDED)),
    "train follows its own placement before that of the object": lambda: stage(
        StageName.TRAIN,
        draft(
            train={"gpus": 4, "placement": {"cpu": "64", "nodeSelector": {"pool": "training"}}},
            placement=full_placement(),
        ),
    ),
    "train takes MIG slices by their name": lambda: stage(
        StageName.TRAIN, draft(train={"gpus": 2, "placement": {"gpuResource": "nvidia.com/mig-3g.71gb"}})
    ),
    "train runs on the CPU": lambda: stage(StageName.TRAIN, draft(**ON_THE_CPU)),
    "another trainer runs in its own image": lambda: stage(
        StageName.TRAIN, draft(train={"trainer": {"image": "registry.example.com/specforge:0.3", "command": ["train"]}})
    ),
    "train on several nodes is an Indexed Job whose pods have names": lambda: together(jobsets=False)[-1],
    "train on several nodes is a JobSet of one Job where the cluster serves them": lambda: together(jobsets=True)[-1],
    "the Service of pods that train together": lambda: together(jobsets=False)[0],
    "features in an object store are cached on the node and let in by a Secret that the kubelet reads": lambda: stage(
        StageName.TRAIN, draft(storage=BUCKET)
    ),
    "clean is small and runs in our image": lambda: stage(StageName.CLEAN),
    "convert sees no GPU and leaves the memory to the servers": lambda: stage(
        StageName.CONVERT, draft(placement=full_placement())
    ),
    "convert runs the target where it brought no features": lambda: stage(
        StageName.CONVERT, draft(placement=full_placement(), draft={"checkpoint": "/data/draft"}, extract={"gpus": 4})
    ),
    "publish has the registry's login from the kubelet": lambda: stage(
        StageName.PUBLISH,
        draft(publish={"oci": {"reference": "registry.example.com/llm/llama-8b-eagle3", "secret": "registry"}}),
    ),
    "publish is let into a bucket by a Secret that the kubelet reads": lambda: stage(
        StageName.PUBLISH, draft(publish={"objectStore": {"url": "s3://drafts/llm", "secret": "bucket"}})
    ),
    "a hook signs with the user's key in the user's image": lambda: stage(StageName.HOOK, draft(publish=PUBLISH)),
    "probe measures one revision": lambda: stage(StageName.PROBE),
    "a pod that mounts a ReadWriteOnce claim goes where the object's other pods of that kind are": lambda: stage(
        StageName.PROBE, draft(placement=full_placement()), one_node=("drafts",)
    ),
    "a Job of a suspended object is made suspended": lambda: stage(StageName.EXTRACT, draft(suspend=True)),
    "a Job in a queue is made suspended and Kueue resumes it": lambda: stage(StageName.TRAIN, draft(queueName="gpus")),
    "a JobSet in a queue has its label for itself and not for its Job": lambda: together(
        jobsets=True, queueName="gpus"
    )[-1],
    "servers in a queue carry its label down to their pods": lambda: plain(draft(queueName="gpus")),
    "a claim that serves for everything is one volume": lambda: stage(StageName.TRAIN, draft(**ONE_CLAIM)),
    "the plain revision needs no drafts": lambda: plain(draft()),
    "a draft revision speculates with EAGLE3": lambda: drafted(draft()),
    "a draft revision that adapts its steps reads them from its pod": lambda: drafted(
        draft(serve={"speculative": {"mode": "Auto", "numSteps": 5, "numDraftTokens": 6}})
    ),
    "a draft revision follows placement and arguments of serve": lambda: drafted(
        draft(
            serve={
                "gpus": 2,
                "port": 8000,
                "speculative": {"numSteps": 5, "topK": 4, "numDraftTokens": 16},
                "arguments": ["--mem-fraction-static", "0.8", "--enable-torch-compile"],
                "placement": {"memory": "512Gi", "env": []},
            },
            placement=full_placement(),
        ),
        replicas=3,
    ),
    "a target of a hub is served from where it was fetched to": lambda: deployment(
        draft(**OF_A_HUB), SETTINGS, FROM_A_HUB, number=0, key="5e5e5e5e5e5e5e5e", replicas=1, draft=None, record=PLAIN
    ),
    "a draft on a target with latent attention has its own backend": kimi,
    "a server on the CPU keeps the time limits that its user gave": lambda: drafted(draft(**ON_THE_CPU)),
    "the Service of a revision": lambda: service(draft(), number=1),
    "the public Service selects the serving revision": lambda: public_service(draft(), revision=0),
    "who drains nodes takes the serving pods one after the other": lambda: disruption_budget(draft(), revision=1),
    "a retained claim has no owner": lambda: claim(draft(storage=OWN_CLAIMS), "features"),
    "a claim goes with the object where deletionPolicy says so": lambda: claim(
        draft(storage=OWN_CLAIMS, deletionPolicy="Delete"), "drafts"
    ),
}


def file_of(case: str) -> Path:
    return GOLDEN / f"{case.replace(' ', '-')}.yaml"


@pytest.mark.parametrize("case", CASES)
def test_the_manifest_is_the_golden_one(case: str, update_golden: bool) -> None:
    made = json.loads(json.dumps(CASES[case]()))  # as the API server gets it; also undoes sharing, which YAML shows
    text = yaml.safe_dump(made, sort_keys=False, width=120, allow_unicode=True)
    if update_golden:
        file_of(case).write_text(text)
    assert file_of(case).read_text() == text


def test_every_golden_file_has_a_case() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {file_of(case).name for case in CASES}
