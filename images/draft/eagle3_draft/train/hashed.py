"""A checkpoint's files, whose digests are known once they are written: of what was given to be written, not of what was read again."""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, cast

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter


class HashedWriter(FileSystemWriter):
    """Writes this rank's part of a checkpoint.

    Args:
        folder: of the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fs = self._files = _HashedFiles()

    @property
    def digests(self) -> dict[str, str]:
        """sha256 of what was written, in hexadecimal, by the name of the file."""
        return self._files.digests


class _HashedFiles(FileSystem):
    """The file system, and the digests of what was written to it, by the name of the file."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    @contextmanager
    def create_stream(self, path: str | PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with super().create_stream(path, mode) as stream:
            hashed = _Hashed(stream)
            yield cast(io.IOBase, hashed)
        self.digests[Path(path).name] = hashed.digest.hexdigest()

    def rename(self, path: str | PathLike[str], new_path: str | PathLike[str]) -> None:
        super().rename(path, new_path)
        self.digests[Path(new_path).name] = self.digests.pop(Path(path).name)


class _Hashed:
    """A stream, and the digest of what was written to it."""

    def __init__(self, stream: io.IOBase) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return cast(int, self._stream.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
