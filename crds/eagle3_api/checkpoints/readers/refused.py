"""Drafts that are recognised, and refused: each with its reason."""

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.readers.llama import read_llama

_PARALLEL = (
    "P-EAGLE (parallel drafting): SGLang ignores mask_hidden and would serve it as an ordinary draft, at accept length 1.0 "
    "(SGLang issue 23171)"
)


def is_parallel(folder: Folder) -> bool:
    """P-EAGLE: a learned state in place of the previous step's."""
    named = any(name.rsplit(".", 1)[-1] == "mask_hidden" for name in folder.tensors)
    return named or "peagle" in " ".join(folder.architectures).lower()


def read_parallel(folder: Folder) -> Form:
    """P-EAGLE, refused."""
    return read_llama(folder, "P-EAGLE", unsupported=[_PARALLEL])


def read_unknown(folder: Folder) -> Form:
    """Anything else, refused."""
    architectures = folder.config.get("architectures")
    return read_llama(
        folder,
        "unknown",
        unsupported=[f"architectures is {architectures!r:.80}: none of the known families of EAGLE-3 drafts"],
    )
