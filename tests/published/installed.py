"""Public trainers themselves, for the tests that take a minute: installed once a machine, beside the torch that is here."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from environment import find_uv

import once

#: What both ask for beside what is installed here.
_BESIDE = (
    "aiohttp==3.14.5",
    "datasets==5.1.0",
    "dill==0.4.1",
    "distro==1.9.0",
    "fsspec==2026.9.0",
    "httpx2==2.16.2",
    "jiter==0.19.0",
    "loguru==0.7.3",
    "multiprocess==0.70.19",
    "openai==3.57.0",
    "pandas==3.1.1",
    "pyarrow==26.0.1",
    "pydantic-settings==2.16.3",
    "python-dateutil==4.0.0",
    "python-dotenv==1.2.4",
    "pytz==2026.6",
    "six==1.17.0",
    "sniffio==1.3.1",
    "tqdm==4.70.1",
    "typing-inspection==0.4.5",
    "xxhash==4.1.0",
)
SPECULATORS = ("speculators==0.9.0", "hs-connectors==0.9.0", *_BESIDE)
SPECFORGE = ("specforge==0.2.0", "accelerate==1.15.0", *_BESIDE)


def packages(distributions: Sequence[str]) -> Path:
    """A folder with them, for PYTHONPATH of the Python that runs this. The first one's name is the folder's."""
    name, digest = distributions[0].partition("==")[0], hashlib.sha256(repr(distributions).encode()).hexdigest()[:12]
    # dill takes a module that lies in no folder of this name for somebody's script, and pickles pyarrow by value
    inner = "site-packages"

    def make(folder: Path) -> None:
        words = ["pip", "install", "--python", sys.executable, "--no-deps", "--target", str(folder / inner)]
        subprocess.run([find_uv(), *words, *distributions], check=True)

    return once.made(f"{name}-{digest}", make) / inner
