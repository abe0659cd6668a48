"""The weights, piece by piece: never a whole tensor in memory, unless its values do not lie in order."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from eagle3_api.checkpoints.files import Stored
from eagle3_api.checkpoints.pickled import extent
from eagle3_api.checkpoints.safetensors import BITS
from eagle3_draft import artifacts
from eagle3_draft.convert.values import Values

#: As safetensors calls them.
DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.bool: "BOOL",
}
_TORCH = {name: dtype for dtype, name in DTYPES.items()}

#: Bytes that are read at once: enough for the disk's speed, and little beside any model.
PIECE = 16 * 1024 * 1024

#: What is written: a tensor in a file, or one that was made here.
Source = Stored | Tensor


@dataclass(frozen=True)
class Written:
    """A tensor that was written, and what its values were like; None for a vocabulary's map."""

    name: str
    values: Values | None


def write(sources: Mapping[str, Source], path: Path, dtype: torch.dtype) -> Iterator[Written]:
    """Write tensors to one safetensors file, those of numbers in another type.

    Args:
        sources: by the names that they get.
        path: of the file.
        dtype: of the weights. Integers and truth values keep theirs.

    Yields:
        Each tensor, once it is written. The file is whole, durable and readable by all when there is no further one.
    """
    names = sorted(sources)
    types = {name: dtype if type_of(sources[name]).is_floating_point else type_of(sources[name]) for name in names}
    with path.open("wb") as file:
        file.write(_header({name: (types[name], tuple(sources[name].shape)) for name in names}))
        for name in names:
            values = Values.of(name, sources[name].shape) if types[name].is_floating_point else None
            for piece in pieces(sources[name]):
                if values is not None:
                    values.add(piece)
                file.write(piece.to(types[name]).view(torch.uint8).numpy().data)
            yield Written(name, values)
        file.flush()
        os.fchmod(file.fileno(), artifacts.FILE_MODE)
        os.fsync(file.fileno())


def pieces(source: Source) -> Iterator[Tensor]:
    """The values of a tensor in order, flat, some megabytes at a time. A piece is good until the next one is asked for."""
    if isinstance(source, Tensor):
        yield from torch.split(source.reshape(-1), PIECE // source.element_size())
    elif source.contiguous:
        yield from _read(source)
    else:
        yield from torch.split(_reordered(source).reshape(-1), PIECE // type_of(source).itemsize)


def type_of(source: Source) -> torch.dtype:
    """Of its values."""
    return source.dtype if isinstance(source, Tensor) else _TORCH[source.dtype]


def _read(stored: Stored) -> Iterator[Tensor]:
    left = stored.elements * BITS[stored.dtype] // 8
    buffer = bytearray(min(PIECE, left))
    with stored.path.open("rb", buffering=0) as file:
        file.seek(stored.begin)
        while left:
            part = memoryview(buffer)[: min(PIECE, left)]
            _fill(file.readinto, part)
            left -= len(part)
            yield torch.frombuffer(part, dtype=_TORCH[stored.dtype])


def _fill(readinto: Callable[[memoryview], int | None], part: memoryview) -> None:
    """A read may return less than was asked for."""
    done = 0
    while done < len(part):
        count = readinto(part[done:])
        if not count:
            raise OSError("the file ends before its tensor does: it was changed while it was read")
        done += count


def _reordered(stored: Stored) -> Tensor:
    """A tensor that was saved transposed, or as part of another one: what lies between its first value and its last one."""
    strides = stored.strides or ()
    values = bytearray(extent(stored.shape, strides) * BITS[stored.dtype] // 8)
    with stored.path.open("rb", buffering=0) as file:
        file.seek(stored.begin)
        _fill(file.readinto, memoryview(values))
    return torch.frombuffer(values, dtype=_TORCH[stored.dtype]).as_strided(stored.shape, strides)


def _header(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> bytes:
    """The beginning of a safetensors file: its header's length and the header, padded to a multiple of eight bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * dtype.itemsize
        entries[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
