"""What leaves of a converted draft, wherever it goes: the files that SGLang loads, and the statement of where they come from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_api.artifacts import CONFIG, PROVENANCE, WEIGHTS
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertResult, ExitCode, PublishConfig, StageName
from eagle3_api.manifest import File
from eagle3_draft.errors import StageError
from eagle3_draft.storage import artifacts

#: What others get.
FILES = (CONFIG, WEIGHTS)


@dataclass(frozen=True)
class Draft:
    """A converted draft.

    Attributes:
        folder: Convert's artifact.
        files: of it that others get.
        about: what is told of the draft: ``digest``, ``target``, ``parameters``, ``dtype``, ``layers``.
        statement: where it comes from (in-toto), about these files.
    """

    folder: Path
    files: tuple[File, ...]
    about: Mapping[str, Any]
    statement: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.size for file in self.files)


def read_draft(config: PublishConfig) -> Draft:
    """The draft that a conversion made.

    Raises:
        StageError: it is not what was converted (CorruptArtifact).
    """
    folder = Path(config.converted)
    manifest = artifacts.read(folder)
    if manifest.key != config.converted_key:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.CORRUPT_ARTIFACT,
            f"the draft in {folder} has the key {manifest.key}, not {config.converted_key}; it must be converted again",
            retry=StageName.CONVERT,
        )
    result = artifacts.numbers(folder, manifest, ConvertResult)
    about = {
        "digest": result.digest,
        "target": manifest.made_from["target"],
        "parameters": result.parameters,
        "dtype": json.loads(artifacts.verified(folder, CONFIG).read_bytes())["dtype"],
        "layers": result.layers,
    }
    statement = json.loads(artifacts.verified(folder, PROVENANCE).read_bytes())
    return Draft(folder, tuple(map(manifest.file, FILES)), about, statement)


def stated(statement: Mapping[str, Any], name: str, sha256: str) -> dict[str, Any]:
    """A statement about files, about the manifest that lists them first: it is what others verify.

    Args:
        statement: Convert's.
        name: of the manifest, where it is published.
        sha256: of its bytes.
    """
    return {**statement, "subject": [{"name": name, "digest": {"sha256": sha256}}, *statement["subject"]]}


def canonical(value: object) -> bytes:
    """The one way in which a document is written down, so that the same one has the same digest."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
