"""A volume that is really full when it is full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_volume(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of that size, mounted on a folder that is made for it."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "eagle3", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
