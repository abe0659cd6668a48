"""Shards of an object store on the pod's disk, within a limit: those that are read now, and those that were read last.

    with cache.lease(name, size, fetch) as path:
        ...  # the shard is there, whole, and stays

All processes of a pod share one folder and agree by the kernel's locks on its files alone, so that who dies holds nothing:

    NAME               a shard. Who reads it has a shared lock on it, which is the lease
    NAME.SIZE.partial  one that comes. Who fetches it has an exclusive lock on it; it counts as SIZE from the beginning
    .lock              is locked while room is made, and while a shard appears

What nobody leases goes when room is needed, within the limit and on the disk, which others fill too: that which was used longest
ago first, and its bytes are free at once: nobody has it open. Where all is leased, who wants more waits. A thread therefore
leases one shard at a time: two that each wait for the other's would wait for ever.

A shard is not verified when it comes, but by who reads of it. What turns out to be damaged is forgotten, and comes anew.
"""

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.estimate import readable_bytes
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError

_PARTIAL = ".partial"
_LOCK = ".lock"

#: After which is looked again whether another process, which tells nobody, has released or fetched something.
LOOK_SECONDS = 0.05


class ShardCache:
    """A folder of shards that are fetched when they are wanted.

    Args:
        folder: of the shards; made if need be, and nobody else's.
        limit: bytes that they may take, those that come included. One that is larger comes all the same, and is then alone.
        free: bytes that the disk of a folder has free.
    """

    def __init__(
        self, folder: Path, limit: int, free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    ) -> None:
        self._folder = folder
        self._limit = limit
        self._free = free
        self._coming: dict[str, Future[None]] = {}
        self._changed = threading.Condition()

    @contextmanager
    def lease(self, name: str, size: int, fetch: Callable[[], bytes]) -> Iterator[Path]:
        """Have a shard on the disk while the block runs, by a path of this process's own. Nothing of it may stay mapped afterwards.

        Args:
            name: of the shard, which says what is in it: whatever has it is the same.
            size: of it, in bytes.
            fetch: gets it, ``size`` bytes. Called where it is not there, once for all who want it meanwhile.

        Raises:
            StageError: the disk has no room for it, and nothing of the cache's own that would go (StorageTooSmall); the next try may find it.
            Exception: what ``fetch`` raised, to all of this process who waited for it; whoever asks later has it fetched again.
        """
        held = self._leased(name, size, fetch)
        try:
            # Not by its name, which another may have by now: this one may be forgotten while it is read
            yield Path(f"/proc/self/fd/{held}")
        finally:
            os.close(held)
            with self._changed:
                self._changed.notify_all()

    def forget(self, name: str) -> None:
        """Have a shard fetched again by whoever leases it next. Who reads it now goes on with what was there."""
        with self._alone():
            (self._folder / name).unlink(missing_ok=True)

    def _leased(self, name: str, size: int, fetch: Callable[[], bytes]) -> int:
        """A descriptor that holds the lease."""
        while True:
            if (held := self._held(name, size)) is not None:
                return held
            with self._changed:
                coming = self._coming.get(name)
                if coming is None:
                    self._coming[name] = Future()
            if coming is not None:
                coming.result()
                continue  # it may have gone again, if there is little room
            try:
                held = self._brought(name, size, fetch)
            except BaseException as error:
                self._coming.pop(name).set_exception(error)
                raise
            self._coming.pop(name).set_result(None)
            return held

    def _held(self, name: str, size: int) -> int | None:
        """A descriptor that holds the lease of a shard that is there and whole, which counts as a use of it."""
        try:
            found = os.open(self._folder / name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        fcntl.flock(found, fcntl.LOCK_SH)
        status = os.fstat(found)
        # It went since it was opened, or its disk lost what was written last
        if not status.st_nlink or status.st_size != size:
            os.close(found)
            return None
        os.utime(found, ns=(time.time_ns(), status.st_mtime_ns))
        return found

    def _brought(self, name: str, size: int, fetch: Callable[[], bytes]) -> int:
        """Fetch a shard, unless another process was quicker; a descriptor that holds its lease."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f"{name}.{size}{_PARTIAL}"
        while True:
            with self._alone():
                if (held := self._held(name, size)) is not None:
                    return held
                if self._removed(partial) and self._has_room(size):
                    begun = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                    fcntl.flock(begun, fcntl.LOCK_EX)
                    break
            with self._changed:
                self._changed.wait(LOOK_SECONDS)
        try:
            with open(begun, "wb", closefd=False) as file:
                file.write(fetch())
            with self._alone():
                partial.rename(self._folder / name)
                fcntl.flock(begun, fcntl.LOCK_SH)
        except BaseException:
            partial.unlink(missing_ok=True)
            os.close(begun)
            raise
        return begun

    def _has_room(self, size: int) -> bool:
        """Whether a shard of this size fits, once what can go for it has gone."""
        files = self._files()
        taken = sum(held for _, held, _ in files)
        for _, held, path in sorted(files):
            if taken + size <= self._limit and self._fits(size):
                break
            if self._removed(path):
                taken -= held
        if self._fits(size):
            return taken + size <= self._limit or not taken
        if not taken:
            raise StageError(
                ExitCode.ENGINE_CRASHED,  # others fill the disk: soon, or on another node, it may have room
                Reason.STORAGE_TOO_SMALL,
                f"the pod's disk has {readable_bytes(self._free(self._folder))} free, too little for a shard of "
                f"{readable_bytes(size)}: the node's disk must have as much free as storage.features.objectStore.cache says",
            )
        return False

    def _fits(self, size: int) -> bool:
        """Whether the disk has room for a shard of this size beside what comes."""
        coming = 0
        for path in self._folder.glob(f"*{_PARTIAL}"):
            with suppress(FileNotFoundError):
                coming += _whole_size(path) - path.stat().st_size
        return coming + size <= self._free(self._folder)

    def _files(self) -> list[tuple[float, int, Path]]:
        """Of each file of the cache when it was used, its bytes (of one that comes, those that it will have), and its path."""
        found = []
        for entry in os.scandir(self._folder):
            if entry.name == _LOCK:
                continue
            with suppress(FileNotFoundError):  # a fetch that failed took its own away
                status, path = entry.stat(), Path(entry.path)
                size = _whole_size(path) if path.suffix == _PARTIAL else status.st_size
                found.append((status.st_atime, size, path))
        return found

    def _removed(self, path: Path) -> bool:
        """Remove a file that nobody has a lock on; whether it is gone."""
        try:
            found = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            os.close(found)
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While this runs no other thread or process is in it."""
        door = os.open(self._folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(door, fcntl.LOCK_EX)
            yield
        finally:
            os.close(door)


def _whole_size(partial: Path) -> int:
    """Bytes that a shard which comes will have."""
    return int(partial.stem.rpartition(".")[2])
