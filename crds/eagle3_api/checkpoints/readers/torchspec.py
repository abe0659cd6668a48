"""TorchSpec: what ``tools/convert_to_hf.py`` makes of its sharded training checkpoints, which themselves are refused by name.

SGLang's names and the target's embedding, or ``layers.0.*`` where it was exported for vLLM. The draft has the whole vocabulary unless
its head was cut in the export. Layers are a setting of the training and stand nowhere, unless its user wrote ``eagle_config``.
Since April 2026 the cut takes the rows that the *offsets* name instead of the tokens': such a head is told by its repeated rows.
Source: lightseekorg/TorchSpec, ``tools/convert_to_hf.py`` (88ca60b, 2026-04-02) and ``torchspec/models/draft/llama3_eagle.py``.
"""

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.readers.llama import read_llama

FAMILY = "TorchSpec"


def recognises(folder: Folder) -> bool:
    """Its own field."""
    return "_torchspec_version" in folder.config


def read(folder: Folder) -> Form:
    """The draft in the folder."""
    return read_llama(folder, FAMILY)
