"""Files that appear whole or not at all, outlive a power failure, and are known by their digests."""

import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from tempfile import TemporaryFile

#: What a volume says that is full, or of which a user has had their share.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

#: Bytes that a volume which is not full takes.
PROBED = 1024 * 1024

#: Of what is published: readers run as other users.
FILE_MODE = 0o644


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that whoever looks sees the old one or the whole new one, also after a power failure."""
    with _appearing(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that whoever looks sees the old one or the whole new one, but after a power failure perhaps anything."""
    with _appearing(path) as file:
        file.write(data)


def write_pieces(path: Path, pieces: Iterable[memoryview], before: Callable[[], None] = lambda: None) -> str:
    """Write a file as ``write_whole`` does, from pieces, and return its digest.

    The digest is computed beside; until both are done all pieces stay in memory.

    Args:
        path: of the file.
        pieces: of it, in order.
        before: called when all is written, right before the file takes its place. What it raises has the old one stay.
    """
    digest = hashlib.sha256()
    with ThreadPoolExecutor(1, "digest") as beside:
        updates = []
        with _appearing(path, before) as file:
            for piece in pieces:
                updates.append(beside.submit(digest.update, piece))
                file.write(piece)
        for update in updates:
            update.result()
    return digest.hexdigest()


@contextmanager
def _appearing(path: Path, before: Callable[[], None] = lambda: None) -> Iterator[BufferedWriter]:
    """A file that is there, whole, once this ends without an error; what is left otherwise goes.

    Two pods that write the same file at the same time do not meet before it is whole.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        set_mode(partial, FILE_MODE)
        before()
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    partial.replace(path)


@contextmanager
def noticing_a_full_volume(folder: Path) -> Iterator[None]:
    """Where a library's writer fails in its own words, and the volume of this folder is full, raises the OSError that says so.

    PyTorch reports that a file ended elsewhere than it thought, safetensors an error of its own kind; and what the ranks of a
    training tell each other has lost what led to it.
    """
    try:
        yield
    except BaseException:  # which is all that PyTorch's is
        try:
            with TemporaryFile(dir=folder) as more:
                more.write(bytes(PROBED))
                more.flush()
                os.fsync(more.fileno())
        except OSError as probed:
            if probed.errno in FULL:
                raise
        raise


def remove_partials(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder. A pod that was given up and still writes there ends by it."""
    for path in folder.glob(".*.partial"):
        path.unlink(missing_ok=True)


def settle(path: Path) -> str:
    """Give a file its final mode, make it durable, and return its digest."""
    set_mode(path, FILE_MODE)
    sync(path)
    return file_digest(path)


def sync(path: Path) -> None:
    """Make a file's bytes durable; its name is with its folder (``sync_folder``)."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def set_mode(path: Path, mode: int) -> None:
    """Give a file or folder a mode, only where it has another: it may belong to another user's earlier pod."""
    if stat.S_IMODE(path.stat().st_mode) & 0o777 != mode:
        path.chmod(mode)


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable: what was created and renamed in it. Some file systems know no such thing, and need none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
