"""A good draft of the tiny target that was trained elsewhere, in the layout that another trainer's tool leaves it in."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file

from eagle3_api.artifacts import CONFIG, WEIGHTS
from published.layouts import LAYOUTS, Original
from served import drafts
from tiny.flags import AUXILIARY_LAYERS
from tiny.make import cached

LAYOUT = "speculators"


def published(out: Path) -> Path:
    """Write it to a folder of its own; returns the folder."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    trained = drafts.trained(cached())
    sizes = json.loads((trained / CONFIG).read_text())
    rope, tensors = sizes.pop("rope_parameters"), load_file(trained / WEIGHTS)
    ids = tensors.pop("t2d").nonzero().flatten()
    del tensors["d2t"], sizes["eagle_config"]
    original = Original(tensors, ids, sizes | {"rope_theta": rope["rope_theta"]}, AUXILIARY_LAYERS)
    LAYOUTS[LAYOUT](original, out)
    return out
