"""Objects and configurations that the tests of the manifests build from."""

from typing import Any

from eagle3_api.jobs import (
    CleanConfig,
    ConvertConfig,
    DataConfig,
    ExtractConfig,
    Facts,
    InspectConfig,
    JobConfig,
    ObjectReference,
    ProbeConfig,
    StageName,
    TrainConfig,
)
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.settings import Settings

SETTINGS = Settings(draft_image="registry.example.com/eagle3-draft:0.1.0")

UID = "6f1c2d7e-0d6c-4a53-9f0e-0c5f6a1b2c3d"
DRAFT = "/eagle3/drafts/llm/llama-8b/convert/c0c0c0c0c0c0c0c0"

MODELS = {
    "name": "models",
    "mountPath": "/models",
    "persistentVolumeClaim": {"claimName": "models", "readOnly": True},
}
DATA = {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "conversations"}}

FACTS = Facts(
    architecture="LlamaForCausalLM",
    num_layers=32,
    hidden_size=4096,
    vocabulary_size=128256,
    target_dtype="bfloat16",
    weight_bytes=16_060_522_496,
    context_length=131072,
    target_digest="sha256:1111",
    auxiliary_layers=[1, 15, 28],
    draft_vocabulary_size=32000,
    sglang_version="0.5.23",
    layer_convention="output",
    capture_ids=[1, 15, 28],
)
KIMI = FACTS.model_copy(
    update={
        "architecture": "KimiK25ForConditionalGeneration",
        "num_layers": 61,
        "hidden_size": 7168,
        "weight_bytes": 595_000_000_000,
        "context_length": 262144,
    }
)


def draft(*, name: str = "llama-8b", **spec: Any) -> Eagle3Draft:
    """The least object that serves, with some sections of its spec replaced."""
    least: dict[str, Any] = {
        "image": "lmsysorg/sglang:v0.5.23",
        "target": {"model": "/models/Llama-3.1-8B-Instruct"},
        "data": {"conversations": "/data/train.jsonl"},
        "serve": {},
        "storage": {"features": {"claim": "scratch"}, "drafts": {"claim": "drafts"}},
        "placement": {"volumes": [MODELS, DATA]},
    }
    metadata = {"name": name, "namespace": "llm", "uid": UID}
    return Eagle3Draft.model_validate({"metadata": metadata, "spec": least | spec})


def full_placement() -> dict[str, Any]:
    """A placement that says all that can be said."""
    return {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["80000"]}]}
                    ]
                }
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "labelSelector": {"matchLabels": {"eagle3.dev/name": "llama-8b"}},
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }
                ]
            },
        },
        "tolerations": [{"key": "team", "operator": "Equal", "value": "llm", "effect": "NoExecute"}],
        "volumes": [MODELS, DATA | {"subPath": "sharegpt"}],
        "env": [
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "HF_TOKEN", "secretKeyRef": {"name": "hub", "key": "token"}},
        ],
        "cpu": "32",
        "memory": "256Gi",
        "shmSize": "32Gi",
        "terminationGracePeriodSeconds": 300,
        "priorityClassName": "research",
        "runtimeClassName": "nvidia",
        "runAsUser": 1000,
        "runAsGroup": 100,
        "fsGroup": 2000,
        "supplementalGroups": [3000, 3001],
        "serviceAccountName": "trainer",
        "imagePullSecrets": ["registry"],
    }


def config(
    stage: StageName, *, key: str = "0123456789abcdef", namespace: str = "llm", name: str = "llama-8b"
) -> JobConfig:
    """A configuration of the stage."""
    common: dict[str, Any] = {"owner": ObjectReference(namespace=namespace, name=name, uid=UID), "key": key}
    drafts = f"/eagle3/drafts/{namespace}/{name}"
    features = f"/eagle3/features/{namespace}/{name}"
    data = DataConfig(conversations="/data/train.jsonl", max_length=2048, holdout=0.02)
    target: dict[str, Any] = {"target": "/models/Llama-3.1-8B-Instruct", "target_digest": "sha256:1111"}
    made: dict[StageName, JobConfig] = {
        StageName.INSPECT: InspectConfig(**common, target=target["target"], data=data, sglang_version="0.5.23"),
        StageName.EXTRACT: ExtractConfig(
            **common,
            **target,
            folder=f"{features}/extract/{key}",
            data=data,
            data_digest="sha256:2222",
            layers=[1, 15, 28],
            dtype="bf16",
            sglang_version="0.5.23",
        ),
        StageName.TRAIN: TrainConfig(
            **common,
            **target,
            folder=f"{drafts}/train/{key}",
            scratch=f"{features}/train/{key}",
            features=f"{features}/extract/eeee",
            features_key="eeee",
            layers=[1, 15, 28],
            vocabulary_size=32000,
            epochs=3,
            tokens_per_step=8192,
            learning_rate=1e-4,
            unroll_steps=7,
            seed=0,
            checkpoint_interval=600.0,
        ),
        StageName.CLEAN: CleanConfig(**common, folders=[f"{features}/extract/eeee", f"{features}/train/tttt"]),
        StageName.CONVERT: ConvertConfig(
            **common,
            **target,
            folder=f"{drafts}/convert/{key}",
            trained=f"{drafts}/train/tttt",
            trained_key="tttt",
            layers=[1, 15, 28],
            sglang_version="0.5.23",
            context_length=131072,
        ),
        StageName.PROBE: ProbeConfig(
            **common,
            folder=f"{drafts}/probe/{key}",
            revision=1,
            url="http://llama-8b-r1:30000",
            prompts=DRAFT,
            prompts_digest="sha256:3333",
            expected_arguments={"speculative_algorithm": "EAGLE3"},
            concurrency=1,
            count=32,
            max_tokens=128,
        ),
    }
    return made[stage]
