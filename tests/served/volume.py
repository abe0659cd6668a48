"""A volume that is really full when it is full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: Why a test of it is skipped.
NEEDS_ROOT = "mounting a file system needs root"


@contextmanager
def small_volume(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of that size, mounted on a folder that is made for it. Without root the test is skipped."""
    with small_if_root(folder, mebibytes) as small:
        if not small:
            pytest.skip(NEEDS_ROOT)
        yield folder


@contextmanager
def small_if_root(folder: Path, mebibytes: int) -> Iterator[bool]:
    """The same; without root a mere folder, which is as large as what it lies on. Says whether it is small."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "eagle3", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", folder], check=True)
