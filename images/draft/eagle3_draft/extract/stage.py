"""The stage Extract: cut the conversations into parts; render, run the target and publish each; and then the whole.

A part is finished when it has its manifest, the stage when all parts are. Several pods may share the parts; whichever
finds them all finished publishes the whole, which moves no byte.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from platform import node

import torch

from eagle3_api.artifacts import PROMPTS, REPORT, Manifest
from eagle3_api.base import Model
from eagle3_api.conditions import Reason
from eagle3_api.estimate import bytes_per_token, readable_bytes
from eagle3_api.jobs import ExitCode, ExtractConfig, ExtractResult, StageName
from eagle3_draft import artifacts
from eagle3_draft.data import prompts
from eagle3_draft.data.conversations import Conversation, Conversations
from eagle3_draft.data.inputs import extraction_inputs
from eagle3_draft.data.rendering import Rendered, Renderer, UnusableError
from eagle3_draft.data.tokenizer_files import chat_template, template_digest, tokenizer_digest
from eagle3_draft.extract import parts
from eagle3_draft.extract.engine import Engine, Sampling, States
from eagle3_draft.extract.interruption import Interruption, interruptible
from eagle3_draft.extract.parts import Part
from eagle3_draft.extract.texts import AsTheyStand, Regenerated, Source, Texts, Usable
from eagle3_draft.features import (
    SHARD_BYTES,
    FeatureWriter,
    Header,
    Sample,
    ShardRecord,
    Split,
    plan_shards,
    publish_store,
)
from eagle3_draft.inspect.target import context_length, hidden_size, target_digest
from eagle3_draft.places import Place, place_of
from eagle3_draft.progress import Progress
from eagle3_draft.stage import StageError

#: Share of the conversations that may be left out because their states are not finite. More is no bad sample.
NON_FINITE_BOUND = 0.01

NON_FINITE = "hidden states not finite"


def load_engine(config: ExtractConfig) -> Engine:
    """What runs the target: SGLang where there is one, so that the states are those that are served."""
    found = find_spec("sglang")
    if found is not None and found.origin is not None:  # and no mere folder of that name
        from eagle3_draft.extract.sglang_engine import SGLangEngine

        return SGLangEngine(config)
    from eagle3_draft.extract.transformers_engine import TransformersEngine

    return TransformersEngine.load(
        Path(config.target),
        config.layers,
        teacher=config.teacher,
        arguments=config.arguments,
        trust_remote_code=config.trust_remote_code,
    )


def _free_bytes(folder: Path) -> int:
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize


def run(
    config: ExtractConfig,
    *,
    load: Callable[[ExtractConfig], Engine] = load_engine,
    shard_bytes: int = SHARD_BYTES,
    part_conversations: int = parts.PART_CONVERSATIONS,
    free_bytes: Callable[[Path], int] = _free_bytes,
) -> ExtractResult:
    """Extract the features of this pod's parts of the conversations, and publish all if none is missing.

    Args:
        config: of the stage.
        load: makes the engine.
        shard_bytes: of a shard, about.
        part_conversations: of a part.
        free_bytes: of the file system of a folder.

    Returns:
        What there is of the whole; ``whole`` says whether that is all, or other pods are still at work.

    Raises:
        StageError: inputs that cannot be used or changed since Inspect; too many states that are not finite; or SIGTERM
            came, after which the next run goes on.
    """
    folder = Path(config.folder)
    at = place_of(config.object_store, folder)
    if (manifest := at.finished(folder, config.key)) is not None:
        return ExtractResult.model_validate_json(at.file(folder, manifest.file(REPORT)).read_bytes())
    if (
        folder.parent.name == StageName.EXTRACT
    ):  # if not, it is not laid out as artifacts are: others' things may lie there
        # This object's extractions under other keys: its spec has changed since. Inspect counts their bytes as free. What
        # is finished stays: it may be retained, and Clean removes it otherwise
        at.abandoned(folder)
    with interruptible() as interruption:
        extraction = _Extraction(config, folder, at, interruption, shard_bytes, part_conversations, free_bytes)
        return extraction.run(load)


class _PartNumbers(Model):
    """What stands in a part's manifest for the sum over all parts."""

    conversations: int
    held_out: int
    tokens: int
    supervised_tokens: int
    dropped: dict[str, int]
    computed_tokens: int
    seconds: float
    answers: int | None = None
    cut_answers: int | None = None


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


class _Loaded:
    """The engine, loaded when it is first asked for."""

    def __init__(self, load: Callable[[], Engine]) -> None:
        self._load = load
        self._engine: Engine | None = None

    def __call__(self) -> Engine:
        if self._engine is None:
            self._engine = self._load()
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


class _Extraction:
    def __init__(
        self,
        config: ExtractConfig,
        folder: Path,
        at: Place,
        interruption: Interruption,
        shard_bytes: int,
        part_size: int,
        free_bytes: Callable[[Path], int],
    ) -> None:
        self.config = config
        self.folder = folder
        self.at = at
        self.interruption = interruption
        self.shard_bytes = shard_bytes
        self.free_bytes = free_bytes
        self.started = datetime.now(UTC)
        self.conversations = self._unchanged_inputs()
        self.target = Path(config.target)
        override = Path(config.data.chat_template) if config.data.chat_template else None
        template = chat_template(self.target, override)
        self.template_digest = template_digest(template)
        self.longest = self._longest()
        self.renderer = Renderer.load(self.target, template, self.longest, trust_remote_code=config.trust_remote_code)
        self.held_out = self.conversations.held_out(config.data.holdout)
        self.texts = self._texts()
        self.parts = parts.cut(len(self.conversations), part_size)
        self.skipped = 0

    def run(self, load: Callable[[ExtractConfig], Engine]) -> ExtractResult:
        own = parts.own(self.parts, parts.index(), self.config.shards)
        missing = [part for part in own if self._manifest(part) is None]
        steps = self.texts.steps
        progress = Progress(steps * sum(len(part.conversations) for part in own), self.texts.unit)
        done = steps * sum(len(part.conversations) for part in own if part not in missing)
        found: list[prompts.Prompt] | None = None
        with closing(_Loaded(lambda: load(self.config))) as engine:
            for part in missing:
                usable = self.texts.of(part, engine, progress, done)
                if found is None:  # what can be told of the whole by its first part
                    found = self._begin(part, usable)
                last = done + (steps - 1) * len(part.conversations)
                self._make(part, usable, engine(), progress, last)
                done += steps * len(part.conversations)
        return self._publish(self._prompts() if found is None else found)

    # ------------------------------------------------------------------------------------------------------- inputs

    def _texts(self) -> Texts:
        """Where the answers that are learned from come from."""
        source = Source(self.conversations, self.held_out, self.renderer, self.interruption.check)
        asked = self.config.data.regenerate
        if asked is None:
            return AsTheyStand(source)
        ends = {
            *(self.config.end_tokens or []),
            *([] if self.renderer.end_token is None else [self.renderer.end_token]),
        }
        sampling = Sampling(asked.temperature, asked.top_p, asked.seed, tuple(sorted(ends)))
        return Regenerated(source, self.folder, sampling, asked.max_tokens)

    def _begin(self, part: Part, usable: Usable) -> list[prompts.Prompt]:
        """What must hold before hours are spent; returns the probe's prompts."""
        if part.count == 1:
            self._require_train(len(usable.texts[Split.TRAIN]), len(usable.all), usable.dropped)
        found = self._prompts()
        self._check_space(usable.all, len(part.conversations))
        return found

    def _longest(self) -> int:
        """Tokens of a conversation at most: what a server of this target takes, which makes one more of it."""
        context = context_length(self.target)
        wanted = self.config.data.max_length
        return wanted if context is None else min(wanted, context - 1)

    def _unchanged_inputs(self) -> Conversations:
        """The conversations; they and the target must be those that Inspect saw, for the key stands for those."""
        config = self.config
        again = "set eagle3.dev/retry to inspect it anew"
        if target_digest(Path(config.target)) != config.target_digest:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.TARGET_UNREADABLE,
                f"target.model: {config.target} was changed since it was inspected; {again}",
            )
        conversations = Conversations.of(config.data)
        if conversations.sha256 != config.data_digest:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.DATA_UNREADABLE,
                f"{conversations.reading.field}: {conversations.path} was changed since it was inspected; {again}",
            )
        return conversations

    def _prompts(self) -> list[prompts.Prompt]:
        """The probe's prompts, of the first usable conversations that are held out.

        Of those that the target answers itself it is the first question: the next ones have its answers before them, which
        another pod may still have to get.
        """

        def usable() -> Iterator[Conversation]:
            for index, out in enumerate(self.held_out):
                if not out:
                    continue
                conversation = self.conversations[index]
                if not self.conversations.reading.answers:
                    yield conversation.opening
                    continue
                try:
                    self.renderer.conversation(conversation.messages)
                except UnusableError:
                    continue
                yield conversation

        found = prompts.collect(usable(), self.renderer, self.longest)
        if not found:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.NO_USABLE_DATA,
                f"{self.conversations.reading.field}: no held-out conversation has a user turn that fits data.maxLength, so "
                "no server could be probed. Give more conversations, or raise data.holdout or data.maxLength",
            )
        return found

    def _require_train(self, train: int, usable: int, dropped: Counter[str]) -> None:
        if train:
            return
        why = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common(3))
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.NO_USABLE_DATA,
            f"{self.conversations.reading.field}: only {usable} conversation(s) can be used, too few to learn from and to hold out. Left "
            f"out: {why or 'none'}",
        )

    def _bytes_per_token(self, hidden: int) -> int:
        return bytes_per_token(hidden, len(self.config.layers), self.config.dtype, self.config.teacher)

    def _check_space(self, texts: Sequence[Rendered], sampled: int) -> None:
        """Estimate anew what is still to be stored, from the conversations of one part as they were rendered.

        Inspect knew bytes only; these are tokens, and those that cannot be used are left out.
        """
        tokens = sum(len(text.input_ids) for text in texts)
        left = sampled  # where parts go elsewhere, there need be room for one
        if self.at.keeps:
            left = sum(len(part.conversations) for part in self.parts if self._manifest(part) is None)
        per_token = self._bytes_per_token(hidden_size(self.target))
        needed = tokens * per_token * left // max(1, sampled)
        self.folder.mkdir(parents=True, exist_ok=True)
        free = self.free_bytes(self.folder)
        if needed > free:
            raise StageError(
                ExitCode.DOES_NOT_FIT,
                Reason.STORAGE_TOO_SMALL,
                f"{left:,} conversations of {tokens / max(1, sampled):,.0f} tokens each, by the first {sampled:,}, need "
                f"{readable_bytes(needed)} more; the features volume has {readable_bytes(free)} free and lacks "
                f"{readable_bytes(needed - free)}. Free them, take a larger claim, or lower data.maxSamples",
            )

    def _check_vocabulary(self, texts: Sequence[Rendered], engine: Engine) -> None:
        largest = max((max(text.input_ids) for text in texts), default=0)
        if largest >= engine.vocabulary_size:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.TARGET_UNREADABLE,
                f"target.model: the tokenizer in {self.config.target} made the token {largest}, the model has "
                f"{engine.vocabulary_size}: they are not of one model",
            )

    # ------------------------------------------------------------------------------------------------------- a part

    def _manifest(self, part: Part) -> Manifest | None:
        return self.at.finished(self.folder / part.name, self.config.key)

    def _make(self, part: Part, usable: Usable, engine: Engine, progress: Progress, done: int) -> None:
        self._check_vocabulary(usable.all, engine)
        header = Header(
            layers=self.config.layers,
            hidden_size=engine.hidden_size,
            dtype=self.config.dtype,
            teacher=self.config.teacher,
            vocabulary_size=engine.vocabulary_size,
            tokenizer_digest=tokenizer_digest(self.target),
            chat_template_digest=self.template_digest,
        )
        writer = FeatureWriter(self.folder / part.name, header)
        began = time.monotonic()
        records, computed = self._extract(writer, engine, usable.texts, progress, done)
        every = [record for of_split in records.values() for record in of_split]
        skipped = sum(record.skipped for record in every)
        numbers = _PartNumbers(
            conversations=sum(len(record.lengths) for record in every),
            held_out=sum(len(record.lengths) for record in records[Split.HELD_OUT]),
            tokens=sum(sum(record.lengths) for record in every),
            supervised_tokens=sum(record.supervised_tokens for record in every),
            dropped=dict(usable.dropped) | ({NON_FINITE: skipped} if skipped else {}),
            computed_tokens=computed,
            seconds=time.monotonic() - began,
            answers=usable.answers.all if usable.answers else None,
            cut_answers=usable.answers.cut if usable.answers else None,
        )
        manifest = writer.publish(
            key=self.config.key,
            made_from=self._made_from(),
            numbers=numbers.model_dump(),
            provenance=self._provenance(engine),
        )
        self.at.published(writer.folder, manifest)

    def _extract(
        self,
        writer: FeatureWriter,
        engine: Engine,
        texts: dict[Split, list[Rendered]],
        progress: Progress,
        done: int,
    ) -> tuple[dict[Split, list[ShardRecord]], int]:
        """Write all shards of a part; returns their records and the tokens that were computed."""
        per_token = self._bytes_per_token(engine.hidden_size)
        plan = [
            _Shard(split, number, [part[index] for index in shard])
            for split, part in texts.items()
            for number, shard in enumerate(plan_shards([len(t.input_ids) for t in part], per_token, self.shard_bytes))
        ]
        finished = [writer.resume(shard.split, shard.number, shard.ids) for shard in plan]
        # All that is to do, in one go: an engine may look beyond a shard
        missing = [shard for shard, record in zip(plan, finished, strict=True) if record is None]
        states = engine.states([ids for shard in missing for ids in shard.ids])
        records: dict[Split, list[ShardRecord]] = {split: [] for split in Split}
        computed = 0
        for shard, known in zip(plan, finished, strict=True):
            record = known
            if record is None:
                samples = self._samples(states, shard.texts, progress, done)
                record = writer.write(shard.split, shard.number, shard.ids, samples)
                computed += shard.tokens
            records[shard.split].append(record)
            done += len(shard.texts)
            self._check_skipped(record.skipped)
            progress.update(done)
        return records, computed

    def _samples(
        self, every: Iterator[States], texts: Sequence[Rendered], progress: Progress, done: int
    ) -> list[Sample]:
        """Take the states of the conversations of one shard. Those with states that are not finite are left out."""
        samples = []
        for count, text in enumerate(texts, start=1):
            self.interruption.check()
            states = next(every)
            ids = torch.tensor(text.input_ids.tolist(), dtype=torch.int32)
            mask = torch.tensor(text.loss_mask.tolist(), dtype=torch.uint8)
            sample = Sample(ids, mask, states.hidden, states.teaching)
            if sample.is_finite():
                samples.append(sample)
            progress.update(done + count)
        return samples

    def _check_skipped(self, skipped: int) -> None:
        self.skipped += skipped
        if self.skipped > NON_FINITE_BOUND * len(self.conversations):
            raise StageError(
                ExitCode.NON_FINITE,
                Reason.NON_FINITE,
                f"the target's hidden states are not finite in {self.skipped} of {len(self.conversations)} conversations, "
                f"more than {NON_FINITE_BOUND:.0%}: its weights are broken, or its dtype overflows (--dtype)",
            )

    # ---------------------------------------------------------------------------------------------------- the whole

    def _publish(self, found: Sequence[prompts.Prompt]) -> ExtractResult:
        """Publish the whole if no part is missing; says what there is either way."""
        manifests = [manifest for part in self.parts if (manifest := self._manifest(part)) is not None]
        result = self._result(manifests)
        if not result.whole:
            return result
        self._require_train(result.conversations - result.held_out, result.conversations, Counter(result.dropped))
        try:
            prompts.write(self.folder / PROMPTS, found)
            artifacts.write_atomic(self.folder / REPORT, result.model_dump_json(by_alias=True).encode())
            publish_store(
                self.folder,
                [part.name for part in self.parts],
                self.at,
                key=self.config.key,
                made_from=self._made_from(),
                numbers=result.model_dump(),
                provenance=manifests[0].provenance | {"finished": _now()},
            )
        except FileNotFoundError:
            # Another pod finished its last part at the same time, published the same, and cleaned up
            if self.at.finished(self.folder, self.config.key) is None:
                raise
        return result

    def _result(self, manifests: Sequence[Manifest]) -> ExtractResult:
        numbers = [_PartNumbers.model_validate(manifest.numbers) for manifest in manifests]
        dropped = Counter(self.conversations.dropped)
        for part in numbers:
            dropped.update(part.dropped)
        seconds = sum(part.seconds for part in numbers)
        computed = sum(part.computed_tokens for part in numbers)
        return ExtractResult(
            conversations=sum(part.conversations for part in numbers),
            held_out=sum(part.held_out for part in numbers),
            tokens=sum(part.tokens for part in numbers),
            supervised_tokens=sum(part.supervised_tokens for part in numbers),
            bytes=sum(file.size for manifest in manifests for file in manifest.files),
            dropped=dict(dropped),
            tokens_per_second=round(computed / seconds, 1) if seconds else 0.0,
            engine=manifests[0].provenance["engine"] if manifests else "",
            parts=len(manifests),
            whole=len(manifests) == len(self.parts),
            **self._answers(numbers),
        )

    def _answers(self, numbers: Sequence[_PartNumbers]) -> dict[str, int]:
        if self.config.data.regenerate is None:
            return {}
        return {
            "answers": sum(part.answers or 0 for part in numbers),
            "cut_answers": sum(part.cut_answers or 0 for part in numbers),
        }

    def _made_from(self) -> dict[str, str]:
        config = self.config
        return extraction_inputs(
            config.data,
            target_digest=config.target_digest,
            data_digest=config.data_digest,
            chat_template_digest=self.template_digest,
            layers=config.layers,
            dtype=config.dtype,
            end_tokens=config.end_tokens or (),
            teacher=config.teacher,
        )

    def _provenance(self, engine: Engine) -> dict[str, str]:
        return engine.provenance | {
            "sglang": self.config.sglang_version,
            "node": node(),
            "started": self.started.isoformat(timespec="seconds"),
            "finished": _now(),
        }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
