"""Features in an object store, laid out as a volume's.

What is finished is what the bucket has: manifests are asked for there, never on the disk, and what they list is known by its
digest. On the pod's disk lies the part that is being made, which is uploaded and leaves it, and in a cache of their own the
shards that are read.
"""

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from eagle3_api.artifacts import MANIFEST
from eagle3_api.jobs import ObjectStoreConfig
from eagle3_api.manifest import File, Manifest
from eagle3_draft import artifacts
from eagle3_draft.bucket import Bucket
from eagle3_draft.shard_cache import ShardCache

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
    """

    keeps = False

    def __init__(self, config: ObjectStoreConfig, root: Path) -> None:
        self._bucket = Bucket(config, FIELD)
        self._files = self._bucket.files
        self._root = root
        self._shards = ShardCache(root / SHARDS, config.cache_bytes)
        #: Manifests that the bucket has: what is finished stays so.
        self._known: dict[Path, bytes] = {}

    def check(self, folder: Path) -> None:
        with self._asking(folder):
            self._files.find(f"{self._name(folder)}/{MANIFEST}")

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
        paths = [folder / file.path for file in manifest.files if not file.is_part]  # those of parts are there already
        self._bucket.upload({self._below(path): path for path in paths}, attend)
        done, last = sum(file.size for file in manifest.files if not file.is_part), folder / MANIFEST
        self._bucket.upload({self._below(last): last}, lambda more: attend(done + more))
        self._known[folder] = artifacts.manifest_text(folder)
        for path in (*paths, folder / MANIFEST):
            path.unlink(missing_ok=True)

    def inside(self, folder: Path) -> Mapping[Path, bool]:
        parent = self._name(folder)
        with self._asking(folder):
            names = {name.removeprefix(f"{parent}/") for name in self._files.find(parent)}
        return {folder / name.partition("/")[0]: f"{name.partition('/')[0]}/{MANIFEST}" in names for name in names}

    def remove(self, folder: Path, told: Callable[[int], None] = lambda files: None) -> tuple[int, int]:
        self._known = {of: text for of, text in self._known.items() if not of.is_relative_to(folder)}
        with self._asking(folder):
            found = self._files.find(self._name(folder), detail=True)
            # The whole's manifest, then those of its parts
            manifests = sorted(
                (name for name in found if name.endswith(f"/{MANIFEST}")), key=lambda name: name.count("/")
            )
            for number, one in enumerate(manifests, 1):
                self._files.rm_file(one)
                told(number)
            with ThreadPoolExecutor(REMOVED_TOGETHER, "removal") as threads:
                gone = threads.map(self._files.rm_file, found.keys() - set(manifests))
                for number, _ in enumerate(gone, len(manifests) + 1):
                    told(number)
        return len(found), sum(one["size"] for one in found.values())

    def _manifest(self, folder: Path) -> bytes | None:
        if folder not in self._known:
            try:
                with self._asking(folder):
                    self._known[folder] = self._files.cat_file(self._name(folder / MANIFEST))
            except FileNotFoundError:
                return None
        return self._known[folder]

    def _downloaded(self, folder: Path, entry: File) -> bytes:
        path = folder / entry.path
        try:
            with self._asking(path):
                content: bytes = self._files.cat_file(self._name(path))
        except FileNotFoundError:
            raise artifacts.corrupt(folder, f"{entry.path!r} is missing in {self._bucket.url}") from None
        if len(content) != entry.size:
            raise artifacts.corrupt(
                folder, f"{entry.path!r} has {len(content)} bytes in {self._bucket.url}, {entry.size} were published"
            )
        return content

    def _below(self, path: Path) -> str:
        """Of an object, below the bucket's prefix."""
        return path.relative_to(self._root).as_posix()

    def _name(self, path: Path) -> str:
        """Of an object, as fsspec wants it."""
        return self._bucket.name(self._below(path))

    def _asking(self, path: Path) -> AbstractContextManager[None]:
        return self._bucket.asking(path.name)
