"""The weights, tensor by tensor: never all of them in memory."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from eagle3_api import checkpoint_rules
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.inspect.headers import HeaderError, read_header
from eagle3_draft.stage import StageError

#: As safetensors calls them.
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.bool: "BOOL"}

#: The server takes the target's embedding; one that lies in a draft's checkpoint is left behind.
_UNUSED = "embed_tokens.weight"

_VOCABULARY = ("d2t", "t2d")


@dataclass(frozen=True)
class Source:
    """Tensors in one or more safetensors files.

    Args:
        files: of each tensor, by its name.
        headers: shape and type of each, by its name.
    """

    files: dict[str, Path]
    headers: dict[str, checkpoint_rules.Tensor]

    @classmethod
    def open(cls, *paths: Path) -> "Source":
        """The tensors of files. An embedding is left out.

        Raises:
            StageError: a file is no whole safetensors file (CheckpointUnreadable).
        """
        files: dict[str, Path] = {}
        headers: dict[str, checkpoint_rules.Tensor] = {}
        for path in paths:
            try:
                found = read_header(path).tensors
            except (HeaderError, OSError) as error:
                raise StageError(ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE, str(error)) from None
            for name in found.keys() - {_UNUSED}:
                files[name], headers[name] = path, found[name]
        return cls(files, headers)

    def read(self, name: str) -> Tensor:
        """One tensor, as stored."""
        with safe_open(self.files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor


def read_map(source: Source) -> tuple[list[int] | None, list[bool] | None]:
    """d2t and t2d, each where there is one."""
    offsets, members = (source.read(name).tolist() if name in source.files else None for name in _VOCABULARY)
    return offsets, members


def convert(source: Source, path: Path, dtype: torch.dtype) -> Iterator[str]:
    """Write all tensors to one file, the weights in another type, and check their values on the way.

    Args:
        source: what is written; its names stay.
        path: of the file.
        dtype: of the weights. The vocabulary's maps keep theirs.

    Yields:
        A tensor's name, once it is written.

    Raises:
        StageError: values that no trained draft has (NonFinite, CheckpointIncomplete).
    """
    names = sorted(source.files)
    written = {name: None if name in _VOCABULARY else dtype for name in names}
    with path.open("wb") as file:
        file.write(_header(source.headers, written))
        for name in names:
            tensor = source.read(name)
            if (weight := written[name]) is not None:
                _check_values(name, tensor)
                tensor = tensor.to(weight)
            file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
            yield name


def _header(headers: Mapping[str, checkpoint_rules.Tensor], written: Mapping[str, torch.dtype | None]) -> bytes:
    """The beginning of a safetensors file: its header's length and the header, padded to a multiple of eight bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, weight in written.items():
        header = headers[name]
        torch_dtype = weight or next(ours for ours, theirs in DTYPES.items() if theirs == header.dtype)
        elements = 1
        for size in header.shape:
            elements *= size
        start, end = end, end + elements * torch_dtype.itemsize
        entries[name] = {"dtype": DTYPES[torch_dtype], "shape": list(header.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _check_values(name: str, tensor: Tensor) -> None:
    wide = tensor.to(torch.float32)
    if not wide.isfinite().all():
        raise StageError(ExitCode.REFUSED, Reason.NON_FINITE, f"{name} has values that are not finite numbers")
    if tensor.dim() > 1 and wide.min() == wide.max():
        raise StageError(
            ExitCode.REFUSED,
            Reason.CHECKPOINT_INCOMPLETE,
            f"every value of {name} is {wide.min().item():g}: it was never filled",
        )


def untrained(source: Source) -> list[str]:
    """Warnings about parts that look as if they had never been trained: norms that are all exactly one."""
    norms = [name for name in sorted(source.files) if name.endswith("norm.weight")]
    fresh = [name for name in norms if bool((source.read(name) == 1).all())]
    return [f"{', '.join(fresh)}: every value is 1, as before training"] if fresh else []
