"""A large new file, written past the kernel's cache and hashed in passing.

The cache's copy would take the memory of a whole draft, and on a virtual machine, whose host has to find that memory first, several times
as long as the disk. What is compared with the file later is read from the disk, as a server will. Disk and digest work beside whoever makes
the next bytes.
"""

import errno
import fcntl
import hashlib
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

#: Bytes that go to the disk at once.
BUFFER = 8 * 1024 * 1024

#: Where there is no such flag (macOS), the file goes through the cache.
_PAST_THE_CACHE = getattr(os, "O_DIRECT", 0)

#: How a file system says that it always wants its cache; some in user space and over a network the second way.
_REFUSED = (errno.EINVAL, errno.ENOTSUP)


class DirectFile:
    """What ``create`` yields."""

    def __init__(self, descriptor: int, threads: ThreadPoolExecutor) -> None:
        self._descriptor = descriptor
        self._threads = threads
        self._digest = hashlib.sha256()
        self._filling, self._leaving = _pages(), _pages()
        self._filled = 0
        self._under_way: list[Future[None]] = []

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes, which are copied: their memory is free again when this returns."""
        rest = memoryview(data)
        while rest:
            count = min(len(rest), BUFFER - self._filled)
            self._filling[self._filled : self._filled + count] = rest[:count]
            self._filled += count
            rest = rest[count:]
            if self._filled == BUFFER:
                self._send()

    def finish(self, mode: int) -> str:
        """Make the file whole, durable and of this mode; returns sha256 of its bytes, in hexadecimal."""
        self._send()
        self._wait()
        os.fchmod(self._descriptor, mode)
        os.fsync(self._descriptor)
        return self._digest.hexdigest()

    def _send(self) -> None:
        self._wait()
        self._filling, self._leaving = self._leaving, self._filling
        data, self._filled = memoryview(self._leaving)[: self._filled], 0
        self._under_way = [
            self._threads.submit(_put, self._descriptor, data),
            self._threads.submit(self._digest.update, data),
        ]

    def _wait(self) -> None:
        for task in self._under_way:
            task.result()


@contextmanager
def create(path: Path) -> Iterator[DirectFile]:
    """A new file in place of what is there; whole only once it is finished."""
    descriptor = _open(path)
    try:
        with ThreadPoolExecutor(2, "direct") as threads:
            yield DirectFile(descriptor, threads)
    finally:
        os.close(descriptor)


def _pages() -> mmap.mmap:
    """Memory that begins with a page, as it must to go to the disk without a copy."""
    return mmap.mmap(-1, BUFFER, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags | _PAST_THE_CACHE, 0o666)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return os.open(path, flags, 0o666)


def _put(descriptor: int, data: memoryview) -> None:
    """Append data; through the cache from where the file system cannot do without, which is the last block that is not full at the latest."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if error.errno not in _REFUSED or not flags & _PAST_THE_CACHE:
                raise
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_PAST_THE_CACHE)
