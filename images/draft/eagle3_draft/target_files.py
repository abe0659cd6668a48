"""What a target's files say of it without torch: the language model's configuration, its embedding and its head.

Inspect refuses by it what Train could not read, before a GPU is taken; Train reads by it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_api.checkpoints.safetensors import Header, HeaderError, read_header
from eagle3_api.checkpoints.target import language_config
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError

INDEX = "model.safetensors.index.json"

_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"

#: Layers that predict more than one token bring copies of embedding and head: DeepSeek's and GLM's count on after the
#: decoder's, Qwen's stand apart. What stands in any layer is not the target's own embedding.
_NOT_ITS_OWN = re.compile(r"(^|\.)(layers\.\d+|mtp)\.")

#: As safetensors says them; another is quantized, and would need its scales.
_READABLE = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class Vocabulary:
    """Where a target's embedding and head lie, both (vocabulary, hidden).

    Attributes:
        embedding, head: the tensors' names; the same where they are tied.
        files: of each name.
    """

    embedding: str
    head: str
    files: Mapping[str, Path]


def find_vocabulary(folder: Path, config: Mapping[str, Any]) -> Vocabulary:
    """Find a target's embedding and head, and hold them against its configuration.

    They are one where the configuration ties them, or does not say and no head is stored.

    Args:
        folder: of the target.
        config: its config.json.

    Raises:
        StageError: one is missing, stands twice, has other sizes than the configuration says, or its file cannot be read
            (TargetUnreadable); it is stored quantized (TargetUnsupported).
    """
    files = dict(_tensor_files(folder))
    language = language_config(config)
    tied = language.get("tie_word_embeddings")
    embedding = _the_one(folder, files, _EMBEDDING)
    untied = tied is False or (tied is None and any(_own(files, _HEAD)))
    head = _the_one(folder, files, _HEAD) if untied else embedding
    sizes = (language.get("vocab_size"), language.get("hidden_size"))
    for name in dict.fromkeys((embedding, head)):
        _check(files[name], name, sizes)
    return Vocabulary(embedding, head, files)


def _the_one(folder: Path, files: Mapping[str, Path], ending: str) -> str:
    names = list(_own(files, ending))
    if len(names) != 1:
        found = f"it has {', '.join(names)}, of which one is meant" if names else f"it has no tensor named *{ending}"
        raise unreadable(folder, found)
    return names[0]


def _own(files: Mapping[str, Path], ending: str) -> Iterator[str]:
    return (name for name in files if (name == ending or name.endswith(f".{ending}")) and not _NOT_ITS_OWN.search(name))


def _check(path: Path, name: str, sizes: tuple[Any, Any]) -> None:
    tensor = _header(path).tensors.get(name)
    if tensor is None:
        raise unreadable(path.parent, f"{path.name} lacks {name}, which the index says is there")
    if tensor.dtype not in _READABLE:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNSUPPORTED,
            f"target.model: {name} in {path} is stored as {tensor.dtype}: a quantized embedding or head cannot be read, and "
            "drafts are trained with both. Use a checkpoint that keeps them in bf16, fp16 or fp32",
        )
    if tensor.shape != sizes:
        raise unreadable(
            path.parent,
            f"{name} has shape {list(tensor.shape)}, config.json says [vocab_size, hidden_size] = {[*sizes]}",
        )


def _tensor_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The file of each tensor."""
    try:
        index = json.loads((folder / INDEX).read_bytes())["weight_map"]
        yield from ((str(name), folder / str(file)) for name, file in index.items())
    except FileNotFoundError:
        for path in sorted(folder.glob("*.safetensors")):
            yield from ((name, path) for name in _header(path).tensors)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(folder, f"{INDEX} is broken: {error!r}") from None


def _header(path: Path) -> Header:
    try:
        return read_header(path)
    except (HeaderError, OSError) as error:
        raise unreadable(path.parent, str(error)) from None


def unreadable(folder: Path, what: str) -> StageError:
    """The error of a target that is not whole (TargetUnreadable)."""
    return StageError(
        ExitCode.BAD_INPUT,
        Reason.TARGET_UNREADABLE,
        f"target.model: the target in {folder} cannot be read: {what}. target.model must name a folder with config.json and "
        "the safetensors of a complete checkpoint",
    )
