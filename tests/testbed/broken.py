"""A draft that is broken where no check of files can see it: only a server that measures it can.

Every key, shape, type, norm and setting is that of the original; the columns of ``fc`` are permuted, as if the draft had
learned from its auxiliary states in another order.
"""

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file


def permuted(draft: Path, out: Path, *, seed: int = 7) -> Path:
    """Copy a converted draft (float32) with the columns of ``fc.weight`` permuted; returns ``out``."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copy(draft / "config.json", out / "config.json")
    tensors = load_file(draft / "model.safetensors")
    columns = np.random.default_rng(seed).permutation(tensors["fc.weight"].shape[1])
    tensors["fc.weight"] = np.ascontiguousarray(tensors["fc.weight"][:, columns])
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for file in (out, *out.iterdir()):
        file.chmod(0o755 if file.is_dir() else 0o644)
    return out
