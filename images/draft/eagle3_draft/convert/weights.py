"""Writing weights, piece by piece: never a whole tensor in memory, and never read again for a digest."""

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

import torch

from eagle3_draft.convert import direct
from eagle3_draft.convert.values import Values
from eagle3_draft.files import FILE_MODE
from eagle3_draft.tensors import NAMES, Source, pieces, type_of


def write(
    sources: Mapping[str, Source],
    path: Path,
    dtype: torch.dtype,
    seen: Callable[[str, Values | None], object] = lambda name, values: None,
) -> str:
    """Write tensors to one safetensors file, those of numbers in another type.

    Args:
        sources: by the names that they get.
        path: of the file, which is whole, durable and readable by all in the end.
        dtype: of the weights. Integers and truth values keep theirs.
        seen: is told the name of each tensor, once it is written, and what its values were like; None for a vocabulary's map.

    Returns:
        sha256 of the file's bytes, in hexadecimal: a piece is hashed while it is written.
    """
    names = sorted(sources)
    types = {name: dtype if type_of(sources[name]).is_floating_point else type_of(sources[name]) for name in names}
    with direct.create(path) as file:
        file.write(_header({name: (types[name], tuple(sources[name].shape)) for name in names}))
        for name in names:
            values = Values.of(name, sources[name].shape) if types[name].is_floating_point else None
            for piece in pieces(sources[name]):
                if values is not None:
                    values.add(piece)
                file.write(piece.to(types[name]).view(torch.uint8).numpy().data)
            seen(name, values)
        return file.finish(FILE_MODE)


def _header(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> bytes:
    """The beginning of a safetensors file: its header's length and the header, padded to a multiple of eight bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * dtype.itemsize
        entries[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
