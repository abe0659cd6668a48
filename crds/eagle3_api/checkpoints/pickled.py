"""The tensors of a file that ``torch.save`` wrote, without unpickling it: nothing in it is ever run.

Such a file is a zip archive without compression: ``*/data.pkl`` describes a tree of dicts, lists, numbers and tensors in
the pickle language, ``*/data/<key>`` hold the tensors' values. Here the description is interpreted by a small machine of its own,
which knows the few instructions that plain data needs and three functions by name. Whatever else a pickle wants
(a class, a call, an import) is refused, as ``torch.load(weights_only=True)`` does. Values are read by whoever needs them,
straight from their offset in the file.
"""

import errno
import io
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from eagle3_api.checkpoints.safetensors import BITS, is_shape

#: Bytes of the description and of the archive's directory, and branches of the tree, that are read at most.
DESCRIPTION_LIMIT, DIRECTORY_LIMIT, BRANCH_LIMIT = 8_000_000, 8_000_000, 256

_DTYPES = {
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}


class PickleError(ValueError):
    """A file that is no plain collection of tensors; the message names it and says why."""


@dataclass(frozen=True)
class PickledTensor:
    """A tensor as the description has it.

    Attributes:
        dtype, shape: as in a safetensors header.
        begin: offset in the file of the first byte of its storage.
        strides: in elements.
        first: element of the storage at which it begins.
        length: elements of the storage.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    strides: tuple[int, ...]
    first: int
    length: int


@dataclass(frozen=True)
class _Name:
    """A function or class that the description names."""

    module: str
    name: str


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str
    length: int


#: What the standard library says of an archive that was damaged.
_BROKEN = (zipfile.BadZipFile, EOFError, ValueError, OverflowError, RuntimeError, struct.error, zlib.error)


def read_tensors(path: Path) -> dict[str, PickledTensor]:
    """Every tensor in the tree, under its path in it, joined by dots (``model.fc.weight``).

    Raises:
        PickleError: it is no such file, was cut, or its description is more than plain data.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            _check_directory(path, file)
            with zipfile.ZipFile(file) as archive:
                return _read(path, file, archive)
    except PickleError:
        raise
    except (*_BROKEN, OSError) as error:
        # A directory that points before the file's beginning makes the seek invalid; other errors are the disk's
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise PickleError(
            f"{path} is no file of torch.save, or was cut ({error}). One that was written by torch before 1.6 must be "
            "saved again"
        ) from None


def _read(path: Path, file: io.BufferedReader, archive: zipfile.ZipFile) -> dict[str, PickledTensor]:
    entries = {info.filename: info for info in archive.infolist()}
    described = [info for name, info in entries.items() if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(described) != 1:
        raise PickleError(f"{path} is no file of torch.save: it has no data.pkl")
    root = described[0].filename.removesuffix("data.pkl")
    if described[0].file_size > DESCRIPTION_LIMIT:
        raise PickleError(f"{path}: its description has {described[0].file_size} bytes, more than {DESCRIPTION_LIMIT}")
    order = entries.get(f"{root}byteorder")
    if order is not None and archive.read(order)[:8] != b"little":
        raise PickleError(f"{path} was written on a machine of the other byte order")
    begins: dict[str, int] = {}

    def place(storage: _Storage) -> int:
        if storage.key not in begins:
            info = entries.get(f"{root}data/{storage.key}")
            begins[storage.key] = _begin(path, file, info, storage)
        return begins[storage.key]

    tree = _Machine(path, place).run(archive.read(described[0]))
    return dict(_flatten("", tree, set()))


def _begin(path: Path, file: io.BufferedReader, info: zipfile.ZipInfo | None, storage: _Storage) -> int:
    """The offset of a storage's first byte."""
    if info is None:
        raise PickleError(f"{path} lacks the values of storage {storage.key}")
    expected = storage.length * BITS[storage.dtype] // 8
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise PickleError(f"{path}: the values of storage {storage.key} are compressed")
    if info.file_size != expected:
        raise PickleError(f"{path}: storage {storage.key} has {info.file_size} bytes, not {expected}")
    file.seek(info.header_offset)
    local = file.read(30)
    if local[:4] != b"PK\3\4":
        raise PickleError(f"{path}: the archive's entry of storage {storage.key} is broken")
    begin = info.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    if begin + expected > path.stat().st_size:
        raise PickleError(f"{path}: the values of storage {storage.key} end behind the file")
    return begin


def _check_directory(path: Path, file: io.BufferedReader) -> None:
    """The archive's directory is read whole: it must be small. Source: PKWARE's APPNOTE, 4.3.14 to 4.3.16."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - 65_557))
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0:
        raise zipfile.BadZipFile("it has no directory")
    length = int.from_bytes(tail[at + 12 : at + 16], "little")
    if length == 0xFFFFFFFF and at >= 20:
        file.seek(int.from_bytes(tail[at - 12 : at - 4], "little"))
        length = int.from_bytes(file.read(48)[40:48], "little")
    if length > DIRECTORY_LIMIT:
        raise PickleError(f"{path}: its directory has {length} bytes, more than {DIRECTORY_LIMIT}")
    file.seek(0)


def _flatten(name: str, value: object, seen: set[int]) -> Iterator[tuple[str, PickledTensor]]:
    """The tree's tensors. A branch that hangs in it twice, or in itself, is walked once."""
    if isinstance(value, PickledTensor):
        yield name, value
    elif isinstance(value, Mapping) and id(value) not in seen and len(seen) < BRANCH_LIMIT:
        seen.add(id(value))
        for key, part in value.items():
            yield from _flatten(f"{name}.{key}" if name else str(key), part, seen)


_MARK = object()

_CONSTANTS: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], object]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_LITERALS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
_IGNORED = frozenset({"PROTO", "FRAME"})


class _Machine:
    """An interpreter of the pickle language for plain data."""

    def __init__(self, path: Path, place: Callable[[_Storage], int]) -> None:
        self.path = path
        self.place = place
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, text: bytes) -> object:
        """The value that a pickle describes."""
        try:
            for operation, argument, _ in pickletools.genops(text):
                if operation.name == "STOP":
                    return self.stack.pop()
                self._step(operation.name, argument)
        except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, PickleError):
                raise
            raise PickleError(f"{self.path}: its description is broken ({error!r})") from None
        raise PickleError(f"{self.path}: its description was cut")

    def _step(self, name: str, argument: Any) -> None:
        if name in _IGNORED:
            return
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name == "GLOBAL":
            self.stack.append(_Name(*argument.split(" ", 1)))
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        else:
            self._build(name)

    def _build(self, name: str) -> None:
        """Instructions that make one value of several."""
        match name:
            case "MARK":
                self.stack.append(_MARK)
            case "TUPLE":
                self.stack.append(tuple(self._since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                self.stack[-count:] = [tuple(self.stack[-count:])]
            case "APPEND":
                value = self.stack.pop()
                self.stack[-1].append(value)
            case "APPENDS":
                values = self._since_mark()
                self.stack[-1].extend(values)
            case "SETITEM":
                value, key = self.stack.pop(), self.stack.pop()
                self.stack[-1][key] = value
            case "SETITEMS":
                pairs = self._since_mark()
                self.stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))
            case "BINPERSID":
                self.stack.append(self._storage(self.stack.pop()))
            case "REDUCE":
                arguments, function = self.stack.pop(), self.stack.pop()
                self.stack.append(self._call(function, arguments))
            case "BUILD":
                self._attributes()
            case _:
                raise self._wants(name)

    def _since_mark(self) -> list[Any]:
        at = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def _attributes(self) -> None:
        """A state dict carries its modules' versions as an attribute, which is dropped."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], dict) or not isinstance(state, dict) or state.keys() - {"_metadata"}:
            raise self._wants("to set attributes")

    def _storage(self, identity: Any) -> _Storage:
        match identity:
            case ("storage", _Name("torch", name), str(key), str(), int(length)) if name in _DTYPES and length >= 0:
                return _Storage(_DTYPES[name], key, length)
        raise self._wants(f"a storage of another kind ({identity!r:.80})")

    def _call(self, function: Any, arguments: Any) -> object:
        match function, arguments:
            case _Name("collections", "OrderedDict"), ():
                return {}
            case _Name("torch._utils", "_rebuild_tensor_v2"), (_Storage() as storage, int(first), shape, strides, *_):
                return self._tensor(storage, first, shape, strides)
            case _Name("torch._utils", "_rebuild_parameter"), (PickledTensor() as tensor, *_):
                return tensor
        wanted = f"{function.module}.{function.name}" if isinstance(function, _Name) else repr(function)[:80]
        raise self._wants(f"to call {wanted}")

    def _tensor(self, storage: _Storage, first: int, shape: Any, strides: Any) -> PickledTensor:
        if not (
            isinstance(shape, tuple)
            and isinstance(strides, tuple)
            and len(shape) == len(strides)
            and is_shape([*shape])
            and is_shape([*strides])
            and first >= 0
        ):
            raise PickleError(f"{self.path}: a tensor's shape {shape!r:.80} or strides are broken")
        last = first + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if prod(shape) > 0 and last >= storage.length:
            raise PickleError(f"{self.path}: a tensor of shape {list(shape)} reaches behind its storage")
        if prod(shape) > storage.length:
            raise PickleError(f"{self.path}: a tensor of shape {list(shape)} repeats its storage")
        return PickledTensor(storage.dtype, shape, self.place(storage), strides, first, storage.length)

    def _wants(self, what: str) -> PickleError:
        return PickleError(
            f"{self.path} is a pickle that wants more than plain tensors ({what}); it is not run. Save the draft's "
            "state dict alone, as safetensors"
        )
