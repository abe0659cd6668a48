"""The object that the tests and the demo create: the tiny target on a CPU, trained, served and watched in minutes."""

from typing import Any

from tiny.flags import SERVE_ARGUMENTS

IMAGE = "kit.local/sglang-cpu:v0.5.21"


def manifest(name: str = "tiny", **changes: Any) -> dict[str, Any]:
    """An ``Eagle3Draft``; ``changes`` replace whole sections of its spec, and None removes one.

    On a CPU a verify step costs nearly as much as its tokens one by one, so speculation may lose: the bar says so.
    """
    spec: dict[str, Any] = {
        "image": IMAGE,
        "target": {"model": "/models/tiny-target"},
        "data": {"conversations": "/data/train.jsonl", "maxLength": 256, "holdout": 0.05},
        "draft": {"auxiliaryLayers": [0, 1, 2], "vocabularySize": 512},
        "extract": {"gpus": 1, "dtype": "fp32", "stallTimeout": "5m"},
        "train": {
            "gpus": 1,
            "epochs": 2,
            "tokensPerStep": 2048,
            "learningRate": 0.002,
            "unrollSteps": 3,
            "checkpointInterval": "10s",
            "stallTimeout": "5m",
        },
        "serve": {
            "gpus": 1,
            "contextLength": 1024,
            "maxRunningRequests": 4,
            "bakeTime": "10s",
            "startTimeout": "5m",
            "speculative": {"numSteps": 3, "topK": 1, "numDraftTokens": 4},
            "arguments": list(SERVE_ARGUMENTS),
        },
        "probe": {"minAcceptLength": 2.0, "minSpeedup": 0.1, "prompts": 16, "maxTokens": 64},
        "watch": {"prometheus": {"name": "default"}, "window": "10s", "minTokens": 100},
        "storage": {"features": {"claim": "features"}, "drafts": {"claim": "drafts"}},
        "placement": {
            "volumes": [
                {
                    "name": claim,
                    "mountPath": f"/{claim}",
                    "persistentVolumeClaim": {"claimName": claim, "readOnly": True},
                }
                for claim in ("models", "data")
            ]
        },
    }
    spec = {section: value for section, value in (spec | changes).items() if value is not None}
    return {
        "apiVersion": "eagle3.dev/v1alpha1",
        "kind": "Eagle3Draft",
        "metadata": {"name": name},
        "spec": spec,
    }
