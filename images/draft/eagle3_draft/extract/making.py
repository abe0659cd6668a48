"""One part: the states of its conversations are computed, laid into shards and published."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from platform import node

import torch

from eagle3_api.conditions import Reason
from eagle3_api.estimate import bytes_per_token
from eagle3_api.jobs import ExitCode
from eagle3_draft.data.rendering import Rendered
from eagle3_draft.data.tokenizer_files import tokenizer_digest
from eagle3_draft.extract.engine import Engine, States
from eagle3_draft.extract.inputs import Inputs
from eagle3_draft.extract.parts import Part, PartNumbers
from eagle3_draft.extract.texts import Usable
from eagle3_draft.features import FeatureWriter, Header, Sample, ShardRecord, Split, plan_shards
from eagle3_draft.places import Place
from eagle3_draft.progress import Progress
from eagle3_draft.stage import StageError

#: Share of the conversations that may be left out because their states are not finite. More is no bad sample.
NON_FINITE_BOUND = 0.01

NON_FINITE = "hidden states not finite"


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


class Maker:
    """Makes parts, one after the other.

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
        progress: Progress,
    ) -> None:
        self._inputs = inputs
        self._folder = folder
        self._at = at
        self._shard_bytes = shard_bytes
        self._attend = attend
        self._progress = progress
        self._skipped = 0
        self._started = _now()

    def make(self, part: Part, usable: Usable, engine: Engine) -> None:
        """Compute and publish a part. Shards that an earlier run finished are not computed again.

        Raises:
            StageError: a token that the target does not have (TargetUnreadable); too many states that are not finite
                (NonFinite).
        """
        config = self._inputs.config
        _require_vocabulary(usable.all, engine, config.target)
        header = Header(
            layers=config.layers,
            hidden_size=engine.hidden_size,
            dtype=config.dtype,
            teacher=config.teacher,
            vocabulary_size=engine.vocabulary_size,
            tokenizer_digest=tokenizer_digest(Path(config.target)),
            chat_template_digest=self._inputs.template_digest,
        )
        writer = FeatureWriter(self._folder / part.name, header)
        began = time.monotonic()
        records, computed = self._write(part, writer, usable.texts, engine)
        numbers = _numbers(records, usable, computed, time.monotonic() - began)
        manifest = writer.publish(
            key=config.key,
            made_from=self._inputs.made_from(),
            numbers=numbers.model_dump(),
            provenance=engine.provenance
            | {"sglang": config.sglang_version, "node": node(), "started": self._started, "finished": _now()},
        )
        self._at.published(writer.folder, manifest)

    def _write(
        self, part: Part, writer: FeatureWriter, texts: Mapping[Split, Sequence[Rendered]], engine: Engine
    ) -> tuple[dict[Split, list[ShardRecord]], int]:
        """Write all shards of a part; returns their records and the tokens that were computed."""
        plan = self._plan(texts, engine.hidden_size)
        finished = [writer.resume(shard.split, shard.number, shard.ids) for shard in plan]
        # All that is to do, in one go: an engine may look beyond a shard
        missing = [shard for shard, record in zip(plan, finished, strict=True) if record is None]
        states = engine.states([ids for shard in missing for ids in shard.ids])
        worth = _shares(len(part.conversations), sum(len(shard.texts) for shard in plan))
        records: dict[Split, list[ShardRecord]] = {split: [] for split in Split}
        computed = 0
        for shard, known in zip(plan, finished, strict=True):
            record = known
            if record is None:
                record = writer.write(shard.split, shard.number, shard.ids, self._samples(states, shard.texts, worth))
                computed += shard.tokens
            else:
                self._progress.advance(sum(next(worth) for _ in shard.texts))
            records[shard.split].append(record)
            self._bear(record.skipped)
        self._progress.advance(sum(worth))
        return records, computed

    def _plan(self, texts: Mapping[Split, Sequence[Rendered]], hidden_size: int) -> list[_Shard]:
        config = self._inputs.config
        token_bytes = bytes_per_token(hidden_size, len(config.layers), config.dtype, config.teacher)
        return [
            _Shard(split, number, [of_split[index] for index in shard])
            for split, of_split in texts.items()
            for number, shard in enumerate(
                plan_shards([len(text.input_ids) for text in of_split], token_bytes, self._shard_bytes)
            )
        ]

    def _samples(self, every: Iterator[States], texts: Sequence[Rendered], worth: Iterator[int]) -> list[Sample]:
        """Take the states of the conversations of one shard. Those with states that are not finite are left out."""
        samples = []
        for text in texts:
            self._attend()
            states = next(every)
            ids = torch.tensor(text.input_ids.tolist(), dtype=torch.int32)
            mask = torch.tensor(text.loss_mask.tolist(), dtype=torch.uint8)
            sample = Sample(ids, mask, states.hidden, states.teaching)
            if sample.is_finite():
                samples.append(sample)
            self._progress.advance(next(worth))
        return samples

    def _bear(self, skipped: int) -> None:
        self._skipped += skipped
        every = len(self._inputs.conversations)
        if self._skipped > NON_FINITE_BOUND * every:
            raise StageError(
                ExitCode.NON_FINITE,
                Reason.NON_FINITE,
                f"the target's hidden states are not finite in {self._skipped} of {every} conversations, "
                f"more than {NON_FINITE_BOUND:.0%}: its weights are broken, or its dtype overflows (--dtype)",
            )


def _require_vocabulary(texts: Sequence[Rendered], engine: Engine, target: str) -> None:
    largest = max((max(text.input_ids) for text in texts), default=0)
    if largest >= engine.vocabulary_size:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"target.model: the tokenizer in {target} made the token {largest}, the model has "
            f"{engine.vocabulary_size}: they are not of one model",
        )


def _numbers(
    records: Mapping[Split, Sequence[ShardRecord]], usable: Usable, computed: int, seconds: float
) -> PartNumbers:
    every = [record for of_split in records.values() for record in of_split]
    skipped = sum(record.skipped for record in every)
    return PartNumbers(
        conversations=sum(len(record.lengths) for record in every),
        held_out=sum(len(record.lengths) for record in records[Split.HELD_OUT]),
        tokens=sum(sum(record.lengths) for record in every),
        supervised_tokens=sum(record.supervised_tokens for record in every),
        dropped=dict(usable.dropped) | ({NON_FINITE: skipped} if skipped else {}),
        computed_tokens=computed,
        seconds=seconds,
        answers=usable.answers.all if usable.answers else None,
        cut_answers=usable.answers.cut if usable.answers else None,
    )


def _shares(whole: int, count: int) -> Iterator[int]:
    """A number cut into so many that differ by one at most; into one where the count is 0."""
    for number in range(max(1, count)):
        yield whole * (number + 1) // max(1, count) - whole * number // max(1, count)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
