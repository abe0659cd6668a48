"""The samples that the tests of the control plane share: one object, what its stages found, and the least variations of it."""

from collections.abc import Mapping
from typing import Any

from eagle3_api.estimate import conversion_memory
from eagle3_api.jobs import (
    CleanConfig,
    CleanResult,
    ConvertConfig,
    ConvertResult,
    DataConfig,
    ExtractConfig,
    ExtractResult,
    Facts,
    FetchConfig,
    Fetched,
    FetchResult,
    HookConfig,
    HubSource,
    InspectConfig,
    JobConfig,
    ObjectReference,
    ProbeConfig,
    ProbeResult,
    PublishConfig,
    PublishResult,
    StageName,
    TrainConfig,
    TrainResult,
)
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.settings import PrometheusServer, Settings

SETTINGS = Settings(
    draft_image="registry.example.com/eagle3-draft:0.1.0",
    prometheus={"default": PrometheusServer(url="http://prometheus.monitoring:9090")},
)

UID = "6f1c2d7e-0d6c-4a53-9f0e-0c5f6a1b2c3d"
DRAFT = "/eagle3/drafts/llm/llama-8b/convert/c0c0c0c0c0c0c0c0"

#: Signs what is pushed, with cosign's own image, which has no shell.
HOOK = {
    "image": "registry.example.com/cosign:v2.6.5",
    "command": ["cosign", "sign", "--yes", "--tlog-upload=false", "--key=env://COSIGN_KEY", "$(EAGLE3_REFERENCE)"],
    "env": [
        {"name": "COSIGN_KEY", "secretKeyRef": {"name": "cosign", "key": "cosign.key"}},
        {"name": "COSIGN_PASSWORD", "secretKeyRef": {"name": "cosign", "key": "cosign.password"}},
    ],
}

PUBLISH = {"oci": {"reference": "registry.example.com/llm/llama-8b-eagle3", "secret": "registry"}, "hook": HOOK}

MODELS = {
    "name": "models",
    "mountPath": "/models",
    "persistentVolumeClaim": {"claimName": "models", "readOnly": True},
}
DATA = {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "conversations"}}

#: The least that trains. Its keys are golden (decide/test_keys.py).
LEAST: dict[str, Any] = {
    "image": "lmsysorg/sglang:v0.5.23",
    "target": {"model": "/models/target"},
    "data": {"conversations": "/data/train.jsonl"},
    "storage": {"features": {"claim": "features"}, "drafts": {"claim": "drafts"}},
}

#: It is served and watched too.
SPEC: dict[str, Any] = LEAST | {
    "serve": {"speculative": {"numSteps": 3, "topK": 1, "numDraftTokens": 4}, "bakeTime": "10m"},
    "probe": {"minAcceptLength": 1.8, "minSpeedup": 1.1},
    "watch": {"prometheus": {"name": "default"}, "window": "1m", "minTokens": 100},
}

FACTS = Facts(
    architecture="LlamaForCausalLM",
    num_layers=32,
    hidden_size=4096,
    vocabulary_size=128256,
    target_dtype="bfloat16",
    weight_bytes=16 * 10**9,
    context_length=8192,
    target_digest="target-1",
    auxiliary_layers=[1, 15, 28],
    draft_vocabulary_size=32000,
    sglang_version="0.5.23",
    layer_convention="output",
    capture_ids=[1, 15, 28],
    conversations=1000,
    held_out=20,
    data_digest="data-1",
    expected_tokens=500_000,
    feature_bytes=16 * 10**9,
    chat_template_digest="template-1",
)
FETCHED = "/eagle3/models/llm/llama-8b/fetch/7777777777777777"
FROM_A_HUB = FACTS.model_copy(
    update={
        "fetched": FetchResult(
            target=Fetched(
                repository="meta-llama/Llama-3.1-8B-Instruct", commit="c" * 40, path=FETCHED, files=12, bytes=16 * 10**9
            )
        )
    }
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


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of ``base`` with ``changes`` on top; a value of None removes."""
    made = dict(base)
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(made.get(name), Mapping):
            made[name] = merged(made[name], value)
        elif value is None:
            made.pop(name, None)
        else:
            made[name] = value
    return made


def draft(*, name: str = "llama-8b", **spec: Any) -> Eagle3Draft:
    """The least object that serves, with some sections of its spec replaced."""
    metadata = {"name": name, "namespace": "llm", "uid": UID}
    serving = LEAST | {"serve": {}, "placement": {"volumes": [MODELS, DATA]}}
    return Eagle3Draft.model_validate({"metadata": metadata, "spec": serving | spec})


def full_placement() -> dict[str, Any]:
    """A placement that says all that can be said."""
    return {
        "labels": {"cost-center": "llm"},
        "annotations": {"linkerd.io/inject": "disabled"},
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
    target: dict[str, Any] = {"target": LEAST["target"]["model"], "target_digest": FACTS.target_digest}
    made: dict[StageName, JobConfig] = {
        StageName.FETCH: FetchConfig(
            **common,
            target=HubSource(
                repository="meta-llama/Llama-3.1-8B-Instruct", revision="main", key="7" * 16, folder=FETCHED
            ),
        ),
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
        StageName.CLEAN: CleanConfig(**common),
        StageName.CONVERT: ConvertConfig(
            **common,
            **target,
            folder=f"{drafts}/convert/{key}",
            trained=f"{drafts}/train/tttt",
            trained_key="tttt",
            layers=[1, 15, 28],
            sglang_version="0.5.23",
            context_length=FACTS.context_length,
            memory_bytes=conversion_memory(FACTS.hidden_size, FACTS.target_dtype),
        ),
        StageName.PUBLISH: PublishConfig(
            **common,
            folder=f"{drafts}/publish/{key}",
            converted=DRAFT,
            converted_key="cccc",
            draft="sha256:4444",
            reference="registry.example.com/llm/llama-8b-eagle3",
            login=True,
        ),
        StageName.HOOK: HookConfig(
            **common,
            published=f"{drafts}/publish/pppp",
            command=HOOK["command"],
            digest=f"sha256:{'a' * 64}",
            reference=f"registry.example.com/llm/llama-8b-eagle3@sha256:{'a' * 64}",
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


# -------------------------------------------------------------------------------------------------------------- results

EXTRACTED = ExtractResult(
    conversations=980,
    held_out=20,
    tokens=400_000,
    supervised_tokens=200_000,
    bytes=13 * 10**9,
    tokens_per_second=9000.0,
)
TRAINED = TrainResult(
    steps=100,
    tokens=1_200_000,
    loss=1.2,
    accuracy=[0.75, 0.7, 0.65],
    expected_accept_lengths=[1.75, 2.3, 2.74],
    held_out=20,
    vocabulary_size=32000,
    vocabulary_coverage=0.98,
    special_tokens=22,
    special_tokens_inside=14,
    tokens_per_second=30000.0,
    waiting=0.02,
    best_step=80,
)


def converted(
    digest: str = "d" * 64, *, expected: list[float] | None = TRAINED.expected_accept_lengths
) -> ConvertResult:
    """What Convert says of a draft."""
    return ConvertResult(
        digest=digest,
        parameters=425_000_000,
        bytes=850_000_000,
        layers=[1, 15, 28],
        capture_ids=[1, 15, 28],
        draft_vocabulary_size=32000,
        prompts=32,
        prompts_digest="p" * 64,
        expected_accept_lengths=expected,
    )


def measured(*, accept: float | None = None, speed: float = 90.0, **changes: Any) -> ProbeResult:
    """A probe's result: of a plain server without ``accept``, else of a speculating one against 90 tok/s."""
    made: dict[str, Any] = {
        "speculative": accept is not None,
        "prompts_digest": "p" * 64,
        "concurrency": 1,
        "requests": 32,
        "tokens": 4096,
        "seconds": 4096 / speed,
        "tokens_per_second": speed,
        "first_token_seconds": 0.05,
        "inter_token_seconds": 0.01,
    }
    if accept is not None:
        steps = round(4064 / accept)
        made |= {
            "verify_steps": steps,
            "accept_length": accept,
            "baseline_tokens_per_second": 90.0,
            "break_even": 90.0 / (steps / (4096 / speed)),
            "compared": 32,
        }
    return ProbeResult.model_validate(made | changes)


PUSHED = PublishResult(
    reference="registry.example.com/llm/kimi@sha256:" + "a" * 64,
    digest="sha256:" + "a" * 64,
    provenance="sha256:" + "b" * 64,
    bytes=850_000_000,
)

RESULTS: dict[StageName, Any] = {
    StageName.INSPECT: FACTS,
    StageName.EXTRACT: EXTRACTED,
    StageName.TRAIN: TRAINED,
    StageName.CLEAN: CleanResult(files=12, bytes=13 * 10**9),
    StageName.CONVERT: converted(),
    StageName.PUBLISH: PUSHED,
}
