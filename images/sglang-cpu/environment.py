"""Make the environment in which SGLang runs on a CPU, once, and say where it is.

    python environment.py        prints the path of a ready environment; progress goes to stderr

The environment is a virtual environment at ``$EAGLE3_CACHE/sglang-cpu-<hash>`` (default ``~/.cache/eagle3-operator``).
The hash covers everything it is made from: the locked requirements, the plug-in, the stub libraries, this file and the
version of Python.  It is built in place under a lock, since scripts of a virtual environment hold its path; the file
``.ready``, written last, says that it is whole.  Every module is compiled, so that it can be used read-only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("environment.py", "cuda_stubs.py", "requirements.lock", "plugin/pyproject.toml", "plugin/sglang_cpu/*.py")
PYTHONS = ((3, 11), (3, 12), (3, 13))  # SGLang has wheels for them


def cache() -> Path:
    """The folder for what is made once a machine."""
    return Path(os.environ.get("EAGLE3_CACHE") or Path.home() / ".cache" / "eagle3-operator")


def path() -> Path:
    """Where the environment for these sources and this Python is, or will be."""
    digest = hashlib.sha256(sys.version.split()[0].encode())
    for pattern in SOURCES:
        for source in sorted(HERE.glob(pattern)):
            digest.update(f"\0{source.relative_to(HERE)}\0".encode() + source.read_bytes())
    return cache() / f"sglang-cpu-{digest.hexdigest()[:12]}"


def ensure() -> Path:
    """The path of the ready environment; makes it if need be, which takes a minute or two."""
    if sys.version_info[:2] not in PYTHONS:
        raise SystemExit(f"the SGLang environment needs Python 3.11 to 3.13, this is {sys.version.split()[0]}")
    target = path()
    if not is_ready(target):
        with locked(target):
            if not is_ready(target):
                build(target)
    return target


def is_ready(target: Path) -> bool:
    """Whether ``target`` was built to the end."""
    return (target / ".ready").exists()


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """One builder at a time; the lock goes with the process."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(target: Path) -> None:
    """Make the environment anew."""
    for tool in ("gcc", "readelf"):
        if shutil.which(tool) is None:
            raise SystemExit(f"the SGLang environment needs {tool} (Debian: apt-get install gcc binutils)")
    if target.exists():
        shutil.rmtree(target)
    begin = time.monotonic()

    def step(what: str) -> None:
        sys.stderr.write(f"sglang-cpu: {time.monotonic() - begin:4.0f} s  {what}\n")

    step(f"making {target}")
    run(base_python(), "-m", "venv", "--without-pip", target)
    python = target / "bin" / "python3"
    uv = find_uv()
    install = (uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "--compile-bytecode")
    step("installing and compiling 102 packages (400 MB to download, 2.6 GB on disk)")
    run(*install, "--require-hashes", "-r", HERE / "requirements.lock")
    step("writing stubs of the CUDA libraries")
    run(python, HERE / "cuda_stubs.py")
    step("installing the plug-in")
    sources = target / "plugin"
    shutil.copytree(HERE / "plugin", sources, ignore=shutil.ignore_patterns("__pycache__"))
    run(*install, "--no-build-isolation", sources)
    shutil.rmtree(sources)
    step("importing torch")
    run(python, "-c", "import torch, transformers")
    (target / ".ready").touch()
    step("ready")


def base_python() -> Path:
    """The Python that a virtual environment of this one would rest on."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def base_of(made: Path) -> Path:
    """The prefix of the Python that an environment rests on; whoever sees the environment must see that too."""
    settings = dict(line.split(" = ", 1) for line in (made / "pyvenv.cfg").read_text().splitlines() if " = " in line)
    return Path(settings["home"]).parent


def find_uv() -> Path:
    """uv from PATH, or a private copy."""
    found = shutil.which("uv")
    if found is not None:
        return Path(found)
    private = cache() / "uv"
    if not (private / "bin" / "uv").exists():
        run(base_python(), "-m", "venv", "--clear", private)
        run(private / "bin" / "python", "-m", "pip", "install", "--quiet", "uv")
    return private / "bin" / "uv"


def run(*command: str | Path) -> None:
    """Run a step; its output goes to stderr, and if it fails the build ends with its exit status."""
    result = subprocess.run([str(part) for part in command], stdout=sys.stderr, stdin=subprocess.DEVNULL)
    if result.returncode:
        raise SystemExit(f"sglang-cpu: {command[0]} failed with exit status {result.returncode}")


if __name__ == "__main__":
    sys.stdout.write(f"{ensure()}\n")
