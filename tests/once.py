"""Folders that are made once a machine, whichever of several test workers comes first."""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def made(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder whose name says all that decides what is in it; made if this machine has none yet.

    Whoever wants it meanwhile waits. It appears whole, or not at all: ``make`` gets another, empty one, which is renamed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder
