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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import IO, Any, cast

from eagle3_api.checkpoints.safetensors import BITS, is_shape

#: Bytes of the description, and of the archive's directory, that are read at most.
DESCRIPTION_LIMIT = DIRECTORY_LIMIT = 2_000_000

#: Instructions that are followed, branches of the tree, and characters of a tensor's name, at most. A tensor takes about thirty.
INSTRUCTIONS_LIMIT, BRANCH_LIMIT, NAME_LIMIT = 300_000, 256, 1000

#: Numbers that a tensor's values may be spread over, in its own. Halves of a fused matrix, and their like, have two.
SPREAD_LIMIT = 8

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
        begin: offset in the file of its first value.
        strides: in elements.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    strides: tuple[int, ...]


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from a tensor's first value to its last one; none where it has no values."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if prod(shape) else 0


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
        with path.open("rb") as file, zipfile.ZipFile(_bounded(path, file)) as archive:
            return _read(path, file, archive)
    except PickleError:
        raise
    except (*_BROKEN, OSError) as error:
        # A directory that points before the file's beginning makes the seek invalid; other errors are the disk's
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise PickleError(
            f"{path} is not a file of torch.save, or was cut ({error}). One that was written by torch before 1.6 must be "
            "saved again"
        ) from None


class _Bounded:
    """A file of which no more is read at once than an archive's directory may have, whatever the archive says of it."""

    def __init__(self, path: Path, file: io.BufferedReader) -> None:
        self.path = path
        self.file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Up to so many bytes, all that there are where it is negative."""
        text = self.file.read(DIRECTORY_LIMIT + 1 if size < 0 else min(size, DIRECTORY_LIMIT + 1))
        if len(text) > DIRECTORY_LIMIT:
            raise PickleError(f"{self.path}: its directory has more than {DIRECTORY_LIMIT} bytes")
        return text


def _bounded(path: Path, file: io.BufferedReader) -> IO[bytes]:
    """The file, to be read from and searched in, which is all that ZipFile does with one."""
    return cast(IO[bytes], _Bounded(path, file))


def _read(path: Path, file: io.BufferedReader, archive: zipfile.ZipFile) -> dict[str, PickledTensor]:
    entries = {info.filename: info for info in archive.infolist()}
    described = [info for name, info in entries.items() if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(described) != 1:
        raise PickleError(f"{path} is not a file of torch.save: it has no data.pkl")
    root = described[0].filename.removesuffix("data.pkl")
    description = _content(path, archive, described[0], DESCRIPTION_LIMIT)
    order = entries.get(f"{root}byteorder")
    if order is not None and _content(path, archive, order, limit=16) != b"little":
        raise PickleError(f"{path} was written on a machine of the other byte order")
    begins: dict[str, int] = {}

    def place(storage: _Storage) -> int:
        if storage.key not in begins:
            info = entries.get(f"{root}data/{storage.key}")
            begins[storage.key] = _begin(path, file, info, storage)
        return begins[storage.key]

    tree = _Machine(path, place).run(description)
    return dict(_flatten(path, "", tree, set()))


def _content(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
    """An entry that is read whole: small, and no longer when it is unpacked."""
    if info.file_size > limit:
        raise PickleError(f"{path}: its {info.filename[:80]} has {info.file_size} bytes, more than {limit}")
    if not _is_stored(info):
        raise PickleError(f"{path}: its {info.filename[:80]} is compressed")
    return archive.read(info)


def _is_stored(info: zipfile.ZipInfo) -> bool:
    return info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size


def _begin(path: Path, file: io.BufferedReader, info: zipfile.ZipInfo | None, storage: _Storage) -> int:
    """The offset of a storage's first byte."""
    if info is None:
        raise PickleError(f"{path} lacks the values of storage {storage.key[:80]}")
    expected = storage.length * BITS[storage.dtype] // 8
    if not _is_stored(info):
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


def _flatten(path: Path, name: str, value: object, seen: set[int]) -> Iterator[tuple[str, PickledTensor]]:
    """The tree's tensors. A branch that hangs in it twice, or in itself, is walked once."""
    if len(name) > NAME_LIMIT:
        raise PickleError(f"{path}: the name {name[:80]}… has more than {NAME_LIMIT} characters")
    if isinstance(value, PickledTensor):
        yield name, value
    elif isinstance(value, Mapping) and id(value) not in seen and len(seen) < BRANCH_LIMIT:
        seen.add(id(value))
        for key, part in value.items():
            yield from _flatten(path, f"{name}.{key}" if name else str(key), part, seen)


_CONSTANTS: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], object]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_LITERALS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
_IGNORED = frozenset({"PROTO", "FRAME"})


class _Machine:
    """An interpreter of the pickle language for plain data.

    Attributes:
        stack: values since the last mark.
        below: the stacks below each mark, so that no instruction takes longer than what it takes from the stack.
        memo: values that are used again.
    """

    def __init__(self, path: Path, place: Callable[[_Storage], int]) -> None:
        self.path = path
        self.place = place
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self, text: bytes) -> object:
        """The value that a pickle describes."""
        try:
            for operation, argument, _ in islice(pickletools.genops(text), INSTRUCTIONS_LIMIT):
                if operation.name == "STOP":
                    return self.stack.pop()
                self._step(operation.name, argument)
        except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, PickleError):
                raise
            raise PickleError(f"{self.path}: its description is broken ({error!r})") from None
        raise PickleError(f"{self.path}: its description has more than {INSTRUCTIONS_LIMIT} instructions")

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
                self.below.append(self.stack)
                self.stack = []
            case "TUPLE":
                values = self._since_mark()
                self.stack.append(tuple(values))
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
                self._put([(key, value)])
            case "SETITEMS":
                pairs = self._since_mark()
                self._put(zip(pairs[::2], pairs[1::2], strict=True))
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
        values, self.stack = self.stack, self.below.pop()
        return values

    def _put(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Names and numbers alone are keys: what is nested in itself takes for ever to hash."""
        tree = self.stack[-1]
        for key, value in pairs:
            if not isinstance(key, str | int):
                raise self._wants(f"a key that is {type(key).__name__}")
            tree[key] = value

    def _attributes(self) -> None:
        """A state dict carries its modules' versions as an attribute, which is dropped."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], dict) or not isinstance(state, dict) or state.keys() - {"_metadata"}:
            raise self._wants("to set attributes")

    def _storage(self, identity: Any) -> _Storage:
        match identity:
            case ("storage", _Name("torch", name), str(key), str(), int(length)) if name in _DTYPES and length >= 0:
                return _Storage(_DTYPES[name], key, length)
        raise self._wants("a storage of another kind")

    def _call(self, function: Any, arguments: Any) -> object:
        match function, arguments:
            case _Name("collections", "OrderedDict"), ():
                return {}
            case _Name("torch._utils", "_rebuild_tensor_v2"), (_Storage() as storage, int(first), shape, strides, *_):
                return self._tensor(storage, first, shape, strides)
            case _Name("torch._utils", "_rebuild_parameter"), (PickledTensor() as tensor, *_):
                return tensor
        wanted = f"{function.module}.{function.name}" if isinstance(function, _Name) else type(function).__name__
        raise self._wants(f"to call {wanted:.80}")

    def _tensor(self, storage: _Storage, first: int, shape: Any, strides: Any) -> PickledTensor:
        if not (
            isinstance(shape, tuple)
            and isinstance(strides, tuple)
            and len(shape) == len(strides)
            and is_shape([*shape])
            and is_shape([*strides])
            and first >= 0
        ):
            raise PickleError(f"{self.path}: a tensor's shape or strides are broken")
        if first + extent(shape, strides) > storage.length:
            raise PickleError(f"{self.path}: a tensor of shape {list(shape)} reaches behind its storage")
        if prod(shape) > storage.length:
            raise PickleError(f"{self.path}: a tensor of shape {list(shape)} repeats its storage")
        if extent(shape, strides) > SPREAD_LIMIT * prod(shape):
            raise PickleError(
                f"{self.path}: a tensor of shape {list(shape)} is a view that lies scattered over {extent(shape, strides)} numbers of "
                "its storage. Save it again after .contiguous()"
            )
        begin = self.place(storage) + first * BITS[storage.dtype] // 8
        return PickledTensor(storage.dtype, shape, begin, strides)

    def _wants(self, what: str) -> PickleError:
        return PickleError(
            f"{self.path} is a pickle that wants more than plain tensors ({what}); it is not run. Save the draft's "
            "state dict alone, as safetensors"
        )
