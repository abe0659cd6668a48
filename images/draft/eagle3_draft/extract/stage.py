"""The stage Extract: render, plan, run the target, publish."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from platform import node

import torch

from eagle3_api.artifacts import PROMPTS, REPORT
from eagle3_api.conditions import Reason
from eagle3_api.estimate import bytes_per_token
from eagle3_api.jobs import ExitCode, ExtractConfig, ExtractResult
from eagle3_draft import artifacts
from eagle3_draft.data import prompts
from eagle3_draft.data.conversations import Conversations, held_out
from eagle3_draft.data.inputs import extraction_inputs
from eagle3_draft.data.rendering import Rendered, Renderer, UnusableError
from eagle3_draft.data.tokenizer_files import chat_template, template_digest, tokenizer_digest
from eagle3_draft.extract.engine import Engine, States
from eagle3_draft.extract.interruption import Interruption, interruptible
from eagle3_draft.features import SHARD_BYTES, FeatureWriter, Header, Sample, ShardRecord, Split, plan_shards
from eagle3_draft.inspect.target import context_length, target_digest
from eagle3_draft.progress import Progress
from eagle3_draft.stage import StageError

#: Share of the conversations that may be left out because their states are not finite. More is no bad sample.
NON_FINITE_BOUND = 0.01

NON_FINITE = "hidden states not finite"


def _load(config: ExtractConfig) -> Engine:
    """SGLang where there is one, so that the states are those that are served."""
    found = find_spec("sglang")
    if found is not None and found.origin is not None:  # and no mere folder of that name
        from eagle3_draft.extract.sglang_engine import SGLangEngine

        return SGLangEngine(config)
    from eagle3_draft.extract.transformers_engine import TransformersEngine

    return TransformersEngine.load(
        Path(config.target),
        config.layers,
        arguments=config.arguments,
        trust_remote_code=config.trust_remote_code,
    )


def run(
    config: ExtractConfig, *, load: Callable[[ExtractConfig], Engine] = _load, shard_bytes: int = SHARD_BYTES
) -> ExtractResult:
    """Extract the features of all usable conversations.

    Args:
        config: of the stage.
        load: makes the engine.
        shard_bytes: of a shard, about.

    Raises:
        StageError: inputs that cannot be used or changed since Inspect; too many states that are not finite; or SIGTERM
            came, after which the next run goes on.
    """
    folder = Path(config.folder)
    if artifacts.finished(folder, config.key) is not None:
        return ExtractResult.model_validate_json(artifacts.verified(folder, REPORT).read_bytes())
    with interruptible() as interruption:
        return _Extraction(config, folder, interruption, shard_bytes).run(load)


@dataclass
class _Usable:
    """The conversations that can be learned from, and why the others cannot."""

    texts: list[Rendered] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


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


class _Extraction:
    def __init__(self, config: ExtractConfig, folder: Path, interruption: Interruption, shard_bytes: int) -> None:
        self.config = config
        self.folder = folder
        self.interruption = interruption
        self.shard_bytes = shard_bytes
        self.started = datetime.now(UTC)

    def run(self, load: Callable[[ExtractConfig], Engine]) -> ExtractResult:
        config, target = self.config, Path(self.config.target)
        conversations = self._unchanged_inputs()
        override = Path(config.data.chat_template) if config.data.chat_template else None
        template = chat_template(target, override)
        longest = self._longest(target)
        renderer = Renderer.load(target, template, longest, trust_remote_code=config.trust_remote_code)
        usable = self._render(conversations, renderer)
        parts = self._split(usable)
        held = [conversations[usable.indices[index]] for index in parts[Split.HELD_OUT]]
        self._write_prompts(prompts.collect(held, renderer, longest))
        with closing(load(config)) as engine:
            self._check_vocabulary(usable.texts, engine)
            header = Header(
                layers=config.layers,
                hidden_size=engine.hidden_size,
                dtype=config.dtype,
                vocabulary_size=engine.vocabulary_size,
                tokenizer_digest=tokenizer_digest(target),
                chat_template_digest=template_digest(template),
            )
            writer = FeatureWriter(self.folder, header)
            records, rate = self._extract(writer, engine, {s: [usable.texts[i] for i in parts[s]] for s in Split})
            result = self._result(records, conversations.dropped | dict(usable.dropped), rate, engine)
            self._publish(writer, engine, result)
        return result

    def _longest(self, target: Path) -> int:
        """Tokens of a conversation at most: what a server of this target takes, which makes one more of it."""
        context = context_length(target)
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
        conversations = Conversations.read(Path(config.data.conversations), config.data.max_samples)
        if conversations.sha256 != config.data_digest:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.DATA_UNREADABLE,
                f"data.conversations: {config.data.conversations} was changed since it was inspected; {again}",
            )
        return conversations

    def _render(self, conversations: Conversations, renderer: Renderer) -> _Usable:
        usable, progress = _Usable(), Progress(1, "")
        for index, conversation in enumerate(conversations):
            self.interruption.check()
            progress.update(0, f"rendered {index:,} of {len(conversations):,} conversations")
            try:
                usable.texts.append(renderer.conversation(conversation.messages))
            except UnusableError as why:
                usable.dropped[str(why)] += 1
            else:
                usable.indices.append(index)
                usable.digests.append(conversation.digest)
        return usable

    def _split(self, usable: _Usable) -> dict[Split, list[int]]:
        """Which of the usable conversations go where."""
        chosen = held_out(usable.digests, self.config.data.holdout)
        parts: dict[Split, list[int]] = {split: [] for split in Split}
        for index, out in enumerate(chosen):
            parts[Split.HELD_OUT if out else Split.TRAIN].append(index)
        if not parts[Split.TRAIN]:
            why = ", ".join(f"{count} {reason}" for reason, count in usable.dropped.most_common(3))
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.NO_USABLE_DATA,
                f"data.conversations: only {len(usable.texts)} conversation(s) can be used, too few to learn from and to "
                f"hold out. Left out: {why or 'none'}",
            )
        return parts

    def _check_vocabulary(self, texts: Sequence[Rendered], engine: Engine) -> None:
        largest = max(max(text.input_ids) for text in texts)
        if largest >= engine.vocabulary_size:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.TARGET_UNREADABLE,
                f"target.model: the tokenizer in {self.config.target} made the token {largest}, the model has "
                f"{engine.vocabulary_size}: they are not of one model",
            )

    def _write_prompts(self, found: Sequence[prompts.Prompt]) -> None:
        if not found:
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.NO_USABLE_DATA,
                "data.conversations: no held-out conversation has a user turn that fits data.maxLength, so no server could "
                "be probed. Give more conversations, or raise data.holdout or data.maxLength",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        prompts.write(self.folder / PROMPTS, found)

    def _extract(
        self, writer: FeatureWriter, engine: Engine, texts: dict[Split, list[Rendered]]
    ) -> tuple[dict[Split, list[ShardRecord]], float]:
        """Write all shards; returns their records and the tokens a second of this run."""
        per_token = bytes_per_token(engine.hidden_size, len(self.config.layers), self.config.dtype)
        plan = [
            _Shard(split, number, [part[index] for index in shard])
            for split, part in texts.items()
            for number, shard in enumerate(plan_shards([len(t.input_ids) for t in part], per_token, self.shard_bytes))
        ]
        finished = [writer.resume(shard.split, shard.number, shard.ids) for shard in plan]
        # All that is to do, in one go: an engine may look beyond a shard
        missing = [shard for shard, record in zip(plan, finished, strict=True) if record is None]
        states = engine.states([ids for shard in missing for ids in shard.ids])
        progress = Progress(sum(shard.tokens for shard in plan), "tokens")
        count = sum(len(shard.texts) for shard in plan)
        records: dict[Split, list[ShardRecord]] = {split: [] for split in Split}
        done, computed, skipped, began = 0, 0, 0, time.monotonic()
        for shard, known in zip(plan, finished, strict=True):
            record = known
            if record is None:
                samples = self._samples(states, shard.texts, progress, done)
                record = writer.write(shard.split, shard.number, shard.ids, samples)
                computed += shard.tokens
            records[shard.split].append(record)
            done += shard.tokens
            skipped += record.skipped
            progress.update(done)
            if skipped > NON_FINITE_BOUND * count:
                raise StageError(
                    ExitCode.NON_FINITE,
                    Reason.NON_FINITE,
                    f"the target's hidden states are not finite in {skipped} of {count} conversations, more than "
                    f"{NON_FINITE_BOUND:.0%}: its weights are broken, or its dtype overflows (--dtype)",
                )
        return records, computed / (time.monotonic() - began) if computed else 0.0

    def _samples(
        self, every: Iterator[States], texts: Sequence[Rendered], progress: Progress, done: int
    ) -> list[Sample]:
        """Take the states of the conversations of one shard. Those with states that are not finite are left out."""
        samples = []
        for text in texts:
            self.interruption.check()
            states = next(every)
            if bool(states.hidden.isfinite().all()) and bool(states.last.isfinite().all()):
                ids = torch.tensor(text.input_ids.tolist(), dtype=torch.int32)
                mask = torch.tensor(text.loss_mask.tolist(), dtype=torch.uint8)
                samples.append(Sample(ids, mask, states.hidden, states.last))
            done += len(text.input_ids)
            progress.update(done)
        return samples

    def _result(
        self, records: dict[Split, list[ShardRecord]], dropped: dict[str, int], rate: float, engine: Engine
    ) -> ExtractResult:
        every = [record for part in records.values() for record in part]
        skipped = sum(record.skipped for record in every)
        tokens = sum(sum(record.lengths) for record in every)
        return ExtractResult(
            conversations=sum(len(record.lengths) for record in every),
            held_out=sum(len(record.lengths) for record in records[Split.HELD_OUT]),
            tokens=tokens,
            supervised_tokens=sum(record.supervised_tokens for record in every),
            bytes=sum(path.stat().st_size for path in self.folder.glob("*.safetensors")),
            dropped=dropped | ({NON_FINITE: skipped} if skipped else {}),
            tokens_per_second=round(rate, 1),
            engine=engine.provenance["engine"],
        )

    def _publish(self, writer: FeatureWriter, engine: Engine, result: ExtractResult) -> None:
        config = self.config
        artifacts.write_atomic(self.folder / REPORT, result.model_dump_json(by_alias=True).encode())
        writer.publish(
            key=config.key,
            made_from=extraction_inputs(
                config.data,
                target_digest=config.target_digest,
                data_digest=config.data_digest,
                chat_template_digest=writer.header.chat_template_digest,
                layers=config.layers,
                dtype=config.dtype,
            ),
            numbers=result.model_dump(),
            provenance=engine.provenance
            | {
                "sglang": config.sglang_version,
                "node": node(),
                "started": self.started.isoformat(timespec="seconds"),
                "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )
