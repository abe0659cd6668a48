"""Reading a feature store, memory-mapped: a sample's tensors are views into the shard's file.

Each conversation is verified by its own digest when it is first read, by threads ahead of whoever reads: so nothing is read from
the disk but what is used, and that once.

Shards are leased from where the store lies. A volume keeps them, and they stay mapped; of an object store's, which may have
to leave the pod's disk at any time, the same threads copy what is read: all that is wanted of a shard by one of them, so that as
many shards come at a time as there are threads. A copy on the disk that turns out to be damaged is fetched again, once.
"""

import os
import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeVar, overload

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_api.manifest import File, Manifest
from eagle3_draft.errors import StageError
from eagle3_draft.features.format import (
    LENGTHS,
    Digests,
    Header,
    Sample,
    ShardEntry,
    Split,
    Text,
    digests_name,
    sample_of,
    tensors,
)
from eagle3_draft.features.shard import Shard, corrupt
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.places import Place, Volume

T = TypeVar("T")

_SHARDS = TypeAdapter(list[ShardEntry])

#: Shards that stay mapped at a time: the kernel bounds the mappings of a process.
OPEN_SHARDS = 256

#: Conversations that are fetched and verified at a time, where there are as many cores: SHA-256 is about as fast as a disk.
FETCHED_TOGETHER = 4

#: The same where shards are downloaded, which keeps no core busy; and shards whose text is read ahead of who counts words.
DOWNLOADS = 4


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
        manifest = artifacts.parsed(folder, at.manifest_text(folder))
        # A part is a store by itself
        stores = artifacts.parts(folder, manifest, at.content) or {"": manifest}
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
        try:
            lengths = manifest.file(LENGTHS)
        except KeyError:
            raise corrupt(folder, f"its manifest lists no {LENGTHS}") from None
        table = _table(folder / LENGTHS, at.content(folder, lengths))
        samples = []
        for split in Split:
            try:
                named = [shard for part, of_part in stores.items() for shard in _shards(part, of_part, split)]
                tokens, digests = table[str(split)], table[digests_name(split)]
                agree = sum(conversations for _, conversations in named) == len(tokens) == len(digests)
            except (KeyError, TypeError, ValidationError):
                agree = False
            if not agree:
                raise corrupt(folder, f"{LENGTHS} and the manifest differ on the {split} conversations")
            samples.append(Samples(folder, at, named, header, tokens, digests))
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
        digests: torch.Tensor,
    ) -> None:
        self.lengths = lengths
        self._folder = folder
        self._at = at
        self._shards = [file for file, _ in shards]
        self._header = header
        self._starts = [0, *accumulate(conversations for _, conversations in shards)]
        self._digests = digests
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        #: Of each shard which conversations were verified, as long as it is the same file: one that left the disk and came again is another.
        self._verified: dict[int, tuple[object, bytearray]] = {}
        threads = min(FETCHED_TOGETHER, len(os.sched_getaffinity(0))) if at.keeps else DOWNLOADS
        self._fetcher = ThreadPoolExecutor(threads, "fetcher")
        self._coming: dict[int, Future[Mapping[int, Sample]]] = {}

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
        self.expect(indices)
        coming = {index: self._coming.pop(index) for index in dict.fromkeys(indices)}
        return [coming[index].result()[index] for index in indices]

    def expect(self, indices: Sequence[int]) -> None:
        """Say that conversations will be read: they are fetched and verified in the background."""
        together: dict[int, list[int]] = {}
        for index in dict.fromkeys(indices):
            if index not in self._coming:
                together.setdefault(index if self._at.keeps else self._number(index), []).append(index)
        for some in together.values():
            self._coming |= dict.fromkeys(some, self._fetcher.submit(self._fetched, some))

    def close(self) -> None:
        """Nothing more is read: what is expected and has not begun to come is not fetched, which would keep the process alive."""
        self._fetcher.shutdown(wait=False, cancel_futures=True)

    def texts(self) -> Iterator[Text]:
        """What the conversations say, in their order. Nothing is read of what was computed over them but where it is downloaded."""
        ahead: deque[Future[list[Text]]] = deque()
        for number in range(len(self._shards)):
            ahead.append(self._fetcher.submit(self._texts, number))
            if len(ahead) > DOWNLOADS:
                yield from ahead.popleft().result()
        for rest in ahead:
            yield from rest.result()

    def _fetched(self, indices: Sequence[int]) -> dict[int, Sample]:
        """Conversations of one shard, verified."""
        number = self._number(indices[0])
        return self._read(number, lambda opened: {index: self._sample(opened, number, index) for index in indices})

    def _sample(self, opened: "_OpenShard", number: int, index: int) -> Sample:
        """A conversation, verified, which the kernel reads meanwhile."""
        shard, verified = opened
        place = index - self._starts[number]
        shard.announce(place)
        if not verified[place]:
            shard.check(place, self._digests_of(index))
            verified[place] = True
        sample = shard.sample(place)
        if self._at.keeps:
            return sample
        return sample_of({name: tensor.clone() for name, tensor in tensors(sample).items()})

    def _texts(self, number: int) -> list[Text]:
        """What the conversations of a shard say."""

        def said(opened: _OpenShard) -> list[Text]:
            texts = []
            for place, index in enumerate(range(self._starts[number], self._starts[number + 1])):
                opened.shard.check_text(place, self._digests_of(index))
                text = opened.shard.text(place)
                texts.append(text if self._at.keeps else Text(text.input_ids.clone(), text.loss_mask.clone()))
            return texts

        return self._read(number, said)

    def _digests_of(self, index: int) -> Digests:
        text, computed = self._digests[index]
        return Digests(bytes(text.tolist()), bytes(computed.tolist()))

    def _number(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def _read(self, number: int, look: "Callable[[_OpenShard], T]") -> T:
        """What is seen in a shard; in one that is damaged, after it was fetched again, if it was but a copy."""
        try:
            with self._reading(number) as opened:
                return look(opened)
        except StageError as error:
            if error.reason is not Reason.CORRUPT_ARTIFACT or not self._at.forget(self._shards[number]):
                raise
        with self._reading(number) as opened:
            return look(opened)

    @contextmanager
    def _reading(self, number: int) -> "Iterator[_OpenShard]":
        """A shard that is mapped, and stays where it is while the block runs."""
        with self._lock:
            if (known := self._open.get(number)) is not None:
                self._open.move_to_end(number)
        if known is not None:
            yield known
            return
        with self._at.lease(self._folder, self._shards[number]) as path:
            opened = self._opened(number, path)
            if self._at.keeps:
                with self._lock:
                    self._open[number] = opened
                    if len(self._open) > OPEN_SHARDS:
                        self._open.popitem(last=False)
            yield opened

    def _opened(self, number: int, path: Path) -> "_OpenShard":
        file = self._shards[number]
        shard = Shard(path, self._header, self._folder / file.path)
        first, end = self._starts[number], self._starts[number + 1]
        if shard.lengths != self.lengths[first:end].tolist():
            raise corrupt(self._folder, f"{file.path} and {LENGTHS} differ on how long its conversations are")
        status = path.stat()
        identity = (status.st_ino, status.st_mtime_ns)
        with self._lock:
            known, verified = self._verified.get(number, (None, bytearray()))
            if known != identity:
                verified = bytearray(end - first)
                self._verified[number] = identity, verified
        return _OpenShard(shard, verified)


class _OpenShard(NamedTuple):
    """A shard, and which of its conversations were verified."""

    shard: Shard
    verified: bytearray


def _shards(part: str, manifest: Manifest, split: Split) -> list[tuple[File, int]]:
    """The shards of a part (of the whole where it is ""), as the whole knows them, and their conversations.

    Raises:
        KeyError, TypeError, ValidationError: the manifest does not say so.
    """
    files = {file.path: file for file in manifest.files}
    listed = _SHARDS.validate_python(manifest.numbers["shards"][str(split)])
    found = [(files[shard.file], shard.conversations) for shard in listed]
    return [(file.within(part), conversations) for file, conversations in found] if part else found


def _table(name: Path, content: bytes) -> dict[str, torch.Tensor]:
    try:
        return load(content)
    except SafetensorError as error:
        raise corrupt(name, f"it is not a safetensors file: {error}") from None
