"""Features in an object store, laid out as a volume's.

What is finished is what the bucket has: manifests are asked for there, never on the disk, and what they list is known by its
digest. On the pod's disk lies the part that is being made, which is uploaded and leaves it, and in a cache of their own the
shards that are read.
"""

import hashlib
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from eagle3_api.artifacts import MANIFEST
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, ObjectStoreConfig
from eagle3_api.manifest import File, Manifest
from eagle3_draft.errors import StageError
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.bucket import Bucket, Patience
from eagle3_draft.storage.shard_cache import ShardCache

#: Of the object, which names the store.
FIELD = "storage.features.objectStore"

#: Objects that are removed at a time, of a store that may have a hundred thousand.
REMOVED_TOGETHER = 16

#: Under the root, where the shards that are read lie.
SHARDS = ".shards"


class ObjectStore:
    """Features in an object store: a ``places.Place``.

    Args:
        config: of the store; credentials are in the environment.
        root: where the pod's disk is mounted, in place of a volume.
        patience: how long it is waited for.
    """

    keeps = False

    def __init__(self, config: ObjectStoreConfig, root: Path, patience: Patience = Patience()) -> None:  # noqa: B008  it is frozen
        self._bucket = Bucket(config, FIELD, patience=patience)
        self._root = root
        self._shards = ShardCache(root / SHARDS, config.cache_bytes)
        #: Manifests that the bucket has: what is finished stays so.
        self._known: dict[Path, bytes] = {}

    def check(self, folder: Path) -> None:
        self._bucket.folders(self._below(folder))
        # Who may only read would learn it from the first part, hours later. In a folder, as what was begun and given up: such go
        trial = self._below(folder / ".trial" / uuid.uuid4().hex)
        self._bucket.write(trial, b"may be removed")
        self._bucket.remove(trial)

    def finished(self, folder: Path, key: str) -> Manifest | None:
        if (text := self._manifest(folder)) is None:
            return None
        manifest = artifacts.parsed(folder, text)
        artifacts.check_key(folder, manifest, key)
        return manifest

    def manifest_text(self, folder: Path) -> bytes:
        if (text := self._manifest(folder)) is None:
            raise artifacts.never_finished(folder)
        return text

    def content(self, folder: Path, entry: File) -> bytes:
        for _ in range(2):  # what came damaged may come whole
            found = self._downloaded(folder, entry)
            if (digest := hashlib.sha256(found).hexdigest()) == entry.sha256:
                return found
        raise artifacts.changed(folder, entry, digest)

    def lease(self, folder: Path, entry: File) -> AbstractContextManager[Path]:
        return self._shards.lease(entry.sha256, entry.size, partial(self._downloaded, folder, entry))

    def forget(self, entry: File) -> bool:
        self._shards.forget(entry.sha256)
        return True

    def published(self, folder: Path, manifest: Manifest, attend: Callable[[int], None] = lambda done: None) -> None:
        own = [file for file in manifest.files if not file.is_part]  # those of parts are there already
        paths, last, done = [folder / file.path for file in own], folder / MANIFEST, sum(file.size for file in own)
        seen = -1

        def attend_alone(sent: int) -> None:
            nonlocal seen
            attend(sent)
            # Not at every look: where nothing moves, the question might not be answered either, and a pod's end waits for it
            if sent == seen:
                return
            seen = sent
            if self._is_there(last):  # of a pod that was taken for lost, or that took this one for lost
                raise StageError(
                    ExitCode.INTERRUPTED,
                    Reason.INTERRUPTED,
                    f"another pod has finished {self._below(folder)} in {self._bucket.url}; the next try continues from there",
                )

        attend_alone(0)
        self._bucket.upload({self._below(path): path for path in paths}, attend_alone)
        self._bucket.upload({self._below(last): last}, lambda more: attend(done + more))
        self._known[folder] = artifacts.manifest_text(folder)
        for path in (*paths, last):
            path.unlink(missing_ok=True)

    def inside(self, folder: Path) -> Mapping[Path, bool]:
        return {
            folder / name: self._is_there(folder / name / MANIFEST)
            for name in self._bucket.folders(self._below(folder))
        }

    def remove(self, folder: Path, told: Callable[[int], None] = lambda files: None) -> tuple[int, int]:
        self._known = {of: text for of, text in self._known.items() if not of.is_relative_to(folder)}
        found = self._bucket.objects(self._below(folder))
        # The whole's manifest, then those of its parts
        manifests = sorted(
            (one.path for one in found if one.path.endswith(f"/{MANIFEST}")), key=lambda path: path.count("/")
        )
        for number, path in enumerate(manifests, 1):
            self._bucket.remove(path)
            told(number)
        with ThreadPoolExecutor(REMOVED_TOGETHER, "removal") as threads:
            gone = threads.map(self._bucket.remove, {one.path for one in found}.difference(manifests))
            for number, _ in enumerate(gone, len(manifests) + 1):
                told(number)
        return len(found), sum(one.size for one in found)

    def _manifest(self, folder: Path) -> bytes | None:
        if folder not in self._known:
            try:
                self._known[folder] = self._bucket.read(self._below(folder / MANIFEST))
            except FileNotFoundError:
                return None
        return self._known[folder]

    def _downloaded(self, folder: Path, entry: File) -> bytes:
        try:
            content = self._bucket.read(self._below(folder / entry.path))
        except FileNotFoundError:
            raise artifacts.corrupt(folder, f"{entry.path!r} is missing in {self._bucket.url}") from None
        if len(content) != entry.size:
            raise artifacts.corrupt(
                folder, f"{entry.path!r} has {len(content)} bytes in {self._bucket.url}, {entry.size} were published"
            )
        return content

    def _is_there(self, path: Path) -> bool:
        try:
            self._bucket.size(self._below(path))
        except FileNotFoundError:
            return False
        return True

    def _below(self, path: Path) -> str:
        """Of an object, below the bucket's prefix."""
        return path.relative_to(self._root).as_posix()
