"""SpecForge, and what was trained with it (lmsys, AQ-MedAI, lightseekorg): SGLang's own layout, sharded or not.

``eagle_config`` is optional; without it SGLang captures its default layers, the outputs of 1, n//2-1 and n-4. ``norm_output`` has
another meaning in SpecForge's trainer than in SGLang, and nothing here tells whose it is.
Source: sgl-project/SpecForge, ``specforge/modeling/draft/llama3_eagle.py`` and ``export/to_sglang.py``.
"""

from dataclasses import replace

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
    return with_doubts(read_llama(folder, FAMILY))


def with_doubts(form: Form) -> Form:
    """The draft, with what SpecForge and SGLang understand otherwise."""
    if not form.norm_output:
        return form
    doubt = (
        "norm_output is set: SGLang then feeds the normalised state back to the draft. SpecForge's trainer sets it for a head that reads a "
        "normalised state, which every SGLang has, and trains on the state before the norm. If SpecForge trained it, write norm_output false"
    )
    return replace(form, doubts=(doubt,))
