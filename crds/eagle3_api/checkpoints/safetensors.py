"""The header of a safetensors file: names, types and shapes of its tensors, without reading their values.

Format: eight bytes with the header's length, little-endian; the header, a JSON object; the values, end to end, without
a gap and without an overlap. What does not keep to that is refused: files come from strangers.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

#: As the reference implementation has it: a longer header is an attack, or no safetensors file.
HEADER_LIMIT = 100_000_000

#: Of a draft, which has a few dozen tensors.
DRAFT_HEADER_LIMIT = 2_000_000

#: No tensor of a model has more dimensions, and none is longer in one of them.
MAX_DIMENSIONS, MAX_SIZE = 8, 2**40

BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
}


class HeaderError(ValueError):
    """A file that is no whole safetensors file; the message names it and says why."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as a safetensors header names it.

    Attributes:
        dtype: as there (``BF16``, ``I64``).
        shape: of the tensor.
        begin: offset of its first byte in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int = 0


@dataclass(frozen=True)
class Header:
    """What stands at the beginning of a safetensors file.

    Attributes:
        path: of the file.
        tensors: by name.
        digest: sha256 of the header's bytes.
        size: bytes of the whole file.
        modified: its time of change, in nanoseconds since the epoch.
    """

    path: Path
    tensors: dict[str, Tensor]
    digest: str
    size: int
    modified: int


def read_header(path: Path, limit: int = HEADER_LIMIT) -> Header:
    """Read and check a header; the file must be as long as its header says.

    Args:
        path: of the file.
        limit: bytes of a header that are read at most.

    Raises:
        HeaderError: it is none, or the file was cut.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        status = path.stat()
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(limit, status.st_size - 8):
            raise HeaderError(f"{path} is not a safetensors file, or was cut")
        text = file.read(length)
    tensors, end = _tensors(path, text, 8 + length)
    if status.st_size != end:
        raise HeaderError(f"{path} has {status.st_size} bytes, its header says {end}: it was cut or appended to")
    return Header(path, tensors, sha256(text).hexdigest(), status.st_size, status.st_mtime_ns)


def _tensors(path: Path, text: bytes, start: int) -> tuple[dict[str, Tensor], int]:
    """The tensors of a header, and the offset at which the last one's values end."""
    try:
        values = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError):
        raise HeaderError(f"{path} is not a safetensors file: its header is not JSON") from None
    if not isinstance(values, dict):
        raise HeaderError(f"{path} is not a safetensors file: its header is not a JSON object")
    found = {name: _tensor(path, name, value) for name, value in values.items() if name != "__metadata__"}
    expected = 0
    for name, (_, begin, end) in sorted(found.items(), key=lambda item: item[1][1:]):
        if begin != expected:
            raise HeaderError(f"{path}: the values of {name} begin at {begin}, not where those before end ({expected})")
        expected = end
    tensors = {name: Tensor(tensor.dtype, tensor.shape, start + begin) for name, (tensor, begin, _) in found.items()}
    return tensors, start + expected


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _tensor(path: Path, name: str, value: Any) -> tuple[Tensor, int, int]:
    """A tensor, and where its values begin and end."""
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
            0 <= begin <= end and is_shape(shape)
        ):
            if dtype in BITS and end - begin != prod(shape) * BITS[dtype] // 8:
                raise HeaderError(f"{path}: {name} is {dtype} {shape}, but has {end - begin} bytes")
            return Tensor(dtype, tuple(shape)), begin, end
    raise HeaderError(f"{path}: the header's entry of {name} is broken")


def is_shape(values: list[Any]) -> bool:
    """Whether a list that somebody wrote can be a tensor's shape."""
    return len(values) <= MAX_DIMENSIONS and all(type(size) is int and 0 <= size <= MAX_SIZE for size in values)
