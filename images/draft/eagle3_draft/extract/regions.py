"""Shared memory that two processes use again and again: one lays tensors into it, the other gives the room back.

A new page of memory costs more than the bytes that are written to it, several times more in a virtual machine, and once more
in each process that maps it. So what states pass through is made once: files of shared memory, regions, that both processes
keep mapped, and that the GPU writes to itself. A region is filled from its beginning; once all that it held is given back it
is filled anew.

A region begins with a page in which each of its entries has a byte: 1 from when it is taken until it is given back.
"""

import errno
import mmap
import os
import shutil
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from eagle3_draft.features.pieces import DTYPES, NAMES, PAGE


class Column(NamedTuple):
    """Where a tensor lies in what is laid out.

    Attributes:
        dtype: its name in safetensors.
        shape: as the tensor's.
        begin: its first byte.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    def view(self, laid_out: Tensor) -> Tensor:
        """The tensor, in the bytes that hold all."""
        return laid_out[self.begin : self.begin + self.size].view(DTYPES[self.dtype]).reshape(self.shape)


def layout(columns: Mapping[str, Tensor]) -> tuple[dict[str, Column], int]:
    """Where each tensor lies, every one on a page of its own, and the bytes of all together."""
    found, begin = {}, 0
    for name, tensor in columns.items():
        found[name] = Column(NAMES[tensor.dtype], tuple(tensor.shape), begin)
        begin += found[name].size
        begin += -begin % PAGE
    return found, begin


class Entry(NamedTuple):
    """A piece of a region.

    Attributes:
        region: its number.
        number: of the entry in it.
        begin: its first byte there.
        size: bytes.
    """

    region: int
    number: int
    begin: int
    size: int


@dataclass
class _Region:
    memory: Tensor
    end: int = PAGE
    entries: int = 0

    @classmethod
    def made(cls, path: Path, size: int, *, pinned: bool) -> Self:
        """Raises OSError where there is no room, or the GPU cannot be shown it."""
        try:
            with path.open("wb+") as file:
                os.posix_fallocate(file.fileno(), 0, size)  # without, a write to the mapping would end the process
                memory = torch.from_numpy(np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8))
            if pinned and not _pinned(memory):
                raise OSError(errno.ENOMEM, "the GPU's driver does not pin it")
        except OSError:
            path.unlink()
            raise
        return cls(memory)


class Regions:
    """The side that fills them.

    Args:
        folder: for their files, in shared memory.
        size: of a region, in bytes of tensors.
        count: how many there are at most. They are made as they are needed.
    """

    def __init__(self, folder: Path, size: int, count: int) -> None:
        self._folder = folder
        self._size = PAGE + size + -size % PAGE
        self._left = count
        self._said = False
        self._regions: list[_Region] = []

    def take(self, size: int, *, pinned: bool = False) -> Entry | None:
        """Room for so many bytes, or None where there is none now.

        Args:
            size: a whole number of pages.
            pinned: a GPU is to write to it.
        """
        for number, region in enumerate(self._regions):
            if region.entries and not region.memory[: region.entries].any():
                region.end, region.entries = PAGE, 0
            if region.end + size <= self._size and region.entries < PAGE:
                return self._entry(number, size)
        if size <= self._size - PAGE and self._another(pinned=pinned):
            return self._entry(len(self._regions) - 1, size)
        return None

    def memory(self, entry: Entry) -> Tensor:
        """An entry's bytes."""
        return self._regions[entry.region].memory[entry.begin : entry.begin + entry.size]

    def _entry(self, number: int, size: int) -> Entry:
        region = self._regions[number]
        entry = Entry(number, region.entries, region.end, size)
        region.memory[entry.number] = 1
        region.entries += 1
        region.end += size
        return entry

    def _another(self, *, pinned: bool) -> bool:
        """Make one more, if there may and can be one."""
        if not self._left:
            return False
        if shutil.disk_usage(self._folder).free < self._size:  # to try would take what others are about to write to
            self._say(os.strerror(errno.ENOSPC))
            return False
        path = _path(self._folder, len(self._regions))
        try:
            self._regions.append(_Region.made(path, self._size, pinned=pinned))
        except OSError as error:
            self._say(str(error.strerror))
            self._left = 0
            return False
        self._left -= 1
        return True

    def _say(self, why: str) -> None:
        """Say once why it is slower than it could be."""
        if not self._said:
            sys.stderr.write(
                f"hidden states pass through files, not through memory that is used again, for want of {self._size:,} bytes of it in "
                f"{self._folder}: {why}. extract.placement.shmSize says how many a pod has\n"
            )
        self._said = True


class Leases:
    """The side that gives entries back, each when nothing of it is used any more.

    Args:
        folder: as the other side knows it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mapped: dict[int, mmap.mmap] = {}

    def memory(self, entry: Entry) -> Tensor:
        """An entry's bytes. It is given back with the last tensor that is a view of them."""
        if entry.region not in self._mapped:
            with _path(self._folder, entry.region).open("rb+") as file:
                self._mapped[entry.region] = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        mapped = self._mapped[entry.region]
        held = np.frombuffer(mapped, np.uint8, entry.size, entry.begin)
        weakref.finalize(held, _give_back, mapped, entry.number).atexit = False
        return torch.from_numpy(held)


def _pinned(memory: Tensor) -> bool:
    """Have the GPU's driver pin it, so that the GPU writes to it while others work."""
    if int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), len(memory), 0)) == 0:  # type: ignore[no-untyped-call]
        return True
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")  # is told of the driver's error, which nothing that comes later is to be
    return False


def _give_back(mapped: mmap.mmap, number: int) -> None:
    mapped[number] = 0


def _path(folder: Path, region: int) -> Path:
    return folder / f"region-{region}"
