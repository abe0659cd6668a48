"""Images for the test cluster, made of the same things as by the Dockerfiles: the wheel and what the lock file says.

The node's Python runs them (containers see its /usr), so a tree holds only packages. Trees are cached by the content of
what they are made of.
"""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from environment import find_uv

import once

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
PLACE = "/opt/eagle3/lib"

OPERATOR = "kit.local/eagle3-operator:dev"
DRAFT = "kit.local/eagle3-draft:dev"

#: Of each image: the tests read no Parquet, which would be the larger half, and have features in an object store.
EXTRAS = {OPERATOR: ("operator",), DRAFT: ("hub", "s3")}


def packages(*extras: str) -> Path:
    """What our wheel needs, with some of its extras: versions and hashes as locked, compiled."""

    def make(folder: Path) -> None:
        wanted = [word for extra in extras for word in ("--extra", extra)]
        with tempfile.TemporaryDirectory() as out:
            requirements = Path(out) / "requirements.txt"
            run(find_uv(), "export", "--quiet", "--frozen", "--no-emit-project", *wanted, "--output-file", requirements)
            _install(folder, "--require-hashes", "-r", requirements)

    return once.made(f"image-needs-{'+'.join(extras) or 'base'}-{_digest([ROOT / 'uv.lock'])}", make)


def wheel() -> Path:
    """Our own packages, from the wheel."""

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as out:
            run(find_uv(), "build", "--quiet", "--wheel", "--out-dir", out, ROOT)
            (built,) = Path(out).glob("*.whl")
            _install(folder, "--no-deps", built)

    return once.made(f"image-wheel-{_digest(_sources())}", make)


def ours() -> list[tuple[str, list[tuple[Path, str]]]]:
    """The names of our two images, and the folders that each is made of."""
    return [(name, [(packages(*extras), PLACE), (wheel(), PLACE)]) for name, extras in EXTRAS.items()]


def _install(folder: Path, *what: str | Path) -> None:
    run(find_uv(), "pip", "install", "--quiet", "--compile-bytecode", "--python", PYTHON, "--target", folder, *what)


def _digest(files: Iterable[Path]) -> str:
    """Over names and contents."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    yield ROOT / "pyproject.toml"
    for folder in ("crds", "operator", "images/draft"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def run(*command: str | Path) -> None:
    """Run a program in the repository; its output is shown only when it fails."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
