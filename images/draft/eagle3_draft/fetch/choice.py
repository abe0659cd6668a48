"""Which files of a repository are fetched."""

import re
from fnmatch import fnmatch

from eagle3_api.artifacts import MANIFEST
from eagle3_api.checkpoints.files import files_of
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.fetch.hub import RemoteFile, Repository

#: Of a target: what transformers and SGLang read, at the top of the repository. Weights in other forms lie beside it in many.
_OF_TARGET = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py", "LICENSE*")
_NOT_OF_TARGET = ("consolidated*", MANIFEST)

_OF_DATASET = (".jsonl", ".ndjson", ".parquet")

#: Words by which file names tell splits, here as with the hub's own data viewer.
_SPLITS = ("train", "validation", "valid", "val", "dev", "test", "eval")

_NAMED = 6


def of_target(repository: Repository) -> list[RemoteFile]:
    """The files that serve a target.

    Raises:
        StageError: there are no weights among them that SGLang's draft path can share (TargetUnreadable).
    """
    found = [
        file
        for file in repository.files
        if "/" not in file.path
        and any(fnmatch(file.path, pattern) for pattern in _OF_TARGET)
        and not any(fnmatch(file.path, pattern) for pattern in _NOT_OF_TARGET)
    ]
    if not any(file.path.endswith(".safetensors") for file in found):
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"target.model: {repository.name} at {repository.commit[:12]} holds no weights in *.safetensors, but "
            f"{_listed(repository)}",
        )
    return found


def of_draft(repository: Repository) -> list[RemoteFile]:
    """The files that make up a draft, in whatever layout it was published.

    Raises:
        StageError: there are no weights among them (CheckpointUnreadable).
    """
    chosen = files_of(file.path for file in repository.files)
    if not chosen:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.CHECKPOINT_UNREADABLE,
            f"draft.checkpoint: {repository.name} at {repository.commit[:12]} holds no weights of a draft at its top, but "
            f"{_listed(repository)}",
        )
    return [file for file in repository.files if file.path in chosen]


def of_dataset(repository: Repository, split: str, pattern: str | None) -> list[RemoteFile]:
    """The files of one split of a data set.

    Args:
        repository: of the data set.
        split: its name in a file's path; where no path has just that name, a word of it (``train`` of ``train_sft``). Where
            no path has a word that tells splits, all are ``train``.
        pattern: of the paths; decides alone where it is given.

    Raises:
        StageError: there are none that can be read (DataUnreadable).
    """
    readable = [file for file in repository.files if file.path.endswith(_OF_DATASET)]
    if pattern is not None:
        found = [file for file in readable if fnmatch(file.path, pattern)]
    elif split == "train" and not any(_names(file.path, word) for file in readable for word in _SPLITS):
        found = readable
    else:
        named = [file for file in readable if _names(file.path, split, within="-./")]
        found = named or [file for file in readable if _names(file.path, split)]
    if not found:
        wanted = f"that fits {pattern!r}" if pattern is not None else f"of split {split!r}"
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.DATA_UNREADABLE,
            f"data.dataset: {repository.name} at {repository.commit[:12]} has no {', '.join(_OF_DATASET)} file {wanted}, but "
            f"{_listed(repository)}; name what is meant in data.dataset.files",
        )
    return found


def _names(path: str, split: str, *, within: str = "-_./") -> bool:
    """Whether a path has a split's name between two of these characters, or at an end."""
    return re.search(rf"(?:^|[{within}]){re.escape(split)}(?:[{within}]|$)", path) is not None


def _listed(repository: Repository) -> str:
    names = [file.path for file in repository.files]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
