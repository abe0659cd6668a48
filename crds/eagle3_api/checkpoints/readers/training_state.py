"""A training state of SpecForge: ``*.pt`` with the draft under ``draft_model.``, beside whatever else the trainer needs.

Only the draft is read. A state that carries objects (arguments, schedulers) is refused: it would have to be run.
"""

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.readers.llama import read_llama
from eagle3_api.checkpoints.readers.names import understand
from eagle3_api.checkpoints.readers.specforge import with_doubts
from eagle3_api.sglang import LLAMA_DRAFT

FAMILY = "SpecForge training state"


def recognises(folder: Folder) -> bool:
    """SGLang's architecture in a .pt file."""
    return folder.kind == "pt" and LLAMA_DRAFT in folder.architectures


def read(folder: Folder) -> Form:
    """The draft in the folder; optimiser states and the like stay behind."""
    prefix = understand(folder.tensors).prefix
    other = [name for name in folder.tensors if not name.startswith(prefix)] if prefix else []
    return with_doubts(read_llama(folder, FAMILY, ignore=other))
