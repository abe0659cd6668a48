"""The header of a safetensors file: names, types and shapes of its tensors, without reading their values.

Format: eight bytes with the header's length, little-endian; the header, a JSON object; the values, end to end.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

from eagle3_api.checkpoint_rules import Tensor

#: As the reference implementation has it: a longer header is an attack, or no safetensors file.
HEADER_LIMIT = 100_000_000

_BITS = {
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


def read_header(path: Path) -> Header:
    """Read and check a header; the file must be as long as its header says.

    Raises:
        HeaderError: it is none, or the file was cut.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        status = path.stat()
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(HEADER_LIMIT, status.st_size - 8):
            raise HeaderError(f"{path} is no safetensors file, or was cut")
        text = file.read(length)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise HeaderError(f"{path} is no safetensors file: its header is no JSON") from None
    if not isinstance(values, dict):
        raise HeaderError(f"{path} is no safetensors file: its header is no JSON object")
    tensors, end = {}, 0
    for name, value in values.items():
        if name == "__metadata__":
            continue
        tensors[name], last = _tensor(path, name, value)
        end = max(end, last)
    if status.st_size != 8 + length + end:
        raise HeaderError(
            f"{path} has {status.st_size} bytes, its header says {8 + length + end}: it was cut or appended to"
        )
    return Header(path, tensors, sha256(text).hexdigest(), status.st_size, status.st_mtime_ns)


def _tensor(path: Path, name: str, value: Any) -> tuple[Tensor, int]:
    """A tensor and the offset at which its values end."""
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
            0 <= begin <= end and all(isinstance(size, int) and size >= 0 for size in shape)
        ):
            if dtype in _BITS and end - begin != prod(shape) * _BITS[dtype] // 8:
                raise HeaderError(f"{path}: {name} is {dtype} {shape}, but has {end - begin} bytes")
            return Tensor(dtype, tuple(shape)), end
    raise HeaderError(f"{path}: the header's entry of {name} is broken")
