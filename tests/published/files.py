"""Safetensors files without a library, whole or with a planted fault."""

import json
import os
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

from eagle3_api.checkpoints.safetensors import BITS, Tensor


def write(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, bytes] | None = None) -> None:
    """A file of zeros, but for the values that are given."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        given = (values or {}).get(name, bytes(prod(tensor.shape) * BITS[tensor.dtype] // 8))
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(given)],
        }
        data += given
    write_raw(path, json.dumps(header).encode(), data)


def write_sparse(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A file of zeros, which takes no room however large it is."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + prod(tensor.shape) * BITS[tensor.dtype] // 8
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    write_raw(path, json.dumps(header).encode())
    os.truncate(path, path.stat().st_size + end)


def write_raw(path: Path, header: bytes, data: bytes = b"") -> None:
    """A file with any header at all."""
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
