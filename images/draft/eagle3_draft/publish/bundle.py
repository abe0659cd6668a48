"""What is pushed: an OCI artifact in the form of CNCF's ModelPack, and a statement of where it comes from that refers to it.

Bytes, and what describes them; nothing here talks to anyone. There is no time and no machine in a manifest: the same draft has
the same digest wherever and whenever it is pushed.
Source: OCI image-spec 1.1, modelpack/model-spec (``docs/spec.md``, ``docs/config.md``), in-toto's "Link to OCI referrers".
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_api.manifest import File
from eagle3_draft.publish.draft import canonical, stated

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MODEL_TYPE = "application/vnd.cncf.model.manifest.v1+json"
_MODEL_CONFIG_TYPE = "application/vnd.cncf.model.config.v1+json"
_WEIGHT_TYPE = "application/vnd.cncf.model.weight.v1.raw"
_WEIGHT_CONFIG_TYPE = "application/vnd.cncf.model.weight.config.v1.raw"
STATEMENT_TYPE = "application/vnd.in-toto+json"
_EMPTY_TYPE, _EMPTY = "application/vnd.oci.empty.v1+json", b"{}"

#: ORAS and ModelPack restore a layer under this name.
_NAMES = ("org.opencontainers.image.title", "org.cncf.model.filepath")


@dataclass(frozen=True)
class Document:
    """Bytes that are small enough to be in memory: a manifest, or a blob that one names."""

    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        """As registries write it."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"

    def described(self, **more: object) -> dict[str, object]:
        """The descriptor that another document holds of it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.data), **more}


@dataclass(frozen=True)
class Bundle:
    """A manifest and the small blobs that it names, which must be there before it.

    Attributes:
        manifest: itself.
        blobs: its configuration, and whatever else is not a file of the draft.
    """

    manifest: Document
    blobs: tuple[Document, ...]


def model(files: Sequence[File], *, name: str, draft: Mapping[str, Any]) -> Bundle:
    """The artifact of a draft.

    Args:
        files: weights and config.json; their blobs are pushed from where they lie.
        name: of the draft.
        draft: what is told of it: ``digest``, ``target``, ``parameters``, ``dtype``, ``layers``.
    """
    about = {
        "descriptor": {
            "family": "eagle3",
            "name": name,
            "title": f"EAGLE-3 draft {name}",
            "description": f"For the target {draft['target']}; it reads the outputs of layers {draft['layers']}.",
        },
        "modelfs": {"type": "layers", "diffIds": [f"sha256:{file.sha256}" for file in files]},
        "config": {
            "architecture": "transformer",
            "format": "safetensors",
            "paramSize": str(draft["parameters"]),
            "precision": draft["dtype"],
        },
    }
    config = Document(_MODEL_CONFIG_TYPE, canonical(about))
    layers = [
        {
            "mediaType": _WEIGHT_TYPE if file.path.endswith(".safetensors") else _WEIGHT_CONFIG_TYPE,
            "digest": f"sha256:{file.sha256}",
            "size": file.size,
            "annotations": dict.fromkeys(_NAMES, file.path),
        }
        for file in files
    ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": MODEL_TYPE,
        "config": config.described(),
        "layers": layers,
        "annotations": {
            "org.opencontainers.image.title": name,
            "eagle3.dev/draft": draft["digest"],
            "eagle3.dev/target": draft["target"],
        },
    }
    return Bundle(Document(MANIFEST_TYPE, canonical(manifest)), (config,))


def provenance(statement: Mapping[str, Any], subject: Document, repository: str) -> Bundle:
    """The statement of where a draft comes from, as an artifact that refers to the draft's own.

    Args:
        statement: Convert's, whose subjects are files.
        subject: the draft's manifest, which becomes the first subject: it is what others verify.
        repository: where it is.
    """
    whole = stated(statement, repository, subject.digest.removeprefix("sha256:"))
    layer, empty = Document(STATEMENT_TYPE, canonical(whole)), Document(_EMPTY_TYPE, _EMPTY)
    annotations = {"in-toto.io/predicate-type": statement["predicateType"]}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": STATEMENT_TYPE,
        "config": empty.described(),
        "layers": [layer.described(annotations=annotations)],
        "subject": subject.described(),
        "annotations": annotations,
    }
    return Bundle(Document(MANIFEST_TYPE, canonical(manifest)), (empty, layer))


def referrers(known: Mapping[str, Any] | None, referrer: Document) -> Document:
    """The index under a fallback tag, for registries that do not answer who refers to what, with one more referrer in it.

    Args:
        known: the index as it is there; None where there is none yet.
        referrer: the manifest to be added.
    """
    said = json.loads(referrer.data)
    entry = referrer.described(artifactType=said["artifactType"], annotations=said["annotations"])
    others = [one for one in (known or {}).get("manifests", []) if one.get("digest") != referrer.digest]
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*others, entry]}
    return Document(INDEX_TYPE, canonical(index))


def fallback_tag(subject: Document) -> str:
    """The tag of that index."""
    return subject.digest.replace(":", "-")
