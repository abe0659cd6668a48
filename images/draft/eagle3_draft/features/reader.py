"""Reading a feature store, memory-mapped: a sample's tensors are views into the shard's file."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import overload

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from eagle3_api.artifacts import Manifest
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft import artifacts
from eagle3_draft.features.format import FP8, LENGTHS, Header, Sample, ShardEntry, Split, restored
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
    def open(cls, folder: Path) -> "Features":
        """Open the store in a folder. Each file's digest is checked when it is first read.

        Raises:
            StageError: the artifact is unfinished or broken (CorruptArtifact), or its last states are not what lm_head
                reads (FeatureMismatch).
        """
        manifest = artifacts.read(folder)
        try:
            header = Header.model_validate(manifest.numbers)
        except ValidationError as error:
            raise _corrupt(folder, f"the numbers of its manifest do not say what its states are ({error})") from None
        if header.last_norm != "final":
            raise StageError(
                ExitCode.REFUSED,
                Reason.FEATURE_MISMATCH,
                f"the last hidden states in {folder} were taken {header.last_norm!r} of the final norm; the target's head "
                "reads them after it. Extract them again",
            )
        lengths = _tensors(artifacts.verified(folder, LENGTHS))
        samples = []
        for split in Split:
            try:
                shards = _SHARDS.validate_python(manifest.numbers["shards"][str(split)])
                agree = sum(shard.conversations for shard in shards) == len(lengths[str(split)])
            except (KeyError, TypeError, ValidationError):
                agree = False
            if not agree:
                raise _corrupt(folder, f"{LENGTHS} and the manifest differ on the {split} conversations")
            samples.append(Samples(folder, shards, header, lengths[str(split)]))
        return cls(manifest, header, *samples)


class Samples(Sequence[Sample]):
    """The conversations of one split, in the order in which they were extracted.

    Attributes:
        lengths: int32 (conversations,), tokens of each; known without reading a shard.
    """

    def __init__(self, folder: Path, shards: Sequence[ShardEntry], header: Header, lengths: torch.Tensor) -> None:
        self.lengths = lengths
        self._folder = folder
        self._shards = shards
        self._header = header
        self._starts = [0, *accumulate(shard.conversations for shard in shards)]
        self._open: OrderedDict[int, _Shard] = OrderedDict()

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = bisect_right(self._starts, index) - 1
        return self._shard(number).sample(index - self._starts[number])

    def place(self, index: int) -> str:
        """Where a conversation lies, for people: its number in a shard, and the shard."""
        number = bisect_right(self._starts, index) - 1
        return f"number {index - self._starts[number]} of {self._shards[number].file}"

    def _shard(self, number: int) -> "_Shard":
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        name = self._shards[number].file
        shard = _Shard.read(artifacts.verified(self._folder, name), self._header)
        first, end = self._starts[number], self._starts[number + 1]
        if shard.lengths != self.lengths[first:end].tolist():
            raise _corrupt(self._folder, f"{name} and {LENGTHS} differ on how long its conversations are")
        self._open[number] = shard
        if len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)
        return shard


def read_shard(path: Path, header: Header) -> list[Sample]:
    """The conversations of one shard; their tensors are views into the file, or made from them where it is in FP8.

    Args:
        path: of the shard, which the caller has verified.
        header: what the states must be.

    Raises:
        StageError: the file is none of this header (CorruptArtifact).
    """
    shard = _Shard.read(path, header)
    return [shard.sample(index) for index in range(len(shard.lengths))]


class _Shard:
    """A shard's tensors, mapped, and where in them its conversations lie."""

    def __init__(self, tensors: dict[str, torch.Tensor], bounds: list[int], dtype: torch.dtype) -> None:
        self.lengths = [end - start for start, end in pairwise(bounds)]
        self._tensors = tensors
        self._bounds = bounds
        self._dtype = dtype

    @classmethod
    def read(cls, path: Path, header: Header) -> "_Shard":
        tensors = _tensors(path)
        offsets = tensors.get("offsets", torch.empty(0, dtype=torch.int64))
        tokens, width, layers = len(tensors.get("input_ids", ())), header.hidden_size, len(header.layers)
        stored = FP8 if header.dtype == "fp8" else header.torch_dtype
        expected = {
            "input_ids": (torch.int32, (tokens,)),
            "loss_mask": (torch.uint8, (tokens,)),
            "hidden": (stored, (tokens, layers * width)),
            "last": (stored, (tokens, width)),
            "offsets": (torch.int64, (len(offsets),)),
        }
        if header.dtype == "fp8":
            expected |= {
                "hidden_scale": (torch.float32, (tokens, layers)),
                "last_scale": (torch.float32, (tokens, 1)),
            }
        found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        if found != expected:
            raise _corrupt(path, f"it holds {found}, not {expected}")
        bounds = offsets.tolist()
        if not bounds or bounds[0] != 0 or bounds[-1] != tokens or bounds != sorted(bounds):
            raise _corrupt(path, "its offsets do not divide its tokens into conversations")
        return cls(tensors, bounds, header.torch_dtype)

    def sample(self, index: int) -> Sample:
        """One conversation."""
        rows = slice(self._bounds[index], self._bounds[index + 1])
        ids, mask = self._tensors["input_ids"][rows], self._tensors["loss_mask"][rows]
        return Sample(ids, mask, self._states("hidden", rows), self._states("last", rows))

    def _states(self, name: str, rows: slice) -> torch.Tensor:
        stored, scale = self._tensors[name][rows], self._tensors.get(f"{name}_scale")
        return stored if scale is None else restored(stored, scale[rows], self._dtype)


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a handle is no mapping
    except SafetensorError as error:
        raise _corrupt(path, f"it is no safetensors file: {error}") from None


def _corrupt(path: Path, what: str) -> StageError:
    return StageError(
        ExitCode.BAD_INPUT,
        Reason.CORRUPT_ARTIFACT,
        f"the features in {path} are corrupt: {what}. Delete their folder and set eagle3.dev/retry to have them made again",
    )
