"""The files of a checkpoint's folder, as a stranger may have left them: what they name, without a look at the values.

Read are, in this order of preference, safetensors (sharded or not), ``*.bin`` and ``*.pt``. Whatever leads out of the folder
is refused; the one exception is the hub's own cache, whose snapshots are links to the blobs beside them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from eagle3_api.artifacts import CONFIG
from eagle3_api.checkpoints.pickled import PickleError, read_tensors
from eagle3_api.checkpoints.safetensors import DRAFT_HEADER_LIMIT, HeaderError, read_header

#: Bytes of config.json that are read at most.
JSON_LIMIT = 1_000_000

#: Bytes of a draft's index, its files of weights and its tensors, at most; published ones have fifteen to forty tensors.
INDEX_LIMIT, FILES_LIMIT, TENSORS_LIMIT = 1_000_000, 256, 4096

#: Tensors that lie beside the weights: NeMo Automodel's selected token ids, ModelOpt's map.
SIDE_FILES = ("eagle3_meta.pt", "speculative_token_map.pt", "d2t.pt")

_KINDS = ("*.safetensors", "*.bin", "*.pt")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
#: Of torch.distributed.checkpoint: a pickle that says which part of which file is what.
_SHARDED = ".metadata"

_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin", "rng_state.pt", "optimizer.pt", "scheduler.pt")


class UnreadableError(ValueError):
    """A folder that is no checkpoint, or one that must not be read; the message says which file, and why."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies.

    Attributes:
        path: of its file.
        name: there.
        dtype, shape: as a safetensors header names them.
        begin: offset in the file of its first value.
        strides: in elements; none where the values lie in order.
    """

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether its values lie in order."""
        return self.strides is None or self.strides == _in_order(self.shape)


@dataclass(frozen=True)
class Folder:
    """A draft's checkpoint as it lies there.

    Attributes:
        path: of the folder.
        config: config.json.
        files: that it consists of, in a fixed order.
        tensors: of the weights, by their names.
        side: tensors of side files, by ``<file>:<name>``.
        kind: how the weights are stored: ``safetensors``, ``bin`` or ``pt``.
    """

    path: Path
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    side: Mapping[str, StoredTensor]
    kind: str

    @property
    def architectures(self) -> tuple[str, ...]:
        """What config.json calls it."""
        named = self.config.get("architectures")
        return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


def read_folder(path: Path) -> Folder:
    """Look at a checkpoint.

    Raises:
        UnreadableError: it is none, is broken, or leads out of its folder.
    """
    if not path.is_dir():
        raise UnreadableError(f"{path} is not a folder here; of a pod, is its volume in placement.volumes?")
    config = read_json(path, CONFIG, JSON_LIMIT)
    weights = _weights(path)
    tensors: dict[str, StoredTensor] = {}
    for file in weights:
        for stored in _tensors(path, file):
            if stored.name in tensors:
                raise UnreadableError(f"{stored.name} stands in {tensors[stored.name].path.name} and in {file.name}")
            tensors[stored.name] = stored
            if len(tensors) > TENSORS_LIMIT:
                raise UnreadableError(f"{path} holds more than {TENSORS_LIMIT} tensors, which is no draft")
    beside = [file for name in SIDE_FILES if (file := path / name).exists() and file not in weights]
    side = {f"{file.name}:{stored.name}": stored for file in beside for stored in _tensors(path, file)}
    kind = weights[0].suffix.removeprefix(".")
    return Folder(path, config, (path / CONFIG, *weights, *beside), tensors, side, kind)


def checkpoint_files(path: Path) -> tuple[Path, ...]:
    """The files that make up a checkpoint, without a look into the weights.

    Raises:
        UnreadableError: it has no weights.
    """
    weights = _weights(path)
    beside = [file for name in SIDE_FILES if (file := path / name).exists() and file not in weights]
    return (path / CONFIG, *weights, *beside)


def files_of(names: Iterable[str]) -> frozenset[str]:
    """Those of a folder's files that a checkpoint may consist of; none where there are no weights.

    Args:
        names: of all files; those in subfolders, with a slash, are none of a checkpoint's.
    """
    here = frozenset(name for name in names if "/" not in name)
    for kind in _KINDS:
        if weights := _weights_among(here, kind):
            return weights | here & {CONFIG, *_INDEXES, *SIDE_FILES}
    return frozenset()


def read_json(folder: Path, name: str, limit: int) -> dict[str, Any]:
    """A JSON object.

    Raises:
        UnreadableError: it is none, is too long, or cannot be read.
    """
    path = inside(folder, folder / name)
    try:
        with path.open("rb") as file:
            text = file.read(limit + 1)
        if len(text) > limit:
            raise UnreadableError(f"{path} is longer than {limit} bytes")
        value = json.loads(text)
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"{path} is not a JSON object")
    return value


def inside(folder: Path, path: Path) -> Path:
    """The path, if it really lies in the folder, or in the blobs of the hub's cache that the folder is a snapshot of.

    Raises:
        UnreadableError: it leads elsewhere, or is a pipe or a device, which could be read for ever.
    """
    try:
        real, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:
        raise UnreadableError(f"{path} cannot be read: {error}") from None
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    if not real.is_relative_to(root) and not (blobs is not None and real.is_relative_to(blobs)):
        raise UnreadableError(f"{path} leads out of {folder}: it is a link to {real}")
    if real.exists() and not real.is_file():
        raise UnreadableError(f"{path} is not a regular file")
    return path


def indexed(folder: Path, index: str, limit: int = INDEX_LIMIT) -> dict[str, str] | None:
    """The file of each tensor, by an index; None where there is no index.

    Args:
        folder: where it lies.
        index: its name.
        limit: bytes of it that are read at most.

    Raises:
        UnreadableError: it is broken, or names something that is no plain file name.
    """
    if not (folder / index).exists():
        return None
    named = read_json(folder, index, limit).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
        raise UnreadableError(f"{folder / index} is broken: it has no weight_map from names to files")
    for file in set(named.values()):
        if file in ("", ".", "..") or "/" in file or "\\" in file or "\0" in file:
            raise UnreadableError(f"{folder / index} names {file[:80]!r}, which is not a file of its folder")
    return named


def _weights(folder: Path) -> tuple[Path, ...]:
    for kind in _KINDS:
        found = _weights_among((path.name for path in folder.glob(kind)), kind)
        if not found:
            continue
        index = next((name for name in _INDEXES if name.endswith(f"{kind[1:]}.index.json")), "")
        named = set((indexed(folder, index) or {}).values()) if index else set()
        if missing := sorted(named - found):
            raise UnreadableError(
                f"{folder} lacks {', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}, which its index names"
            )
        chosen = sorted(named or found)
        if len(chosen) > FILES_LIMIT:
            raise UnreadableError(f"{folder} has {len(chosen)} files of weights, more than {FILES_LIMIT}")
        return tuple(folder / name for name in chosen)
    if any((place / _SHARDED).exists() for place in (folder, folder / "model")):
        raise UnreadableError(
            f"{folder} is a sharded training checkpoint ({_SHARDED}, *.distcp), which only its trainer can put together: export it "
            "first (TorchSpec: tools/convert_to_hf.py; others: torch.distributed.checkpoint.format_utils)"
        )
    raise UnreadableError(f"{folder} holds no weights in {', '.join(_KINDS)}")


def _weights_among(names: Iterable[str], kind: str) -> frozenset[str]:
    """The files of weights of one kind, ``*.bin``."""
    suffix = kind.removeprefix("*")
    return frozenset(
        name for name in names if name.endswith(suffix) and name not in _NOT_WEIGHTS and name not in SIDE_FILES
    )


def _tensors(folder: Path, path: Path) -> Iterator[StoredTensor]:
    inside(folder, path)
    try:
        if path.suffix == ".safetensors":
            for name, tensor in read_header(path, DRAFT_HEADER_LIMIT).tensors.items():
                yield StoredTensor(path, name, tensor.dtype, tensor.shape, tensor.begin)
        else:
            for name, found in read_tensors(path).items():
                yield StoredTensor(path, name, found.dtype, found.shape, found.begin, found.strides)
    except (HeaderError, PickleError) as error:
        raise UnreadableError(str(error)) from None
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from None


def _in_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
