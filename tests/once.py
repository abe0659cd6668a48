"""Folders that are made once a machine, whichever of several test workers comes first."""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path


def made(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache whose name says all that decides what is in it; made if this machine has none yet.

    Whoever wants it meanwhile waits. It appears whole, or not at all: ``make`` gets another, empty one, which is renamed.
    """
    folder = cache() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{name}: another process makes it; waiting", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_name(f"{name}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


def cache() -> Path:
    """Where they lie."""
    return Path(os.environ.get("EAGLE3_CACHE") or Path.home() / ".cache" / "eagle3-operator")
