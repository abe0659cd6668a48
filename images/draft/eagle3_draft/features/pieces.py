"""The bytes of a safetensors file in which every tensor begins on a page, from tensors that lie in parts, none of them copied."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

#: Where a tensor may begin. What lies between two is a tensor of bytes of its own, for safetensors allows no gap.
PAGE = 4096
PADDING = "padding."

#: A tensor of so many bytes is one piece: to copy it costs less than to write each part by itself.
SMALL = 1024 * 1024

NAMES = {
    torch.int64: "I64",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def pieces(
    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], columns: Mapping[str, Sequence[Tensor]]
) -> Iterator[memoryview]:
    """The bytes of a file, in order.

    Args:
        shapes: type and shape of each tensor, by name.
        columns: each tensor as the parts of it, on the CPU, that follow each other.
    """
    entries: dict[str, object] = {}
    begin = 0
    for number, (name, (dtype, shape)) in enumerate(shapes.items()):
        end = begin + torch.Size(shape).numel() * dtype.itemsize
        entries[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end + -end % PAGE
        if begin > end:
            entries[f"{PADDING}{number}"] = {"dtype": "U8", "shape": [begin - end], "data_offsets": [end, begin]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in shapes:
        size = 0
        parts = [_bytes(part) for part in merged(columns[name])]
        if 0 < sum(map(len, parts)) <= SMALL:
            parts = [torch.cat(parts)]
        for part in parts:
            size += len(part)
            yield part.numpy().data
        yield memoryview(bytes(-size % PAGE))


def merged(parts: Iterable[Tensor]) -> list[Tensor]:
    """Tensors, those whose rows follow each other in memory as one: as of conversations that were computed together.

    What is done to each tensor is then done a few times and not hundreds; and here nothing is asked of one for which torch
    would give its turn to another of Python's threads.
    """
    runs: list[tuple[Tensor, int]] = []
    end = 0
    for part in parts:
        if not part.numel():
            continue
        begin = part.data_ptr()
        if runs and begin == end and part.is_contiguous() and _same_storage(part, runs[-1][0]):
            runs[-1] = runs[-1][0], runs[-1][1] + len(part)
        else:
            runs.append((part, len(part)))
        end = begin + part.numel() * part.element_size() if part.is_contiguous() else 0
    return [
        first if rows == len(first) else first.as_strided((rows, *first.shape[1:]), _strides(first))
        for first, rows in runs
    ]


def _strides(rows: Tensor) -> tuple[int, ...]:
    """Of rows that follow each other: torch says anything of the first dimension where there is one row alone."""
    return rows.shape[1:].numel(), *rows.stride()[1:]


def raw(parts: Sequence[Tensor]) -> list[memoryview]:
    """Of each tensor the bytes, as they lie in a shard."""
    found, runs = [], iter(merged(parts))
    data, at = memoryview(b""), 0
    for part in parts:
        size = part.numel() * part.element_size()
        if size and at == len(data):
            data, at = _bytes(next(runs)).numpy().data, 0
        found.append(data[at : at + size])
        at += size
    return found


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _same_storage(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
