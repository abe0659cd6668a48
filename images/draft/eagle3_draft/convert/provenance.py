"""Where a converted draft comes from, in a form that others verify: an in-toto statement with SLSA's provenance.

Source: in-toto Statement v1 and SLSA Provenance v1, as specified at in-toto.io and slsa.dev.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from eagle3_api import API_VERSION
from eagle3_api.artifacts import REPORT
from eagle3_api.jobs import ConvertConfig
from eagle3_draft import artifacts
from eagle3_draft.data.inputs import of_extraction

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = f"https://{API_VERSION}/convert"


#: Fields of a training's configuration that decide what is learned.
LEARNED_BY = (
    "epochs",
    "tokensPerStep",
    "learningRate",
    "unrollSteps",
    "precision",
    "loss",
    "seed",
    "depth",
    "variant",
    "attention",
    "vocabularySize",
)


@dataclass(frozen=True)
class Training:
    """What is known of the training that a draft comes from.

    Attributes:
        inputs: of the extraction that it learned from, by name: ``data`` is the sha256 of the file.
        learned_by: of its configuration, ``LEARNED_BY``, and the trainer if it was somebody else's.
        run: versions, devices, start and end, of the extraction too.
    """

    inputs: Mapping[str, str]
    learned_by: Mapping[str, Any]
    run: Mapping[str, str]

    @classmethod
    def read(cls, trained: Path) -> "Training":
        """That of an artifact of Train's. Errors as of ``artifacts.verified``."""
        manifest = artifacts.read(trained)
        told: dict[str, Any] = {}
        if any(file.path == REPORT for file in manifest.files):
            told = json.loads(artifacts.verified(trained, REPORT).read_bytes()).get("config", {})
        return cls(
            of_extraction(manifest.made_from),
            {name: told[name] for name in LEARNED_BY if told.get(name) is not None} | _trainer(told.get("trainer")),
            # A statement leaves the cluster; the names of its machines do not
            {name: value for name, value in manifest.provenance.items() if name.rpartition(".")[2] != "node"},
        )


def statement(
    config: ConvertConfig,
    family: str,
    files: Mapping[str, str],
    run: Mapping[str, str],
    training: Training | None = None,
) -> dict[str, object]:
    """The statement.

    Args:
        config: of the stage.
        family: whose layout the draft came in.
        files: sha256 of what was made, by name.
        run: versions, node, start and end.
        training: that it comes from, of a draft that was trained here.
    """
    dependencies: list[dict[str, object]] = [
        {"name": "target", "uri": f"file://{config.target}", "digest": {"eagle3Digest": config.target_digest}}
    ]
    if config.trained is not None and training is not None:
        dependencies += _of_training(config, training)
    if config.checkpoint is not None:
        checkpoint: dict[str, object] = {"name": "checkpoint", "uri": f"file://{config.checkpoint}"}
        if config.checkpoint_digest is not None:
            checkpoint["digest"] = {"eagle3Digest": config.checkpoint_digest}
        dependencies.append(checkpoint | {"annotations": {"family": family}})
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in files.items()],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "object": f"{config.owner.namespace}/{config.owner.name}",
                    "layers": config.layers,
                    "sglangVersion": config.sglang_version,
                    "contextLength": config.context_length,
                },
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {
                    "id": f"https://{API_VERSION}/eagle3-draft",
                    "version": {"eagle3-operator": _own_version(), "torch": run["torch"], "sglang": run["sglang"]},
                },
                "metadata": {
                    "invocationId": f"{config.owner.uid}/{config.key}",
                    "startedOn": _timestamp(run["started"]),
                    "finishedOn": _timestamp(run["finished"]),
                },
            },
        },
    }


def _of_training(config: ConvertConfig, training: Training) -> Iterator[dict[str, object]]:
    """The trained draft, and the data that it learned from."""
    yield {
        "name": "trained",
        "uri": f"file://{config.trained}",
        "digest": {"eagle3Key": config.trained_key},
        "annotations": {"learnedBy": dict(training.learned_by), "run": dict(training.run)},
    }
    if "data" in training.inputs:
        data = config.data
        path = (data.conversations or data.prompts or data.dataset) if data is not None else None
        yield {
            "name": "data",
            **({"uri": f"file://{path}"} if path is not None else {}),
            "digest": {"sha256": training.inputs["data"]},
            "annotations": {name: value for name, value in training.inputs.items() if name not in ("data", "target")},
        }


def _trainer(command: Sequence[str] | None) -> dict[str, Any]:
    """Somebody else's trainer: its program, and what its command can be recognised by.

    The statement is published and signed; the other words may be keys, or addresses of the cluster's own.
    """
    if command is None:
        return {}
    return {"trainer": {"program": command[0], "sha256": hashlib.sha256(json.dumps(command).encode()).hexdigest()}}


def _timestamp(time: str) -> str:
    """As in-toto writes UTC down: whoever signs the predicate would write it so, and sign other bytes than these."""
    return time.replace("+00:00", "Z")


def _own_version() -> str:
    """Empty where the library was copied into an image and not installed."""
    try:
        return version("eagle3-operator")
    except PackageNotFoundError:
        return ""
