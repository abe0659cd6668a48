"""SpecForge, and what was trained with it (lmsys, AQ-MedAI, lightseekorg): SGLang's own layout, sharded or not.

``eagle_config`` is optional; without it SGLang captures its default layers, the outputs of 1, n//2-1 and n-4.
Source: sgl-project/SpecForge, ``specforge/modeling/draft/llama3_eagle.py`` and ``export/to_sglang.py``.
"""

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.readers.llama import read_llama
from eagle3_api.sglang import LLAMA_DRAFT

FAMILY = "SpecForge or SGLang"


def recognises(folder: Folder) -> bool:
    """SGLang's architecture in safetensors."""
    return LLAMA_DRAFT in folder.architectures and folder.kind == "safetensors"


def read(folder: Folder) -> Form:
    """The draft in the folder."""
    return read_llama(folder, FAMILY)
