"""Where features lie: on a volume, or in an object store of which the pod's disk holds what is in use.

The code that makes, reads and removes features speaks of local folders. On a volume these are the features. With an object
store they are a cache: what is published there is uploaded, its manifest last, and leaves the disk; shards are downloaded
when they are leased, and go when others need the room. Either way a folder is finished when its manifest is there.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from eagle3_api.artifacts import MANIFEST
from eagle3_api.jobs import ObjectStoreConfig, StageName
from eagle3_api.manifest import File, Manifest
from eagle3_draft import artifacts
from eagle3_draft.bucket import Bucket
from eagle3_draft.shard_cache import ShardCache

#: Of the object, which names the store.
FIELD = "storage.features.objectStore"

#: Under the root, the shards that lie on the pod's disk. They go as room is needed; what else is read stays, some megabytes.
SHARDS = ".shards"


class Place(Protocol):
    """Where features lie.

    Attributes:
        keeps: whether what is published stays on the pod's disk.
    """

    keeps: bool

    def check(self, folder: Path) -> None:
        """Raises StageError where artifacts could not be looked for in a folder (StorageUnavailable)."""
        ...

    def finished(self, folder: Path, key: str) -> Manifest | None:
        """The manifest of a finished artifact, or None. Errors as of ``artifacts.finished``."""
        ...

    def read(self, folder: Path) -> Manifest:
        """The manifest of an artifact that must be finished. Errors as of ``artifacts.read``."""
        ...

    def file(self, folder: Path, entry: File) -> Path:
        """The path of an artifact's file, verified. Errors as of ``artifacts.verified``."""
        ...

    def lease(self, folder: Path, entry: File) -> AbstractContextManager[Path]:
        """The path of a shard, for who verifies what is read of it: it is there, of its size, while the block runs.

        A thread leases one at a time. Where the place does not keep what it has, nothing of the shard may stay mapped
        afterwards. Errors as of ``artifacts.located``.
        """
        ...

    def published(self, folder: Path, manifest: Manifest) -> None:
        """An artifact was published in a local folder: take what it lists itself to where it is to lie."""
        ...

    def inside(self, folder: Path) -> Mapping[Path, bool]:
        """The folders in a folder, and whether there is a manifest in each. One that is not there is empty."""
        ...

    def remove(self, folder: Path, told: Callable[[int], None] = lambda files: None) -> tuple[int, int]:
        """Remove a folder, its manifest and those of its parts first. One that is not there is no fault.

        Args:
            folder: of an artifact, or of working files.
            told: is told now and then how many files are gone.

        Returns:
            Files and bytes.
        """
        ...


def place(config: ObjectStoreConfig | None, root: Path) -> Place:
    """Where a stage's features lie.

    Args:
        config: of an object store, or None for a volume.
        root: where the volume, or the cache, is mounted.

    Raises:
        StageError: nothing here speaks to an object store (InvalidConfiguration).
    """
    return Volume() if config is None else ObjectStore(config, root)


def place_of(config: ObjectStoreConfig | None, artifact: Path) -> Place:
    """As ``place``, for an artifact's folder, ``<root>/<namespace>/<name>/<stage>/<key>``."""
    return Volume() if config is None else ObjectStore(config, artifact.parents[3])


def remove_abandoned(own: Path, stage: StageName, at: Place) -> None:
    """Remove what lies unfinished beside an artifact's folder, under other keys of its stage: the spec has changed since.

    What is finished stays, for an edit that is taken back.
    """
    if own.parent.name != stage:  # not laid out as artifacts are: others' things may lie there
        return
    for other, finished in at.inside(own.parent).items():
        if other != own and not finished:
            with suppress(OSError):  # it takes space, and does no harm
                at.remove(other)


class Volume:
    """Features on a volume."""

    keeps = True

    def check(self, folder: Path) -> None:
        """One that is not there is missed when its free space is asked for."""

    def finished(self, folder: Path, key: str) -> Manifest | None:
        return artifacts.finished(folder, key)

    def read(self, folder: Path) -> Manifest:
        return artifacts.read(folder)

    def file(self, folder: Path, entry: File) -> Path:
        return artifacts.verified_entry(folder, entry)

    def lease(self, folder: Path, entry: File) -> AbstractContextManager[Path]:
        return nullcontext(artifacts.located(folder, entry))

    def published(self, folder: Path, manifest: Manifest) -> None:
        """It lies where it is to lie."""

    def inside(self, folder: Path) -> Mapping[Path, bool]:
        found = (
            [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()] if folder.is_dir() else []
        )
        return {path: (path / MANIFEST).exists() for path in found}

    def remove(self, folder: Path, told: Callable[[int], None] = lambda files: None) -> tuple[int, int]:
        files, size = 0, 0
        for one in (folder, *self.inside(folder)):
            (one / MANIFEST).unlink(missing_ok=True)
        for parent, names, leaves in os.walk(folder, topdown=False):
            for path in map(Path(parent).joinpath, (*leaves, *names)):
                with suppress(FileNotFoundError):  # another pod removes the same
                    if path.is_dir() and not path.is_symlink():
                        path.rmdir()
                        continue
                    used = path.lstat().st_blocks * 512
                    path.unlink()
                    files, size = files + 1, size + used
                    told(files)
        with suppress(FileNotFoundError):
            folder.rmdir()
        return files, size


class ObjectStore:
    """Features in an object store.

    Args:
        config: of the store; credentials are in the environment.
        root: of the cache.
    """

    keeps = False

    def __init__(self, config: ObjectStoreConfig, root: Path) -> None:
        self._bucket = Bucket(config, FIELD)
        self._files = self._bucket.files
        self._root = root
        self._shards = ShardCache(root / SHARDS, config.cache_bytes)

    def check(self, folder: Path) -> None:
        with self._asking(folder):
            self._files.find(f"{self._name(folder)}/{MANIFEST}")

    def finished(self, folder: Path, key: str) -> Manifest | None:
        if not self._has_manifest(folder):
            return None
        manifest = artifacts.read(folder)
        artifacts.check_key(folder, manifest, key)
        return manifest

    def read(self, folder: Path) -> Manifest:
        self._has_manifest(folder)
        return artifacts.read(folder)

    def file(self, folder: Path, entry: File) -> Path:
        path = folder / entry.path
        if not path.exists():
            content = self._downloaded(folder, entry)
            path.parent.mkdir(parents=True, exist_ok=True)
            artifacts.write_atomic(path, content)
        return artifacts.verified_entry(folder, entry)

    def lease(self, folder: Path, entry: File) -> AbstractContextManager[Path]:
        return self._shards.lease(entry.sha256, entry.size, partial(self._downloaded, folder, entry))

    def published(self, folder: Path, manifest: Manifest) -> None:
        own = [file for file in manifest.files if not file.is_part]  # those of parts are there already
        for file in own:
            with self._asking(folder / file.path):
                self._files.put_file(str(folder / file.path), self._name(folder / file.path))
        with self._asking(folder):
            self._files.put_file(str(folder / MANIFEST), self._name(folder / MANIFEST))
        for file in own:
            (folder / file.path).unlink(missing_ok=True)

    def inside(self, folder: Path) -> Mapping[Path, bool]:
        parent = self._name(folder)
        with self._asking(folder):
            names = {name.removeprefix(f"{parent}/") for name in self._files.find(parent)}
        return {folder / name.partition("/")[0]: f"{name.partition('/')[0]}/{MANIFEST}" in names for name in names}

    def remove(self, folder: Path, told: Callable[[int], None] = lambda files: None) -> tuple[int, int]:
        name = self._name(folder)
        with self._asking(folder):
            found = self._files.find(name, detail=True)
            # The whole's manifest, then those of its parts
            in_order = sorted(found, key=lambda one: (not one.endswith(f"/{MANIFEST}"), one.count("/")))
            for number, one in enumerate(in_order, 1):
                self._files.rm_file(one)
                told(number)
        return len(found), sum(one["size"] for one in found.values())

    def _has_manifest(self, folder: Path) -> bool:
        path = folder / MANIFEST
        if path.exists():
            return True
        try:
            with self._asking(folder):
                text = self._files.cat_file(self._name(path))
        except FileNotFoundError:
            return False
        folder.mkdir(parents=True, exist_ok=True)
        artifacts.write_atomic(path, text)
        return True

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

    def _name(self, path: Path) -> str:
        """Of an object, as fsspec wants it."""
        return self._bucket.name(path.relative_to(self._root).as_posix())

    def _asking(self, path: Path) -> AbstractContextManager[None]:
        return self._bucket.asking(path.name)
