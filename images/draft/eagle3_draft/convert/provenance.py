"""Where a converted draft comes from, in a form that others verify: an in-toto statement with SLSA's provenance.

Source: in-toto Statement v1 and SLSA Provenance v1, as specified at in-toto.io and slsa.dev.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from eagle3_api import API_VERSION
from eagle3_api.jobs import ConvertConfig

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = f"https://{API_VERSION}/convert"


def statement(
    config: ConvertConfig, family: str, files: Mapping[str, str], run: Mapping[str, str]
) -> dict[str, object]:
    """The statement.

    Args:
        config: of the stage.
        family: whose layout the draft came in.
        files: sha256 of what was made, by name.
        run: versions, node, start and end.
    """
    dependencies: list[dict[str, object]] = [
        {"name": "target", "uri": f"file://{config.target}", "digest": {"eagle3Digest": config.target_digest}}
    ]
    if config.trained is not None:
        dependencies.append(
            {"name": "trained", "uri": f"file://{config.trained}", "digest": {"eagle3Key": config.trained_key}}
        )
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
                    "version": {"eagle3-operator": _own_version(), "torch": run["torch"]},
                },
                "metadata": {
                    "invocationId": f"{config.owner.uid}/{config.key}",
                    "startedOn": _timestamp(run["started"]),
                    "finishedOn": _timestamp(run["finished"]),
                },
            },
        },
    }


def _timestamp(time: str) -> str:
    """As in-toto writes UTC down: whoever signs the predicate would write it so, and sign other bytes than these."""
    return time.replace("+00:00", "Z")


def _own_version() -> str:
    """Empty where the library was copied into an image and not installed."""
    try:
        return version("eagle3-operator")
    except PackageNotFoundError:
        return ""
