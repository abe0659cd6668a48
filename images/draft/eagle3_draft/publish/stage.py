"""What is pushed, and in which order: blobs before the manifest that names them, the draft before what refers to it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from platform import node
from typing import BinaryIO

from eagle3_api.artifacts import CONFIG, PROVENANCE, REPORT, WEIGHTS
from eagle3_api.conditions import Reason
from eagle3_api.jobs import REGISTRY_LOGIN, ConvertResult, ExitCode, PublishConfig, PublishResult
from eagle3_api.references import Reference
from eagle3_draft import artifacts
from eagle3_draft.progress import Progress
from eagle3_draft.publish.bundle import INDEX_TYPE, Bundle, File, fallback_tag, model, provenance, referrers
from eagle3_draft.publish.login import read_login
from eagle3_draft.publish.registry import Registry
from eagle3_draft.stage import StageError

#: What others get.
FILES = (CONFIG, WEIGHTS)


def run(config: PublishConfig, *, login: Path = Path(REGISTRY_LOGIN)) -> PublishResult:
    """Push a converted draft and where it comes from.

    Args:
        config: of the stage.
        login: docker's configuration, where the object names a Secret.

    Raises:
        StageError: the draft is not what was converted (CorruptArtifact); the registry refuses (RegistryDenied), or cannot be
            reached now (RegistryUnavailable), after which the next run pushes what is missing.
    """
    folder = Path(config.folder)
    if (manifest := artifacts.finished(folder, config.key)) is not None:
        return PublishResult.model_validate(manifest.numbers)
    started = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    reference = Reference.parse(config.reference)
    known = read_login(login, reference.login_host, reference.repository) if config.login else None
    registry = Registry(reference.api_host, reference.repository, known, plain_http=config.plain_http)
    converted = Path(config.converted)
    bundle = _bundle(config, converted, reference)
    _push_files(registry, converted)
    _push(registry, bundle, bundle.manifest.digest)
    _push(registry, bundle, reference.tag or f"draft-{config.draft[:12]}")
    where = _push_provenance(registry, bundle, converted, str(reference.untagged))
    result = PublishResult(
        reference=f"{reference.untagged}@{bundle.manifest.digest}",
        digest=bundle.manifest.digest,
        provenance=where,
        bytes=sum(artifacts.read(converted).file(name).size for name in FILES),
    )
    artifacts.write_atomic(folder / REPORT, json.dumps(result.to_json(), indent=1).encode())
    artifacts.publish(
        folder,
        stage=config.stage,
        key=config.key,
        made_from={"converted": config.converted_key, "draft": config.draft},
        numbers=result.to_json(),
        provenance={
            "node": node(),
            "started": started.isoformat(timespec="seconds"),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    return result


def _bundle(config: PublishConfig, converted: Path, reference: Reference) -> Bundle:
    """The draft's artifact, from what its conversion said of it."""
    manifest = artifacts.read(converted)
    if manifest.key != config.converted_key:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.CORRUPT_ARTIFACT,
            f"the draft in {converted} is that of key {manifest.key}, not {config.converted_key}; set eagle3.dev/retry to have it "
            "converted anew",
        )
    result = ConvertResult.model_validate(manifest.numbers)
    files = [File(entry.path, entry.sha256, entry.size) for entry in map(manifest.file, FILES)]
    told = {
        "digest": result.digest,
        "target": manifest.made_from["target"],
        "parameters": result.parameters,
        "dtype": json.loads(artifacts.verified(converted, CONFIG).read_bytes())["dtype"],
        "layers": result.layers,
    }
    return model(files, name=reference.repository.rpartition("/")[2], draft=told)


def _push_files(registry: Registry, converted: Path) -> None:
    """The draft's files, each read from where it lies; those that are there already are not sent again."""
    manifest = artifacts.read(converted)
    entries = [manifest.file(name) for name in FILES]
    progress = Progress(max(1, sum(entry.size for entry in entries)), "bytes")
    done = 0
    for entry in entries:
        path, digest = artifacts.verified(converted, entry.path), f"sha256:{entry.sha256}"
        if not registry.has_blob(digest):
            registry.push_blob(digest, entry.size, partial(_read, path, partial(_tell, progress, done)))
        done += entry.size
        progress.update(done)


def _tell(progress: Progress, before: int, read: int) -> None:
    progress.update(before + read)


def _push(registry: Registry, bundle: Bundle, reference: str) -> None:
    for blob in bundle.blobs:
        registry.push_document(blob)
    registry.push_manifest(bundle.manifest, reference)


def _push_provenance(registry: Registry, bundle: Bundle, converted: Path, repository: str) -> str:
    """Where the draft comes from, as what refers to its manifest; returns the digest.

    A registry that keeps a list of referrers says so in its answer (``OCI-Subject``); for another one the list is an index under a
    tag, which whoever looks for referrers reads there.
    """
    statement = json.loads(artifacts.verified(converted, PROVENANCE).read_bytes())
    said = provenance(statement, bundle.manifest, repository)
    for blob in said.blobs:
        registry.push_document(blob)
    headers = registry.push_manifest(said.manifest, said.manifest.digest)
    if "oci-subject" not in headers:
        tag = fallback_tag(bundle.manifest)
        registry.push_manifest(referrers(registry.manifest(tag, INDEX_TYPE), said.manifest), tag)
    return said.manifest.digest


class _Watched:
    """A file that tells how far it was read."""

    def __init__(self, file: BinaryIO, tell: Callable[[int], None]) -> None:
        self._file = file
        self._tell = tell

    def read(self, size: int = -1) -> bytes:
        """Some of it."""
        data = self._file.read(size)
        self._tell(self._file.tell())
        return data


@contextmanager
def _read(path: Path, tell: Callable[[int], None]) -> Iterator[_Watched]:
    with path.open("rb") as file:
        yield _Watched(file, tell)
