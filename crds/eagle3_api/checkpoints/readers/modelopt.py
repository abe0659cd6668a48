"""NVIDIA Model Optimizer: ``layers.0.*`` (exports since March 2026), ``midlayer.*`` (before), ``eagle_module.*`` (in memory).

No t2d and no embedding; the rows of the map are in order of frequency, so its offsets can be negative. A head may be left
out: the target's is meant. ``eagle_config`` names layers by their output; an empty list means the default ones.
Source: NVIDIA/Model-Optimizer, ``modelopt/torch/export/plugins/hf_spec_export.py``.
"""

from collections.abc import Mapping
from dataclasses import replace

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form, MapKind, Notation, Vocabulary
from eagle3_api.checkpoints.readers.llama import read_llama
from eagle3_api.checkpoints.readers.names import understand
from eagle3_api.sglang import LLAMA_DRAFT

FAMILY = "ModelOpt"

#: Fields of eagle_config that no other family has.
_OWN = frozenset(
    {"use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm", "next_layer_regular"}
)


def recognises(folder: Folder) -> bool:
    """Its own prefix, its own fields in ``eagle_config``, or its layer names under SGLang's architecture."""
    eagle = folder.config.get("eagle_config")
    if isinstance(eagle, Mapping) and eagle.keys() & _OWN:
        return True
    if any(name.startswith("eagle_module.") for name in folder.tensors):
        return True
    ours = folder.architectures in ((LLAMA_DRAFT,), ())
    return ours and folder.kind == "safetensors" and any(name.startswith("layers.0.") for name in folder.tensors)


def read(folder: Folder) -> Form:
    """The draft in the folder; of a whole model in memory, the draft alone."""
    prefix = understand(folder.tensors).prefix
    other = [name for name in folder.tensors if prefix and not name.startswith(prefix)]
    side = folder.side.get("d2t.pt:")
    inside = any(name.removeprefix(prefix) == "d2t" for name in folder.tensors)
    form = read_llama(
        folder,
        FAMILY,
        notation=Notation.OUTPUT,
        vocabulary=Vocabulary(side, MapKind.OFFSETS) if side is not None and not inside else None,
        shares_head=True,
        ignore=other,
    )
    return replace(form, tensors={_in_deeper_layers(name): tensor for name, tensor in form.tensors.items()})


def _in_deeper_layers(name: str) -> str:
    """Its layers after the first are Llama's own; what is norm before attention there, SGLang calls ``hidden_norm``."""
    deeper = name.startswith("layers.") and name.endswith(".input_layernorm.weight")
    return name.replace(".input_layernorm.", ".hidden_norm.") if deeper else name
