"""One shard: a safetensors file in which every tensor begins on a page, written in one pass and read as a mapping."""

import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch import Tensor

from eagle3_api.checkpoints.safetensors import HeaderError, read_header
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, StageName
from eagle3_draft.errors import StageError
from eagle3_draft.features.format import (
    TEXT_TENSORS,
    Digests,
    Header,
    Sample,
    Text,
    as_stored,
    digest_of,
    of_type,
    sample_of,
    tensors,
)
from eagle3_draft.features.pieces import DTYPES, PADDING, pieces, raw
from eagle3_draft.files import write_pieces

OFFSETS = "offsets"

#: Bytes that the kernel is told of at a time. Of more, it reads its window of read-ahead alone, which has this size where
#: nobody changed it.
ANNOUNCED = 128 * 1024

# -------------------------------------------------------------------------------------------------------------- write


@dataclass(frozen=True)
class Written:
    """A shard that was written.

    Attributes:
        sha256: of its file, in hexadecimal.
        digests: of its conversations.
    """

    sha256: str
    digests: list[Digests]


def write_shard(
    path: Path, samples: Sequence[Sample], header: Header, before: Callable[[], None] = lambda: None
) -> Written:
    """Write conversations as one shard, atomically. Their tensors go to the file as they are, without being joined.

    Args:
        path: of the file.
        samples: may be none at all.
        header: says the width and the dtype of the states.
        before: as of ``write_pieces``.

    Raises:
        StageError: a sample's parts do not have one row a token, or not the header's width (FeaturesMisaligned).
    """
    rows = [_stored(sample, header) for sample in samples]
    offsets = torch.tensor([0, *accumulate(len(sample) for sample in samples)], dtype=torch.int64)
    columns = {name: [row[name] for row in rows] for name in header.stored()}
    shapes = {name: (dtype, (int(offsets[-1]), *row)) for name, (dtype, row) in header.stored().items()}
    every = pieces(shapes | {OFFSETS: (torch.int64, (len(offsets),))}, columns | {OFFSETS: [offsets]})
    apart = {name: raw(parts) for name, parts in columns.items()}
    with ThreadPoolExecutor(1, "digest") as beside:
        digests = [
            beside.submit(Digests.of, {name: parts[number] for name, parts in apart.items()}, header)
            for number in range(len(rows))
        ]
        sha256 = write_pieces(path, every, before)
        return Written(sha256, [digest.result() for digest in digests])


def _stored(sample: Sample, header: Header) -> dict[str, Tensor]:
    """A conversation's tensors as they are stored."""
    found = tensors(sample)
    expected = header.columns() if sample.hidden_scale is None else header.stored()
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    wanted = {name: (len(sample), *row) for name, (_, row) in expected.items()}
    if shapes != wanted:
        raise StageError(
            ExitCode.REFUSED,
            Reason.FEATURES_MISALIGNED,
            f"a conversation of {len(sample)} tokens has tensors of the shapes {shapes}, not {wanted}: the engine dropped or "
            "split rows. Switch off its prefix cache and chunked prefill",
        )
    stored = {name: of_type(tensor, expected[name][0]) for name, tensor in found.items()}
    return stored if sample.hidden_scale is not None else as_stored(stored, header.dtype, header.hidden_size)


# --------------------------------------------------------------------------------------------------------------- read


class Shard:
    """A shard that is mapped into memory, and where in it its conversations lie.

    Attributes:
        lengths: tokens of each conversation.
    """

    def __init__(self, path: Path, header: Header, name: Path) -> None:
        """Map a shard.

        Args:
            path: of the file. The caller verifies it, or its conversations by their digests.
            header: what it must hold.
            name: where it was published, for messages.

        Raises:
            StageError: the file is none of this header (CorruptArtifact).
        """
        try:
            found = read_header(path)
        except HeaderError as error:
            raise corrupt(name, str(error)) from None
        with path.open("rb") as file:
            # Private, not read-only: torch shares writable buffers alone. Nobody writes
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._map.madvise(mmap.MADV_RANDOM)  # what is wanted is announced
        self._path = path
        self._name = name
        self._header = header
        self._begins = {name: tensor.begin for name, tensor in found.tensors.items()}
        self._tensors = {
            name: self._mapped(tensor.dtype, tensor.shape, tensor.begin)
            for name, tensor in found.tensors.items()
            if not name.startswith(PADDING)
        }
        self._bounds = self._checked()
        self.lengths = [end - start for start, end in pairwise(self._bounds)]

    def announce(self, index: int) -> None:
        """Have the kernel read a conversation, without waiting for it; but where the disk has much to read already."""
        start, end = self._bounds[index], self._bounds[index + 1]
        with suppress(FileNotFoundError), self._path.open("rb") as file:  # what was deleted stays mapped
            for name in self._header.stored():
                row = self._tensors[name][:1].nbytes
                first, last = self._begins[name] + start * row, self._begins[name] + end * row
                for piece in range(first, last, ANNOUNCED):
                    os.posix_fadvise(file.fileno(), piece, min(ANNOUNCED, last - piece), os.POSIX_FADV_WILLNEED)

    def sample(self, index: int) -> Sample:
        """One conversation; its tensors are views into the file."""
        return sample_of(self._columns(index))

    def text(self, index: int) -> Text:
        """What one conversation says, alike."""
        columns = self._columns(index)
        return Text(*(columns[name] for name in TEXT_TENSORS))

    def check_text(self, index: int, digests: Digests) -> None:
        """Raises StageError where a conversation says something else than was written (CorruptArtifact)."""
        self._check(index, TEXT_TENSORS, digests.text)

    def check(self, index: int, digests: Digests) -> None:
        """Raises StageError where any of a conversation's bytes are not those that were written (CorruptArtifact)."""
        self.check_text(index, digests)
        self._check(index, self._header.computed(), digests.computed)

    def _check(self, index: int, names: Sequence[str], digest: bytes) -> None:
        columns = self._columns(index)
        if digest_of({name: raw([columns[name]])[0] for name in names}, names) != digest:
            raise corrupt(self._name, f"conversation {index} in it was changed since it was published")

    def _columns(self, index: int) -> dict[str, Tensor]:
        rows = slice(self._bounds[index], self._bounds[index + 1])
        return {name: self._tensors[name][rows] for name in self._header.stored()}

    def _mapped(self, dtype: str, shape: tuple[int, ...], begin: int) -> Tensor:
        kind = DTYPES.get(dtype, torch.uint8)  # another kind is refused by its name
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(self._map, dtype=kind, count=count, offset=begin).reshape(shape)

    def _checked(self) -> list[int]:
        """Where conversations begin and end; the tensors must be those of the header."""
        found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors.items()}
        offsets = self._tensors.get(OFFSETS, torch.empty(0, dtype=torch.int64))
        tokens = len(self._tensors.get("input_ids", ()))
        expected = {name: (dtype, (tokens, *row)) for name, (dtype, row) in self._header.stored().items()}
        expected[OFFSETS] = (torch.int64, (len(offsets),))
        if found != expected:
            raise corrupt(self._name, f"it holds {found}, not {expected}")
        bounds: list[int] = offsets.tolist()
        if not bounds or bounds[0] != 0 or bounds[-1] != tokens or bounds != sorted(bounds):
            raise corrupt(self._name, "its offsets do not divide its tokens into conversations")
        return bounds


def corrupt(path: Path, what: str) -> StageError:
    """Features that cannot be what was published."""
    return StageError(
        ExitCode.BAD_INPUT,
        Reason.CORRUPT_ARTIFACT,
        f"the features in {path} are corrupt: {what}. Delete their folder to have them made again",
        retry=StageName.EXTRACT,
    )
