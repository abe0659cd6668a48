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
from eagle3_api.jobs import ConvertConfig, StageName
from eagle3_draft.data.inputs import of_extraction
from eagle3_draft.storage import artifacts

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
class Origin:
    """Where something was fetched from.

    Attributes:
        uri: hf://NAME@COMMIT, of a data set hf://datasets/NAME@COMMIT, as the hub's own client writes it; or s3://BUCKET/PREFIX/sha256-….
        digest: what it is there, by in-toto's names: ``gitCommit``, or the ``sha256`` of the manifest.
    """

    uri: str
    digest: Mapping[str, str]

    @classmethod
    def read(cls, path: str) -> "Origin | None":
        """That of a folder of Fetch's, or of the file in one; None of what was not fetched. Errors as of ``artifacts.read``."""
        folders = [folder for folder in (Path(path), Path(path).parent) if artifacts.is_of(folder, StageName.FETCH)]
        if not folders:
            return None
        made_from = artifacts.read(folders[0]).made_from
        if "address" in made_from:
            return cls(made_from["address"], {"sha256": made_from["address"].rpartition("/sha256-")[2]})
        kind, _, name = made_from["repository"].partition("/")
        prefix = "datasets/" if kind == "dataset" else ""
        return cls(f"hf://{prefix}{name}@{made_from['commit']}", {"gitCommit": made_from["commit"]})


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
    training: Training | None,
    origins: Mapping[str, Origin],
) -> dict[str, object]:
    """The statement.

    Args:
        config: of the stage.
        family: whose layout the draft came in.
        files: sha256 of what was made, by name.
        run: versions, node, start and end.
        training: that it comes from; None of a draft that was trained elsewhere.
        origins: of what was fetched, by its path (``read_origins``).
    """
    dependencies = [_input("target", config.target, origins, {"eagle3Digest": config.target_digest})]
    if config.trained is not None and training is not None:
        dependencies += _of_training(config, training, origins)
    if config.checkpoint is not None:
        digest = {"eagle3Digest": config.checkpoint_digest} if config.checkpoint_digest is not None else {}
        checkpoint = _input("checkpoint", config.checkpoint, origins, digest)
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


def read_origins(config: ConvertConfig) -> dict[str, Origin]:
    """Of the stage's inputs that were fetched, by their paths. Errors as of ``artifacts.read``."""
    paths = (config.target, config.checkpoint, _data_path(config))
    found = {path: Origin.read(path) for path in paths if path is not None}
    return {path: origin for path, origin in found.items() if origin is not None}


def _input(name: str, path: str, origins: Mapping[str, Origin], digest: Mapping[str, str]) -> dict[str, object]:
    """What something was made from, by an address that means the same elsewhere, if it has one."""
    origin = origins.get(path, Origin(f"file://{path}", {}))
    digests = {**digest, **origin.digest}
    return {"name": name, "uri": origin.uri, **({"digest": digests} if digests else {})}


def _data_path(config: ConvertConfig) -> str | None:
    data = config.data
    return (data.conversations or data.prompts or data.dataset) if data is not None else None


def _of_training(
    config: ConvertConfig, training: Training, origins: Mapping[str, Origin]
) -> Iterator[dict[str, object]]:
    """The trained draft, and the data that it learned from."""
    yield {
        "name": "trained",
        "uri": f"file://{config.trained}",
        "digest": {"eagle3Key": config.trained_key},
        "annotations": {"learnedBy": dict(training.learned_by), "run": dict(training.run)},
    }
    if "data" in training.inputs:
        path, digest = _data_path(config), {"sha256": training.inputs["data"]}
        data = _input("data", path, origins, digest) if path is not None else {"name": "data", "digest": digest}
        yield {
            **data,
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
