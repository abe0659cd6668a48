"""Shards of an object store on the pod's disk, within a limit: those that are read now, and those that were read last.

    with cache.lease(name, size, fetch) as path:
        ...  # the shard is there, whole, and stays

All processes of a pod share one folder and agree by the kernel's locks on its files alone, so that who dies holds nothing:

    NAME               a shard. Who reads it has a shared lock on it, which is the lease
    NAME.SIZE.partial  one that comes. Who fetches it has an exclusive lock on it; it counts as SIZE from the beginning
    .lock              is locked while room is made, and while a shard appears

What nobody leases goes when room is needed, that which was used longest ago first, and its bytes are free at once: nobody has
it open. Where all is leased, who wants more waits. A thread therefore leases one shard at a time: two that each wait for the
other's would wait for ever.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

_PARTIAL = ".partial"
_LOCK = ".lock"

#: After which is looked again whether another process, which tells nobody, has released or fetched something.
LOOK_SECONDS = 0.05


class ShardCache:
    """A folder of shards that are fetched when they are wanted.

    Args:
        folder: of the shards; made if need be, and nobody else's.
        limit: bytes that they may take, those that come included. One that is larger comes all the same, and is then alone.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._coming: dict[str, Future[None]] = {}
        self._changed = threading.Condition()

    @contextmanager
    def lease(self, name: str, size: int, fetch: Callable[[], bytes]) -> Iterator[Path]:
        """Have a shard on the disk while the block runs. Nothing of it may stay mapped afterwards.

        Args:
            name: of the shard, which says what is in it: whatever has it is the same.
            size: of it, in bytes.
            fetch: gets it, ``size`` bytes. Called where it is not there, once for all who want it meanwhile.

        Raises:
            Exception: what ``fetch`` raised, to all of this process who waited for it; whoever asks later has it fetched again.
        """
        held = self._leased(name, size, fetch)
        try:
            yield self._folder / name
        finally:
            os.close(held)
            with self._changed:
                self._changed.notify_all()

    def _leased(self, name: str, size: int, fetch: Callable[[], bytes]) -> int:
        """A descriptor that holds the lease."""
        while True:
            if (held := self._held(name)) is not None:
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

    def _held(self, name: str) -> int | None:
        """A descriptor that holds the lease of a shard that is there, which counts as a use of it."""
        try:
            found = os.open(self._folder / name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        fcntl.flock(found, fcntl.LOCK_SH)
        if not (status := os.fstat(found)).st_nlink:  # it went since it was opened
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
                if (held := self._held(name)) is not None:
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
            if taken + size <= self._limit:
                break
            if self._removed(path):
                taken -= held
        return taken + size <= self._limit or not taken

    def _files(self) -> list[tuple[float, int, Path]]:
        """Of each file of the cache when it was used, its bytes (of one that comes, those that it will have), and its path."""
        found = []
        for entry in os.scandir(self._folder):
            if entry.name == _LOCK:
                continue
            with suppress(FileNotFoundError):  # a fetch that failed took its own away
                status, path = entry.stat(), Path(entry.path)
                size = int(path.stem.rpartition(".")[2]) if path.suffix == _PARTIAL else status.st_size
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
