"""The official EAGLE repository: ``pytorch_model.bin`` in fp16, ``midlayer.*``, no embedding.

Its configuration names no layers. Default: the inputs of layers 2, n//2 and n-3, which are the outputs of 1, n//2-1 and n-4.
Source: SafeAILab/EAGLE, ``eagle/model/cnets.py`` and ``modeling_llama_kv.py``.
"""

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.readers.llama import read_llama
from eagle3_api.sglang import LLAMA_DRAFT

FAMILY = "EAGLE"


def recognises(folder: Folder) -> bool:
    """A .bin file with a draft's names at the top level."""
    return folder.kind == "bin" and folder.architectures in ((), (LLAMA_DRAFT,), ("LlamaForCausalLM",))


def read(folder: Folder) -> Form:
    """The draft in the folder."""
    return read_llama(folder, FAMILY)
