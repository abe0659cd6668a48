"""A draft's tensors, wherever it came from: read piece by piece, never a whole one in memory unless its values do not lie in order."""

from collections.abc import Callable, Iterator
from math import prod

import torch
from torch import Tensor

from eagle3_api.checkpoints import Form
from eagle3_api.checkpoints.files import StoredTensor
from eagle3_api.checkpoints.pickled import extent
from eagle3_api.checkpoints.safetensors import BITS
from eagle3_api.checkpoints.vocabulary import read_map
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.model.target import Target

#: As safetensors calls them.
NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.bool: "BOOL",
}
#: What a server puts its target's table in the place of, unless the draft's states are of another width.
EMBEDDING = "embed_tokens.weight"

_TORCH = {name: dtype for dtype, name in NAMES.items()}

#: Bytes that are read at once: enough for the disk's speed, and little beside any model.
PIECE = 16 * 1024 * 1024

#: A tensor in a file, or one that was made here.
Source = StoredTensor | Tensor


def sources_of(form: Form, target: Target | None) -> dict[str, Source]:
    """Every tensor of a whole draft, by SGLang's names.

    Args:
        form: of the draft.
        target: for a head that is shared.

    Raises:
        StageError: the head is the target's, and there is no target (InvalidConfiguration).
    """
    sources: dict[str, Source] = {
        name: stored for name, stored in form.tensors.items() if name != EMBEDDING or form.own_embedding
    }
    if "lm_head.weight" not in sources:
        sources["lm_head.weight"] = _shared_head(form, target)
    if form.fc_bias and not form.output_bias and form.latent is None:  # SGLang makes both or none
        layers = ["midlayer", *(f"layers.{number}" for number in range(1, form.depth))]
        sources |= {f"{layer}.self_attn.o_proj.bias": torch.zeros(form.hidden_size or 0) for layer in layers}
    size = form.vocabulary_size or 0
    reading = read_map(form, size)
    if reading is not None:
        rows = torch.tensor(reading.ids, dtype=torch.int64)
        sources["d2t"] = rows - torch.arange(len(rows))
        sources["t2d"] = torch.zeros(size, dtype=torch.bool).index_fill(0, rows, True)
    return sources


def _shared_head(form: Form, target: Target | None) -> Source:
    own = form.tensors.get(EMBEDDING)
    if form.tied and own is not None:
        return own
    if target is None:
        raise StageError(
            ExitCode.BAD_CONFIGURATION,
            Reason.INVALID_CONFIGURATION,
            f"the draft in {form.path} has no head of its own and uses its target's: name the target",
        )
    return target.embedding() if form.tied else target.head()


def pieces(source: Source, numbers: int | None = None) -> Iterator[Tensor]:
    """The values of a tensor in order, flat, some megabytes at a time. A piece is good until the next one is asked for.

    Args:
        source: of the values.
        numbers: in each piece but the last; as many as ``PIECE`` bytes hold, where they are not said.
    """
    numbers = numbers or PIECE // type_of(source).itemsize
    if isinstance(source, Tensor):
        yield from torch.split(source.reshape(-1), numbers)
    elif source.contiguous:
        yield from _read(source, numbers)
    else:
        yield from torch.split(_reordered(source).reshape(-1), numbers)


def whole(source: Source) -> Tensor:
    """The values of a tensor, all of them in memory."""
    values, done = torch.empty(prod(source.shape), dtype=type_of(source)), 0
    for piece in pieces(source):
        values[done : done + len(piece)] = piece
        done += len(piece)
    return values.view(source.shape)


def type_of(source: Source) -> torch.dtype:
    """Of its values."""
    return source.dtype if isinstance(source, Tensor) else _TORCH[source.dtype]


def _read(stored: StoredTensor, numbers: int) -> Iterator[Tensor]:
    width = BITS[stored.dtype] // 8
    left = stored.elements * width
    buffer = bytearray(min(numbers * width, left))
    with stored.path.open("rb", buffering=0) as file:
        file.seek(stored.begin)
        while left:
            part = memoryview(buffer)[: min(len(buffer), left)]
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


def _reordered(stored: StoredTensor) -> Tensor:
    """A tensor that was saved transposed, or as part of another one: what lies between its first value and its last one."""
    strides = stored.strides or ()
    values = bytearray(extent(stored.shape, strides) * BITS[stored.dtype] // 8)
    with stored.path.open("rb", buffering=0) as file:
        file.seek(stored.begin)
        _fill(file.readinto, memoryview(values))
    return torch.frombuffer(values, dtype=_TORCH[stored.dtype]).as_strided(stored.shape, strides)
