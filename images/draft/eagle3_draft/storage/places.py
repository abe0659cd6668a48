"""Where features lie: on a volume, or in an object store of which the pod's disk holds what is in use.

The code that makes, reads and removes features speaks of local folders. On a volume these are the features. With an object
store they are where a part is made before it is uploaded, its manifest last (``object_store``). Either way a folder is finished
when its manifest is there.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Protocol

from eagle3_api.artifacts import MANIFEST
from eagle3_api.jobs import ObjectStoreConfig, StageName
from eagle3_api.manifest import File, Manifest
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.object_store import ObjectStore


class Place(Protocol):
    """Where features lie.

    Attributes:
        keeps: whether what is published stays on the pod's disk.
    """

    keeps: bool

    def check(self, folder: Path) -> None:
        """Raises StageError where artifacts could not be looked for, written or removed in a folder (StorageUnavailable)."""
        ...

    def finished(self, folder: Path, key: str) -> Manifest | None:
        """The manifest of a finished artifact, or None. Errors as of ``artifacts.finished``."""
        ...

    def manifest_text(self, folder: Path) -> bytes:
        """The bytes of the manifest of an artifact that must be finished. Errors as of ``artifacts.manifest_text``."""
        ...

    def content(self, folder: Path, entry: File) -> bytes:
        """The bytes of an artifact's file, verified. Errors as of ``artifacts.verified``."""
        ...

    def lease(self, folder: Path, entry: File) -> AbstractContextManager[Path]:
        """The path of a shard, for who verifies what is read of it: it is there, of its size, while the block runs.

        A thread leases one at a time. Where the place does not keep what it has, nothing of the shard may stay mapped
        afterwards. Errors as of ``artifacts.located``.
        """
        ...

    def forget(self, entry: File) -> bool:
        """A leased shard has other bytes than were published. Whether it was a copy, which may come whole if it is leased again."""
        ...

    def published(self, folder: Path, manifest: Manifest, attend: Callable[[int], None] = lambda done: None) -> None:
        """An artifact was published in a local folder: take what it lists itself to where it is to lie.

        Args:
            folder: of the artifact.
            manifest: its own.
            attend: called at least once a second, where that takes time, with the bytes that have got there. What it raises
                gives the artifact up: it is not finished then.
        """
        ...

    def inside(self, folder: Path) -> Mapping[Path, bool]:
        """The folders in a folder, and whether there is a manifest in each. One that is not there is empty."""
        ...

    def remove(self, folder: Path, told: Callable[[int], None] = lambda files: None) -> tuple[int, int]:
        """Remove a folder, its manifest and those of its parts first. One that is not there is no fault.

        Args:
            folder: of an artifact or of working files, or a working file.
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

    def manifest_text(self, folder: Path) -> bytes:
        return artifacts.manifest_text(folder)

    def content(self, folder: Path, entry: File) -> bytes:
        return artifacts.content(folder, entry)

    def lease(self, folder: Path, entry: File) -> AbstractContextManager[Path]:
        return nullcontext(artifacts.located(folder, entry))

    def forget(self, entry: File) -> bool:
        return False

    def published(self, folder: Path, manifest: Manifest, attend: Callable[[int], None] = lambda done: None) -> None:
        """It lies where it is to lie."""

    def inside(self, folder: Path) -> Mapping[Path, bool]:
        found = (
            [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()] if folder.is_dir() else []
        )
        return {path: (path / MANIFEST).exists() for path in found}

    def remove(self, folder: Path, told: Callable[[int], None] = lambda files: None) -> tuple[int, int]:
        files, size = 0, 0
        tree = () if folder.is_symlink() else (folder, *self.inside(folder))  # what a link leads to is not ours
        for one in tree:
            with suppress(NotADirectoryError):
                (one / MANIFEST).unlink(missing_ok=True)
        below = (
            Path(parent, name)
            for parent, names, leaves in (os.walk(folder, topdown=False) if tree else ())
            for name in (*leaves, *names)
        )
        for path in chain(below, (folder,)):
            with suppress(FileNotFoundError):  # another pod removes the same
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                    continue
                used = path.lstat().st_blocks * 512
                path.unlink()
                files, size = files + 1, size + used
                told(files)
        return files, size
