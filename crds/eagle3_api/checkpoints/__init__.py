"""Drafts from anywhere, as far as one can see them without loading them: neither torch nor the weights are needed.

    safetensors  the header of a safetensors file
    pickled      the tensors of a file of torch.save, without unpickling it
    files        a checkpoint's folder, safely
    readers      one module a family of published drafts: its layout, brought into
    form         the one form
    vocabulary   what a vocabulary's map means
    target       what must be known of the target
    expected     the tensors that SGLang fills
    rules        what must be right, one module a subject, each rule with a name, a why and a way to mend it
    report       findings for people, for programs and for shells

Example: ``table(check(read_form(read_folder(path)), Served(version, target)))``.
"""

from eagle3_api.checkpoints import report
from eagle3_api.checkpoints.files import Folder, StoredTensor, UnreadableError, checkpoint_files, read_folder
from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.readers import read_form
from eagle3_api.checkpoints.rules import Finding, Level, Served, check, resolve_layers
from eagle3_api.checkpoints.target import Target, read_target

__all__ = [
    "Finding",
    "Folder",
    "Form",
    "Level",
    "Served",
    "StoredTensor",
    "Target",
    "UnreadableError",
    "check",
    "checkpoint_files",
    "read_folder",
    "read_form",
    "read_target",
    "report",
    "resolve_layers",
]
