"""A volume that is really full when it is full."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testcluster.processes import run

#: Why a test of it is skipped.
NO_MOUNTS = "mounting a file system needs CAP_SYS_ADMIN, which root has, but for one in a container"

#: By <linux/capability.h>.
_CAP_SYS_ADMIN = 21


@contextmanager
def small_volume(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of that size, mounted on a folder that is made for it. Who may mount none skips the test."""
    with small_if_allowed(folder, mebibytes) as small:
        if not small:
            pytest.skip(NO_MOUNTS)
        yield folder


@contextmanager
def small_if_allowed(folder: Path, mebibytes: int) -> Iterator[bool]:
    """The same; for who may mount none a mere folder, which is as large as what it lies on. Says whether it is small."""
    folder.mkdir()
    if not _may_mount():
        yield False
        return
    run("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "eagle3", folder)
    try:
        yield True
    finally:
        run("umount", folder)


def _may_mount() -> bool:
    """By what the kernel says, not by a mount that fails: it may fail for another reason, which no test shall be skipped for."""
    effective = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> _CAP_SYS_ADMIN & 1)
