"""What a container image needs to be an SGLang image that works on a CPU.

    python3 image.py        ends with a sentence if pods would not see the environment; makes nothing

The environment is 2.6 GB, so the image does not hold it: a test cluster binds ``share`` read-only into its containers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import environment

NAME = "kit.local/sglang-cpu:v0.5.21"
# A pod has folders of its own at the first two, its node at the third; what is shared from below them is not to be seen.
COVERED = ("/tmp", "/dev", "/run")  # noqa: S108


@dataclass(frozen=True)
class ImageRecipe:
    """An image, as a test cluster makes it.

    ``path`` stands before the usual folders in PATH.  ``share`` are folders of this machine that its containers see under
    the same path, read-only.  ``add`` are files of this machine and where they lie in the image.
    """

    name: str
    path: tuple[str, ...]
    env: dict[str, str]
    share: tuple[Path, ...]
    add: tuple[tuple[Path, str], ...] = ()


def refusal(cache: Path, python: Path) -> str | None:
    """Why pods would not see an environment that is kept in one folder and rests on a Python in another; else None."""
    for folder, mend in (
        (cache, "name another one in EAGLE3_CACHE (left out, it is .cache/eagle3-operator in HOME)"),
        (python, "have another python3 first in PATH, and `make clean` if .venv was made with this one"),
    ):
        for covered in COVERED:
            if folder.resolve().is_relative_to(covered):
                return f"{folder} is below {covered}, where pods have a folder of their own: {mend}"
    return None


def require_seen_by_pods() -> None:
    """Raises SystemExit, before anything is built or started, where pods would not see what this machine would make."""
    if why := refusal(environment.cache(), Path(sys.base_prefix)):
        raise SystemExit(why)


def recipe() -> ImageRecipe:
    """The CPU image's recipe; makes the environment if need be."""
    made = environment.ensure()
    base = environment.base_of(made)
    return ImageRecipe(
        name=NAME,
        path=(str(made / "bin"),),
        env={
            "TRITON_INTERPRET": "1",  # lets SGLang's kernels be defined without a GPU
            "TORCHDYNAMO_DISABLE": "1",  # or torch.compile starts a C++ compiler while serving
            "OMP_NUM_THREADS": "1",  # threads that spin on a shared core are several times slower
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONDONTWRITEBYTECODE": "1",  # everything is compiled already, and the folder is read-only
        },
        share=(made,) if base.is_relative_to("/usr") else (made, base),
    )


if __name__ == "__main__":
    require_seen_by_pods()
