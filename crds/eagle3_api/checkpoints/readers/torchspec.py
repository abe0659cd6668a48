"""TorchSpec: what ``tools/convert_to_hf.py`` makes of its sharded training checkpoints, which themselves are refused by name.

SGLang's names and the target's embedding, or ``layers.0.*`` where it was exported for vLLM. The draft has the whole vocabulary unless
its head was cut in the export. Layers are a setting of the training and stand nowhere, unless its configuration has ``eagle_config``,
as those of drafts with latent attention do: outputs, to which the export for vLLM adds one where ``model_type`` is ``kimi_k2``.
Since April 2026 the cut takes the rows that the *offsets* name instead of the tokens': such a head is told by its repeated rows.
Source: lightseekorg/TorchSpec, ``tools/convert_to_hf.py`` (6f21829, 2026-04-28), ``torchspec/models/draft/llama3_eagle.py`` and
``configs/draft_models``.
"""

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form, Notation
from eagle3_api.checkpoints.readers.llama import read_llama

FAMILY = "TorchSpec"

#: The kind of model for which the export for vLLM names inputs.
_SHIFTED = "kimi_k2"


def recognises(folder: Folder) -> bool:
    """Its own field."""
    return "_torchspec_version" in folder.config


def read(folder: Folder) -> Form:
    """The draft in the folder."""
    return read_llama(folder, FAMILY, notation=notation(folder))


def notation(folder: Folder) -> Notation:
    """What the layers mean in one of its exports."""
    for_vllm = any(name.startswith("layers.0.") for name in folder.tensors)
    return Notation.INPUT if for_vllm and folder.config.get("model_type") == _SHIFTED else Notation.OUTPUT
