"""What the rules need to know of a target: its configuration, and the headers of its weights, however many there are."""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from eagle3_api.checkpoints.files import JSON_LIMIT, UnreadableError, indexed, inside, read_json
from eagle3_api.checkpoints.safetensors import HEADER_LIMIT, HeaderError, read_header

_INDEX = "model.safetensors.index.json"
#: A target of hundreds of experts has as many tensors as need some tens of megabytes to be named.
_INDEX_LIMIT = 64_000_000
#: Headers that are read at a time: a network's file system answers late, but to many at once.
_READERS = 16
_ENDS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]')


@dataclass(frozen=True)
class Target:
    """A target.

    Attributes:
        architecture: the first of config.json.
        num_layers, hidden_size, vocabulary_size: of the language model.
        context_length: that its positions reach, if the configuration says.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    vocabulary_size: int
    context_length: int | None = None


def read_target(folder: Path) -> Target:
    """Look at a target: a configuration that says what is needed, and weights that are all there.

    Raises:
        UnreadableError: it is not there, incomplete or broken.
    """
    if not folder.is_dir():
        raise UnreadableError(f"{folder} is not a folder")
    config = read_json(folder, "config.json", JSON_LIMIT)
    language = language_config(config)
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise UnreadableError(f"{folder / 'config.json'} names no architecture")
    _check_weights(folder)
    positions = language.get("max_position_embeddings")
    return Target(
        architecture=named[0],
        num_layers=_number(folder, language, "num_hidden_layers"),
        hidden_size=_number(folder, language, "hidden_size"),
        vocabulary_size=_number(folder, language, "vocab_size"),
        context_length=positions if type(positions) is int and positions > 0 else None,
    )


def language_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part of a config.json: a multimodal one nests it, and may keep some of it outside."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, Mapping) else dict(config)


def _number(folder: Path, config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if type(value) is not int or value < 1:
        raise UnreadableError(f"{folder / 'config.json'}: {field} is {value!r:.40}, not a positive number")
    return value


def _check_weights(folder: Path) -> None:
    """Every file that the index names is there and whole."""
    named = indexed(folder, _INDEX, _INDEX_LIMIT)
    files = set(named.values()) if named else {path.name for path in folder.glob("*.safetensors")}
    if not files:
        raise UnreadableError(f"{folder} holds no weights in *.safetensors")
    with ThreadPoolExecutor(_READERS) as readers:
        for _ in readers.map(_check_file, repeat(folder), sorted(files)):
            pass


def _check_file(folder: Path, name: str) -> None:
    path = inside(folder, folder / name)
    try:
        _check_size(path)
    except (HeaderError, OSError) as error:
        raise UnreadableError(f"{path} is missing or cannot be read: {error}") from None


def _check_size(path: Path) -> None:
    """A file ends where its header says that the last tensor does.

    A shard of a large target has thousands of tensors; only their ends are looked for, and all is parsed where that fails.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(HEADER_LIMIT, size - 8):
            raise HeaderError(f"{path} is not a safetensors file, or was cut")
        text = file.read(length)
    end = max(map(int, _ENDS.findall(text)), default=0)
    if size != 8 + length + end:
        read_header(path)
