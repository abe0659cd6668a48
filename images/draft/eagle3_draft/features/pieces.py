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
        parts = [*_merged(part.contiguous().flatten().view(torch.uint8) for part in columns[name] if len(part))]
        if 0 < sum(map(len, parts)) <= SMALL:
            parts = [torch.cat(parts)]
        for part in parts:
            size += len(part)
            yield part.numpy().data
        yield memoryview(bytes(-size % PAGE))


def _merged(parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Bytes that follow each other in memory in one tensor, as those of conversations do that were computed together."""
    begun: Tensor | None = None
    for part in parts:
        if begun is None:
            begun = part
        elif (
            part.untyped_storage().data_ptr() == begun.untyped_storage().data_ptr()
            and part.storage_offset() == begun.storage_offset() + len(begun)
        ):
            begun = begun.as_strided((len(begun) + len(part),), (1,))
        else:
            yield begun
            begun = part
    if begun is not None:
        yield begun
