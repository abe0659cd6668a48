"""Reading a feature store, memory-mapped: a sample's tensors are views into the shard's file.

Each conversation is verified by its own digest when it is first read, by threads ahead of whoever reads: so nothing is read from
the disk but what is used, and that once. A store of an older version has digests of whole shards only.
"""

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import overload

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from eagle3_api.artifacts import File, Manifest
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.features.format import LENGTHS, Digests, Header, Sample, ShardEntry, Split, Text, digests_name
from eagle3_draft.features.shard import Shard, corrupt
from eagle3_draft.places import DOWNLOADS, Place, Volume
from eagle3_draft.stage import StageError

_SHARDS = TypeAdapter(list[ShardEntry])

#: Shards that stay mapped at a time: the kernel bounds the mappings of a process.
OPEN_SHARDS = 256

#: Conversations that are fetched and verified at a time, where there are as many cores: SHA-256 is about as fast as a disk.
FETCHED_TOGETHER = 4


class Features:
    """A feature store that is open for reading.

    Attributes:
        manifest: of Extract's artifact.
        header: what the states are.
        train: the conversations to learn from.
        held_out: those kept out of training.
    """

    def __init__(self, manifest: Manifest, header: Header, train: "Samples", held_out: "Samples") -> None:
        self.manifest = manifest
        self.header = header
        self.train = train
        self.held_out = held_out

    @classmethod
    def open(cls, folder: Path, at: Place = Volume()) -> "Features":  # noqa: B008  it has no state
        """Open the store in a folder. Digests are checked when what they are of is first read.

        Args:
            folder: of Extract's artifact.
            at: where it lies.

        Raises:
            StageError: the artifact is unfinished or broken (CorruptArtifact), or its last states are not what lm_head
                reads (FeatureMismatch).
        """
        manifest = at.read(folder)
        files = {file.path: file for file in manifest.files}
        try:
            header = Header.model_validate(manifest.numbers)
        except ValidationError as error:
            raise corrupt(folder, f"the numbers of its manifest do not say what its states are ({error})") from None
        if header.last_norm != "final":
            raise StageError(
                ExitCode.REFUSED,
                Reason.FEATURE_MISMATCH,
                f"the last hidden states in {folder} were taken {header.last_norm!r} of the final norm; the target's head "
                "reads them after it. Extract them again",
            )
        if LENGTHS not in files:
            raise corrupt(folder, f"its manifest lists no {LENGTHS}")
        table = _table(at.file(folder, files[LENGTHS]))
        samples = []
        for split in Split:
            try:
                shards = _SHARDS.validate_python(manifest.numbers["shards"][str(split)])
                agree = all(shard.file in files for shard in shards) and sum(
                    shard.conversations for shard in shards
                ) == len(table[str(split)])
            except (KeyError, TypeError, ValidationError):
                agree = False
            if not agree:
                raise corrupt(folder, f"{LENGTHS} and the manifest differ on the {split} conversations")
            named = [(files[shard.file], shard.conversations) for shard in shards]
            samples.append(Samples(folder, at, named, header, table[str(split)], table.get(digests_name(split))))
        return cls(manifest, header, *samples)


class Samples(Sequence[Sample]):
    """The conversations of one split, in the order in which they were extracted.

    Attributes:
        lengths: int32 (conversations,), tokens of each; known without reading a shard.
    """

    def __init__(
        self,
        folder: Path,
        at: Place,
        shards: Sequence[tuple[File, int]],
        header: Header,
        lengths: torch.Tensor,
        digests: torch.Tensor | None,
    ) -> None:
        self.lengths = lengths
        self._folder = folder
        self._at = at
        self._shards = [file for file, _ in shards]
        self._header = header
        self._starts = [0, *accumulate(conversations for _, conversations in shards)]
        self._digests = digests
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        self._verified: dict[tuple[int, int], bytearray] = {}
        self._fetcher = ThreadPoolExecutor(min(FETCHED_TOGETHER, len(os.sched_getaffinity(0))), "fetcher")
        self._coming: dict[int, Future[None]] = {}

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return self.read(range(*index.indices(len(self))))
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return self.read([index])[0]

    def place(self, index: int) -> str:
        """Where a conversation lies, for people: its number in a shard, and the shard."""
        number = self._number(index)
        return f"number {index - self._starts[number]} of {self._shards[number].path}"

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Several conversations. All of them are read and verified beside each other, and those that are expected meanwhile.

        Raises:
            StageError: one has other bytes than were published (CorruptArtifact); it cannot be read (StorageUnavailable).
        """
        for number in self._not_open(indices):
            self._at.announce(self._folder, self._shards[number])
        for index in indices:
            self._begin(index)
        for index in indices:
            if (coming := self._coming.pop(index, None)) is not None:
                coming.result()
        return [self._sample(index) for index in indices]

    def expect(self, indices: Sequence[int]) -> None:
        """Say that conversations will be read: they are fetched and verified in the background."""
        if self._digests is None:
            return
        absent = set() if self._at.keeps else set(self._not_open(indices))  # a download is not waited for
        for number in absent:
            self._at.announce(self._folder, self._shards[number])
        for index in indices:
            if self._number(index) not in absent:
                self._begin(index)

    def texts(self) -> Iterator[Text]:
        """What the conversations say, in their order. Nothing is read of what was computed over them."""
        for number, (first, end) in enumerate(pairwise(self._starts)):
            for ahead in self._shards[number : number + 1 + DOWNLOADS]:
                self._at.announce(self._folder, ahead)
            for index in range(first, end):
                found, place = self._find(index)
                if (digests := self._digests_of(index)) is not None:
                    found.shard.check_text(place, digests)
                yield found.shard.text(place)

    def _begin(self, index: int) -> None:
        """Have a conversation read, and verified if it was not."""
        if index not in self._coming:
            found, place = self._find(index)
            digests = None if found.verified[place] else self._digests_of(index)
            self._coming[index] = self._fetcher.submit(found.fetch, place, digests)

    def _sample(self, index: int) -> Sample:
        found, place = self._find(index)
        if not found.verified[place] and (digests := self._digests_of(index)) is not None:
            found.fetch(place, digests)  # the shard was fetched anew since
        return found.shard.sample(place)

    def _digests_of(self, index: int) -> Digests | None:
        """None where the whole shard is verified when it is opened."""
        if self._digests is None:
            return None
        text, computed = self._digests[index]
        return Digests(bytes(text.tolist()), bytes(computed.tolist()))

    def _not_open(self, indices: Sequence[int]) -> list[int]:
        return [number for number in dict.fromkeys(map(self._number, indices)) if number not in self._open]

    def _number(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def _find(self, index: int) -> "tuple[_OpenShard, int]":
        """The shard of a conversation, and its number in it."""
        number = self._number(index)
        return self._shard(number), index - self._starts[number]

    def _shard(self, number: int) -> "_OpenShard":
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        file = self._shards[number]
        path = (self._at.file if self._digests is None else self._at.located)(self._folder, file)
        shard = Shard(path, self._header)
        first, end = self._starts[number], self._starts[number + 1]
        if shard.lengths != self.lengths[first:end].tolist():
            raise corrupt(self._folder, f"{file.path} and {LENGTHS} differ on how long its conversations are")
        # Verified once, as long as it is the same file: one that left the cache and was fetched again is another
        verified = self._verified.setdefault((number, path.stat().st_mtime_ns), bytearray(end - first))
        self._open[number] = _OpenShard(shard, verified)
        if len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)
        return self._open[number]


@dataclass(frozen=True)
class _OpenShard:
    """A shard, and which of its conversations were verified."""

    shard: Shard
    verified: bytearray

    def fetch(self, place: int, digests: Digests | None) -> None:
        """Have a conversation in memory soon, and verified if there are digests.

        Raises:
            StageError: its bytes are not those that were written (CorruptArtifact).
        """
        self.shard.announce(place)
        if digests is not None:
            self.shard.check(place, digests)
            self.verified[place] = True


def _table(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise corrupt(path, f"it is no safetensors file: {error}") from None
