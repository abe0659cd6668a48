"""A draft to an object store: a folder that is named after its manifest, which comes last and is never replaced.

    <url>/sha256-<digest of manifest.json>/
        config.json  model.safetensors     what SGLang loads
        provenance/sha256-<digest>.json    where it comes from: one statement for each conversion that made these very bytes
        manifest.json                      an artifact's: the files, their sizes and digests

Whoever trusts the name can check everything under it, and two drafts never share one. There is no time in a manifest: the same
draft has the same address wherever it is pushed from.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from eagle3_api.artifacts import MANIFEST
from eagle3_api.conditions import Reason
from eagle3_api.jobs import BucketConfig, ExitCode, StoredDraft
from eagle3_api.manifest import File, Manifest
from eagle3_draft.errors import StageError
from eagle3_draft.publish.draft import Draft, canonical, stated
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.bucket import Bucket

#: Of the object, which names the store.
FIELD = "publish.objectStore"


def push(draft: Draft, config: BucketConfig) -> StoredDraft:
    """Push a draft and where it comes from.

    Every object appears whole or not at all, and the manifest last, so a run that was killed leaves nothing that looks finished,
    and the next one goes on with what is missing. What is there is read back, under a manifest too: the name and a size are no
    proof that nobody replaced it.

    Args:
        draft: what others get.
        config: where to; credentials are in the environment.

    Raises:
        StageError: the store lets us not in, or cannot be reached (StorageUnavailable); or something else lies where the draft
            is to lie (CorruptArtifact), and stays.
    """
    bucket = Bucket(config, FIELD)
    manifest = manifest_of(draft)
    digest = hashlib.sha256(manifest).hexdigest()
    folder = f"sha256-{digest}"
    address = f"{bucket.url}/{folder}"
    statement = canonical(stated(draft.statement, f"{address}/{MANIFEST}", digest))
    where = f"{folder}/provenance/sha256-{hashlib.sha256(statement).hexdigest()}.json"
    _put_files(bucket, folder, draft)
    for path, data in ((where, statement), (f"{folder}/{MANIFEST}", manifest)):
        if not _has(bucket, path, data):
            bucket.write(path, data)
    return StoredDraft(address=address, digest=f"sha256:{digest}", provenance=f"{bucket.url}/{where}")


def manifest_of(draft: Draft) -> bytes:
    """What names the files of a draft, the same for ever."""
    about = dict(draft.about)
    made_from = {"draft": about.pop("digest"), "target": about.pop("target")}
    manifest = Manifest(
        stage="publish", key=made_from["draft"], files=list(draft.files), made_from=made_from, numbers=about
    )
    return canonical(manifest.model_dump(mode="json", by_alias=True, exclude={"provenance"}))


def _put_files(bucket: Bucket, folder: str, draft: Draft) -> None:
    """Put what is missing. What lies there already is read back: the digest of a manifest says what others are to find."""
    progress = ProgressReporter(max(1, draft.bytes), "bytes")
    done = 0
    for file in draft.files:
        source, path = artifacts.verified(draft.folder, file.path), f"{folder}/{file.path}"
        if not _has_file(bucket, path, file, partial(_told, progress, f"{file.path} is read back", done)):
            bucket.upload({path: source}, partial(_told, progress, f"{file.path} is on its way", done))
        done += file.size
        progress.update(done)


def _told(progress: ProgressReporter, message: str, before: int, more: int) -> None:
    progress.update(before + more, message)


def _has_file(bucket: Bucket, path: str, file: File, told: Callable[[int], None]) -> bool:
    """Whether a file is there, with these very bytes; ``told`` of those that were read."""
    with suppress(FileNotFoundError):
        if bucket.size(path) != file.size or _digest(bucket, path, file.size, told) != file.sha256:
            raise _another(bucket, path)
        return True
    return False


def _digest(bucket: Bucket, path: str, size: int, told: Callable[[int], None]) -> str:
    digest, read = hashlib.sha256(), 0
    for block in bucket.blocks(path, size):
        digest.update(block)
        read += len(block)
        told(read)
    return digest.hexdigest()


def _has(bucket: Bucket, path: str, data: bytes) -> bool:
    """Whether these very bytes are there."""
    with suppress(FileNotFoundError):
        if bucket.read(path) != data:
            raise _another(bucket, path)
        return True
    return False


def _another(bucket: Bucket, path: str) -> StageError:
    return StageError(
        ExitCode.BAD_INPUT,
        Reason.CORRUPT_ARTIFACT,
        f"{FIELD}: {bucket.url}/{path} exists, but its content is not what its name says. It was left alone: find out who writes "
        "there, and remove it",
    )
