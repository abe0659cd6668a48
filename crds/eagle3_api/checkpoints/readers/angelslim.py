"""AngelSlim (Tencent): SGLang's names under the architecture ``Eagle3LlamaForCausalLM``, which SGLang does not know.

Without ``eagle_config``: the outputs of 1, n//2-1 and n-4.
"""

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.readers.llama import read_llama

FAMILY = "AngelSlim"


def recognises(folder: Folder) -> bool:
    """Its architecture."""
    return "Eagle3LlamaForCausalLM" in folder.architectures


def read(folder: Folder) -> Form:
    """The draft in the folder."""
    return read_llama(folder, FAMILY)
