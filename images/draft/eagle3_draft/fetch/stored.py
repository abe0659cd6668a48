"""A draft that was published in an object store, as ``publish.store`` lays it down: its address vouches for every byte of it."""

import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from eagle3_api import times
from eagle3_api.artifacts import MANIFEST
from eagle3_api.checkpoints.files import files_of
from eagle3_api.conditions import Reason
from eagle3_api.jobs import BUCKET_ADDRESSING, BUCKET_AUTHORITY, BucketConfig, ExitCode, Fetched, StoredSource
from eagle3_api.manifest import File, Manifest
from eagle3_draft.errors import StageError
from eagle3_draft.fetch.space import check_space
from eagle3_draft.files import remove_partials, settle
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.bucket import Bucket, SettingNames

#: Of the object, which names the address.
FIELD = "draft.checkpoint"

#: What a user sets of the store, which the object does not name otherwise.
SETTINGS = SettingNames(
    keys="AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL in placement.env",
    authority=f"{BUCKET_AUTHORITY} in placement.env",
    region="AWS_REGION in placement.env",
    addressing=f"{BUCKET_ADDRESSING} to VirtualHost in placement.env",
)

#: Bytes of a manifest that are read at most: one of ours has some hundred.
_MANIFEST_LIMIT = 1_000_000


def fetch(source: StoredSource) -> Fetched:
    """Fetch it, unless it is there.

    Raises:
        StageError: the store lets us not in or cannot be reached (StorageUnavailable), or the environment names no way to it
            (InvalidConfiguration); it does not fit (StorageTooSmall); or what lies there is not what the address says
            (CheckpointUnreadable).
    """
    folder = Path(source.folder)
    if (manifest := artifacts.finished(folder, source.key)) is not None:
        return artifacts.numbers(folder, manifest, Fetched)
    url, _, name = source.address.rpartition("/")
    bucket = Bucket(_named_by_the_environment(url), FIELD, SETTINGS)
    listed = _manifest(bucket, name, source.address)
    wanted = files_of(file.path for file in listed.files)
    files = [file for file in listed.files if file.path in wanted]
    folder.mkdir(parents=True, exist_ok=True)
    remove_partials(folder)
    size = sum(file.size for file in files)
    check_space(source.address, size, folder)
    progress, done = ProgressReporter(max(1, size), "bytes"), 0
    for file in files:
        for block in _download(bucket, name, file, folder):
            done += block
            progress.update(done)
    fetched = Fetched(
        repository=source.address,
        commit=name.removeprefix("sha256-"),
        path=source.folder,
        files=len(files),
        bytes=size,
    )
    artifacts.publish(
        folder,
        stage="fetch",
        key=source.key,
        made_from={"address": source.address} | listed.made_from,
        numbers=fetched.to_json(),
        provenance={"finished": times.now()},
        digests={file.path: file.sha256 for file in files},
    )
    return fetched


def _named_by_the_environment(url: str) -> BucketConfig:
    try:
        return BucketConfig.model_validate(
            {
                "url": url,
                "endpoint": os.environ.get("AWS_ENDPOINT_URL"),
                "region": os.environ.get("AWS_REGION", "us-east-1"),
                "addressing": os.environ.get(BUCKET_ADDRESSING),
            }
        )
    except ValidationError:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"{FIELD}: {BUCKET_ADDRESSING} in placement.env is neither Path nor VirtualHost",
        ) from None


def _manifest(bucket: Bucket, name: str, address: str) -> Manifest:
    path = f"{name}/{MANIFEST}"
    try:
        data = bucket.read_at_most(path, _MANIFEST_LIMIT) or b""
    except FileNotFoundError:
        raise _unreadable(address, f"there is no {MANIFEST}, so it was never published whole, or was deleted") from None
    if f"sha256-{hashlib.sha256(data).hexdigest()}" != name:
        raise _unreadable(address, f"its {MANIFEST} has another digest")
    try:
        return Manifest.model_validate_json(data)
    except ValidationError:
        raise _unreadable(address, f"its {MANIFEST} is none of a draft") from None


def _download(bucket: Bucket, name: str, file: File, folder: Path) -> Iterator[int]:
    """One file, of which nothing is to be seen before it is whole and the very one; the bytes of each block that came."""
    # Of its own: a pod that was taken for lost may still write its
    partial = folder / f".{file.path}.{uuid.uuid4().hex[:8]}.partial"
    try:
        with partial.open("wb") as coming:
            for block in _blocks(bucket, name, file):
                yield coming.write(block)
        if settle(partial) != file.sha256:
            raise _another(bucket, name, file)
        partial.replace(folder / file.path)
    finally:
        partial.unlink(missing_ok=True)


def _blocks(bucket: Bucket, name: str, file: File) -> Iterator[bytes]:
    """One file's bytes, where it is there and as long as it should be."""
    path = f"{name}/{file.path}"
    try:
        if bucket.size(path) != file.size:
            raise _another(bucket, name, file)
        yield from bucket.blocks(path, file.size)
    except FileNotFoundError:
        raise _unreadable(f"{bucket.url}/{name}", f"{file.path} is missing") from None


def _another(bucket: Bucket, name: str, file: File) -> StageError:
    return _unreadable(f"{bucket.url}/{name}", f"{file.path} is not the one that its {MANIFEST} names")


def _unreadable(address: str, what: str) -> StageError:
    return StageError(
        ExitCode.BAD_INPUT,
        Reason.CHECKPOINT_UNREADABLE,
        f"{FIELD}: {address}: {what}. Remove that folder and publish the draft again (eagle3.dev/retry=publish@<any new word> on the "
        "object that did), or name another",
    )
