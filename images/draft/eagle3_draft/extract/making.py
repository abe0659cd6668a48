"""One part: the states of its conversations are computed, laid into shards and published."""

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from platform import node
from typing import Any

import torch

from eagle3_api import times
from eagle3_api.conditions import Reason
from eagle3_api.estimate import bytes_per_token, readable_bytes
from eagle3_api.jobs import ExitCode
from eagle3_api.manifest import Manifest
from eagle3_draft.data.rendering import Rendered
from eagle3_draft.errors import StageError
from eagle3_draft.extract import non_finite
from eagle3_draft.extract.engine import Engine, States
from eagle3_draft.extract.inputs import Inputs
from eagle3_draft.extract.parts import Part, PartNumbers
from eagle3_draft.extract.space import require_part
from eagle3_draft.extract.texts import Usable
from eagle3_draft.features import FeatureWriter, Header, Sample, ShardRecord, Split, plan_shards
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.storage.places import Place

#: Shards that are written at a time, while the states of the next one are taken.
WRITERS = 8

#: Bytes of their states, which are in memory; a larger one is written alone.
WRITING_BYTES = 512 * 1024 * 1024

#: Shards that a disk is asked for at a time, and bytes that may be on the way to it. They hold no states, only the system's cache of
#: files, which counts to the pod's memory until they are written.
SYNCERS = 4
SYNCING_BYTES = 1024 * 1024 * 1024

#: After which it is told how long nothing of an upload has got there.
QUIET_SECONDS = 30.0

#: What the layers in a manifest count, in words.
LAYER_CONVENTION = "output of the decoder layer, from 0; -1 is the embedding's"


@dataclass(frozen=True)
class _Shard:
    """The conversations that one file is to hold."""

    split: Split
    number: int
    texts: Sequence[Rendered]

    @property
    def ids(self) -> list[Sequence[int]]:
        return [text.input_ids for text in self.texts]

    @property
    def tokens(self) -> int:
        return sum(len(text.input_ids) for text in self.texts)


@dataclass(frozen=True)
class _Written:
    """A shard that is whole, and on its way to the disk."""

    record: ShardRecord
    synced: Future[None]


@dataclass(frozen=True)
class _Begun:
    """A part whose states are being computed."""

    part: Part
    usable: Usable
    engine: Engine
    writer: FeatureWriter
    resumed: Sequence[ShardRecord]
    missing: Sequence[_Shard]
    states: Iterator[States]
    worth: Iterator[int]


class Maker:
    """Makes parts, one after the other. While the shards of one are written, the states of the next one are computed, and the last
    shards of the one before reach the disk and it is published: neither the engine nor the disk waits for the other at its end.

    Args:
        inputs: of the extraction.
        folder: of the artifact.
        at: where it lies.
        shard_bytes: of a shard, about.
        attend: called between two conversations; what it raises interrupts.
        progress: of the stage; told of each conversation.
    """

    def __init__(
        self,
        inputs: Inputs,
        folder: Path,
        at: Place,
        shard_bytes: int,
        *,
        attend: Callable[[], None],
        progress: ProgressReporter,
    ) -> None:
        self._inputs = inputs
        self._folder = folder
        self._at = at
        self._shard_bytes = shard_bytes
        self._attend = attend
        self._progress = progress
        self._skipped = 0
        self._started = times.now()
        self._begun: _Begun | None = None
        self._since = 0.0
        self._writers = ThreadPoolExecutor(WRITERS, "shard")
        self._writing: deque[tuple[int, Future[_Written]]] = deque()
        self._syncers = ThreadPoolExecutor(SYNCERS, "sync")
        self._syncing: deque[tuple[int, Future[None]]] = deque()
        self._publisher = ThreadPoolExecutor(1, "publish")
        self._publishing: Future[None] | None = None

    def begin(self, part: Part, usable: Usable, engine: Engine) -> None:
        """Have the engine compute a part, but for the shards that an earlier run finished; then store the part before.

        Raises:
            StageError: a token that the target does not have (TargetUnreadable); a part that the pod's disk has no room for
                (StorageTooSmall); or as ``finish``.
        """
        config = self._inputs.config
        _require_vocabulary(usable.all, engine, config.target)
        header = Header(
            layers=config.layers,
            hidden_size=engine.hidden_size,
            dtype=config.dtype,
            teacher=config.teacher,
            vocabulary_size=engine.vocabulary_size,
            tokenizer_digest=self._inputs.tokenizer_digest,
            chat_template_digest=self._inputs.template_digest,
        )
        if (cache := config.object_store) is not None:
            needed = sum(len(text.input_ids) for text in usable.all) * self._token_bytes(engine.hidden_size)
            require_part(part.number, part.count, needed, cache.cache_bytes)
        writer = FeatureWriter(self._folder / part.name, header)
        plan = self._plan(usable.texts, engine.hidden_size)
        worth = _shares(len(part.conversations), sum(len(shard.texts) for shard in plan))
        resumed, missing = [], []
        for shard in plan:
            if (record := writer.resume(shard.split, shard.number, shard.ids)) is None:
                missing.append(shard)
            else:
                self._progress.advance(sum(next(worth) for _ in shard.texts))
                resumed.append(record)
        if self._begun is None:
            self._since = time.monotonic()
        states = engine.states([ids for shard in missing for ids in shard.ids])
        self._store()
        self._begun = _Begun(part, usable, engine, writer, resumed, missing, states, worth)

    def finish(self) -> None:
        """Store and publish the part that was begun last, if there is one.

        Raises:
            StageError: too many states that are not finite (NonFinite).
        """
        self._store()
        self._settle()

    def close(self) -> None:
        """Let what is being written end."""
        self._writers.shutdown()
        self._syncers.shutdown()
        self._publisher.shutdown()

    def _store(self) -> None:
        if self._begun is None:
            return
        begun, self._begun = self._begun, None
        written = self._write(begun)
        self._settle()
        if self._at.keeps:
            self._publishing = self._publisher.submit(self._publish, begun, written)
        else:  # there may be room for this part alone
            self._publish(begun, written)

    def _settle(self) -> None:
        """Wait for the part that is being published."""
        if self._publishing is not None:
            self._publishing.result()
            self._publishing = None

    def _write(self, begun: _Begun) -> list[Future[_Written]]:
        token_bytes = self._token_bytes(begun.engine.hidden_size)
        every = []
        for shard in begun.missing:
            samples = self._samples(begun.states, shard.texts, begun.worth)
            size = shard.tokens * token_bytes
            while self._writing and (len(self._writing) == WRITERS or _bytes(self._writing) + size > WRITING_BYTES):
                held, written = self._writing.popleft()
                self._syncing.append((held, written.result().synced))
            while self._syncing and _bytes(self._syncing) + size > SYNCING_BYTES:
                self._syncing.popleft()[1].result()
            every.append(self._writers.submit(self._write_shard, begun.writer, shard, samples))
            self._writing.append((size, every[-1]))
        self._progress.advance(sum(begun.worth))
        return every

    def _write_shard(self, writer: FeatureWriter, shard: _Shard, samples: Sequence[Sample]) -> _Written:
        """What a writer does. It waits for no disk: that takes its shards while the next ones are written."""
        record = writer.write(shard.split, shard.number, shard.ids, samples)
        return _Written(record, self._syncers.submit(writer.sync, shard.split, shard.number))

    def _publish(self, begun: _Begun, every: Sequence[Future[_Written]]) -> None:
        written = [one.result() for one in every]
        for record in (*begun.resumed, *(one.record for one in written)):
            self._skipped += record.skipped
        non_finite.require_few(self._skipped, self._inputs)
        for one in written:
            one.synced.result()
        config, now = self._inputs.config, time.monotonic()
        numbers = _numbers(begun, seconds=now - self._since)
        self._since = now
        manifest = begun.writer.publish(
            key=config.key,
            made_from=self._inputs.made_from(),
            numbers=numbers.model_dump(),
            provenance=begun.engine.provenance
            | ({"targetRevision": config.target_revision} if config.target_revision is not None else {})
            | {
                "layerConvention": LAYER_CONVENTION,
                "sglang": config.sglang_version,
                "node": node(),
                "started": self._started,
                "finished": times.now(),
            },
        )
        self._at.published(begun.writer.folder, manifest, self._uploading(begun.part, manifest))

    def _uploading(self, part: Part, manifest: Manifest) -> Callable[[int], None]:
        size = readable_bytes(sum(file.size for file in manifest.files))
        moved, there = time.monotonic(), 0

        def attend(done: int) -> None:
            nonlocal moved, there
            self._attend()
            if done > there:
                moved, there = time.monotonic(), done
            quiet = time.monotonic() - moved
            told = f"part {part.number + 1} of {part.count}: {readable_bytes(done)} of {size} uploaded"
            self._progress.advance(0, told if quiet < QUIET_SECONDS else f"{told}, nothing for {quiet:.0f} s")

        return attend

    def _plan(self, texts: Mapping[Split, Sequence[Rendered]], hidden_size: int) -> list[_Shard]:
        token_bytes = self._token_bytes(hidden_size)
        return [
            _Shard(split, number, [of_split[index] for index in shard])
            for split, of_split in texts.items()
            for number, shard in enumerate(
                plan_shards([len(text.input_ids) for text in of_split], token_bytes, self._shard_bytes)
            )
        ]

    def _token_bytes(self, hidden_size: int) -> int:
        config = self._inputs.config
        return bytes_per_token(hidden_size, len(config.layers), config.dtype, config.teacher)

    def _samples(self, every: Iterator[States], texts: Sequence[Rendered], worth: Iterator[int]) -> list[Sample]:
        """Take the states of the conversations of one shard."""
        samples = []
        lengths = [len(text.input_ids) for text in texts]
        every_ids = torch.split(_joined((text.input_ids for text in texts), torch.int32), lengths)
        every_mask = torch.split(_joined((text.loss_mask for text in texts), torch.uint8), lengths)
        for ids, mask in zip(every_ids, every_mask, strict=True):
            self._attend()
            states = next(every)
            samples.append(Sample(ids, mask, states.hidden, states.teaching, states.hidden_scale))
            self._progress.advance(next(worth))
        return samples


def _joined(parts: "Iterable[array[int]]", dtype: torch.dtype) -> torch.Tensor:
    """Numbers in one piece of memory, so that they are written and looked at as one. At least one."""
    return torch.frombuffer(bytearray().join(parts), dtype=dtype)


def _bytes(shards: Iterable[tuple[int, Future[Any]]]) -> int:
    return sum(size for size, _ in shards)


def _require_vocabulary(texts: Sequence[Rendered], engine: Engine, target: str) -> None:
    largest = int(_joined((text.input_ids for text in texts), torch.int32).max()) if texts else 0
    if largest >= engine.vocabulary_size:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"target.model: the tokenizer in {target} produced the token {largest}, but the model has "
            f"{engine.vocabulary_size} tokens: the two do not belong together",
        )


def _numbers(begun: _Begun, seconds: float) -> PartNumbers:
    writer, usable = begun.writer, begun.usable
    every = [record for split in Split for record in writer.records(split)]
    skipped = sum(record.skipped for record in every)
    return PartNumbers(
        conversations=sum(len(record.lengths) for record in every),
        held_out=sum(len(record.lengths) for record in writer.records(Split.HELD_OUT)),
        tokens=sum(sum(record.lengths) for record in every),
        supervised_tokens=sum(record.supervised_tokens for record in every),
        dropped=dict(usable.dropped) | ({non_finite.WHY: skipped} if skipped else {}),
        cut=usable.cut,
        lost_tokens=usable.lost,
        computed_tokens=sum(shard.tokens for shard in begun.missing),
        seconds=seconds,
        answers=usable.answers.all if usable.answers else None,
        cut_answers=usable.answers.cut if usable.answers else None,
    )


def _shares(whole: int, count: int) -> Iterator[int]:
    """A number cut into so many that differ by one at most; into one where the count is 0."""
    for number in range(max(1, count)):
        yield whole * (number + 1) // max(1, count) - whole * number // max(1, count)
