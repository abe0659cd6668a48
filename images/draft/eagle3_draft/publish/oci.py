"""A draft to an OCI registry: blobs before the manifest that names them, the draft before what refers to it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from eagle3_api.references import Reference
from eagle3_draft.publish.bundle import INDEX_TYPE, Bundle, fallback_tag, model, provenance, referrers
from eagle3_draft.publish.draft import Draft
from eagle3_draft.publish.login import read_login
from eagle3_draft.publish.registry import Registry
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.storage import artifacts


@dataclass(frozen=True)
class Pushed:
    """What is in the registry.

    Attributes:
        reference: registry/repository@digest.
        digest: of the manifest.
        provenance: digest of the manifest that refers to it.
    """

    reference: str
    digest: str
    provenance: str


def push(draft: Draft, place: str, login: Path | None, *, plain_http: bool) -> Pushed:
    """Push a draft and where it comes from.

    Args:
        draft: what others get.
        place: registry/repository, with or without a tag; without one the draft's digest makes it.
        login: docker's configuration, for a registry that wants one.
        plain_http: speak HTTP.

    Raises:
        StageError: the registry refuses (RegistryDenied), or cannot be reached now (RegistryUnavailable), after which the next
            run pushes what is missing.
    """
    reference = Reference.parse(place)
    known = read_login(login, reference.login_host, reference.repository) if login is not None else None
    registry = Registry(reference.api_host, reference.repository, known, plain_http=plain_http)
    bundle = model(draft.files, name=reference.repository.rpartition("/")[2], draft=draft.about)
    _push_files(registry, draft)
    _push(registry, bundle, bundle.manifest.digest)
    _push(registry, bundle, reference.tag or f"draft-{draft.about['digest'][:12]}")
    where = _push_provenance(registry, bundle, draft, str(reference.untagged))
    return Pushed(f"{reference.untagged}@{bundle.manifest.digest}", bundle.manifest.digest, where)


def _push_files(registry: Registry, draft: Draft) -> None:
    """The draft's files, each read from where it lies; those that are there already are not sent again."""
    progress = ProgressReporter(max(1, draft.bytes), "bytes")
    done = 0
    for file in draft.files:
        path, digest = artifacts.verified(draft.folder, file.path), f"sha256:{file.sha256}"
        if not registry.has_blob(digest):
            registry.push_blob(digest, file.size, partial(_read, path, partial(_tell, progress, done)))
        done += file.size
        progress.update(done)


def _tell(progress: ProgressReporter, before: int, read: int) -> None:
    progress.update(before + read)


def _push(registry: Registry, bundle: Bundle, reference: str) -> None:
    for blob in bundle.blobs:
        registry.push_document(blob)
    registry.push_manifest(bundle.manifest, reference)


def _push_provenance(registry: Registry, bundle: Bundle, draft: Draft, repository: str) -> str:
    """Where the draft comes from, as what refers to its manifest; returns the digest.

    A registry that keeps a list of referrers says so in its answer (``OCI-Subject``); for another one the list is an index under a
    tag, which whoever looks for referrers reads there.
    """
    said = provenance(draft.statement, bundle.manifest, repository)
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
