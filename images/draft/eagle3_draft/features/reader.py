"""Reading a feature store, memory-mapped: a sample's tensors are views into the shard's file."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import overload

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from eagle3_api.artifacts import File, Manifest
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.features.format import LENGTHS, Header, Sample, ShardEntry, Split
from eagle3_draft.features.shard import Shard, corrupt
from eagle3_draft.places import Place, Volume
from eagle3_draft.stage import StageError

_SHARDS = TypeAdapter(list[ShardEntry])

#: Shards that stay mapped at a time: the kernel bounds the mappings of a process.
OPEN_SHARDS = 256


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
        """Open the store in a folder. Each file's digest is checked when it is first read.

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
        lengths = _lengths(at.file(folder, files[LENGTHS]))
        samples = []
        for split in Split:
            try:
                shards = _SHARDS.validate_python(manifest.numbers["shards"][str(split)])
                agree = all(shard.file in files for shard in shards) and sum(
                    shard.conversations for shard in shards
                ) == len(lengths[str(split)])
            except (KeyError, TypeError, ValidationError):
                agree = False
            if not agree:
                raise corrupt(folder, f"{LENGTHS} and the manifest differ on the {split} conversations")
            named = [(files[shard.file], shard.conversations) for shard in shards]
            samples.append(Samples(folder, at, named, header, lengths[str(split)]))
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
    ) -> None:
        self.lengths = lengths
        self._folder = folder
        self._at = at
        self._shards = [file for file, _ in shards]
        self._header = header
        self._starts = [0, *accumulate(conversations for _, conversations in shards)]
        self._open: OrderedDict[int, Shard] = OrderedDict()

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
        """Several conversations. The kernel is told of all of them first, and reads what comes next meanwhile."""
        for number in dict.fromkeys(self._number(index) for index in indices):
            if number not in self._open:  # it will be verified: all of it is read
                self._at.announce(self._folder, self._shards[number])
        found = [self._find(index) for index in indices]
        for shard, place in found:
            shard.announce(place)
        return [shard.sample(place) for shard, place in found]

    def _number(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def _find(self, index: int) -> tuple[Shard, int]:
        """The shard of a conversation, and its number in it."""
        number = self._number(index)
        return self._shard(number), index - self._starts[number]

    def _shard(self, number: int) -> Shard:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        file = self._shards[number]
        shard = Shard(self._at.file(self._folder, file), self._header)
        first, end = self._starts[number], self._starts[number + 1]
        if shard.lengths != self.lengths[first:end].tolist():
            raise corrupt(self._folder, f"{file.path} and {LENGTHS} differ on how long its conversations are")
        self._open[number] = shard
        if len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)
        return shard


def _lengths(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise corrupt(path, f"it is no safetensors file: {error}") from None
