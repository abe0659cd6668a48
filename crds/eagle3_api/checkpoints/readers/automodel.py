"""NeMo Automodel: ``model.layers.0.*`` in safetensors or ``draft_model.pt``, the map in a side file as absolute ids.

Its configuration is the target's, so ``num_hidden_layers`` says nothing; ``target_layer_ids`` are outputs.
Source: NVIDIA-NeMo/Automodel, ``nemo_automodel/components/speculative/serve_sglang.py``.
"""

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form, MapKind, Notation, Vocabulary
from eagle3_api.checkpoints.readers.llama import layers_of, nested_layers, read_llama

FAMILY = "NeMo Automodel"

_ARCHITECTURE = "LlamaEagle3DraftModel"
_MAPS = ("eagle3_meta.pt:selected_token_ids", "speculative_token_map.pt:")


def recognises(folder: Folder) -> bool:
    """Its architecture, or its side file."""
    return _ARCHITECTURE in folder.architectures or any(name in folder.side for name in _MAPS)


def read(folder: Folder) -> Form:
    """The draft in the folder, with the map of its side file."""
    ids = next((folder.side[name] for name in _MAPS if name in folder.side), None)
    nested = nested_layers(folder.config, Notation.OUTPUT)
    own = layers_of(folder.config.get("target_layer_ids"), Notation.OUTPUT, "target_layer_ids")
    return read_llama(
        folder,
        FAMILY,
        layers=own if own.ids or own.problem else nested,
        vocabulary=Vocabulary(ids, MapKind.ABSOLUTE) if ids is not None else None,
    )
