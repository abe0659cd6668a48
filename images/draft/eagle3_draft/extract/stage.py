"""The stage Extract: cut the conversations into parts; render, run the target and publish each; and then the whole.

A part is finished when it has its manifest, the stage when all parts are. Several pods may share the parts; whichever
finds them all finished publishes the whole, which moves no byte.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from eagle3_api.artifacts import FEATURES_ROOT, MANIFEST, REPORT
from eagle3_api.estimate import bytes_per_token
from eagle3_api.jobs import ExtractConfig, ExtractResult, StageName, cut_warning
from eagle3_draft.data.prompts import Prompt
from eagle3_draft.extract import parts, whole
from eagle3_draft.extract.engine import Engine, Sampling
from eagle3_draft.extract.handover import remove_left
from eagle3_draft.extract.inputs import Inputs
from eagle3_draft.extract.making import Maker
from eagle3_draft.extract.parts import Part
from eagle3_draft.extract.space import SAMPLES, Sampled, require_space, stored_bytes
from eagle3_draft.extract.texts import AsTheyStand, Regenerated, Texts
from eagle3_draft.features import SHARD_BYTES, Split
from eagle3_draft.files import remove_partials
from eagle3_draft.inspect.storage import held_bytes
from eagle3_draft.inspect.target import hidden_size
from eagle3_draft.runtime import pod
from eagle3_draft.runtime.progress import ProgressReporter
from eagle3_draft.runtime.termination import Termination
from eagle3_draft.storage.places import Place, place_of, remove_abandoned


def load_engine(config: ExtractConfig, check: Callable[[], None] = lambda: None) -> Engine:
    """What runs the target: SGLang where there is one, so that the states are those that are served.

    Args:
        config: of the stage.
        check: called now and then while SGLang starts; what it raises ends it.
    """
    found = find_spec("sglang")
    if found is not None and found.origin is not None:  # and no mere folder of that name
        from eagle3_draft.extract.sglang_engine import SGLangEngine

        return SGLangEngine(config, check)
    from eagle3_draft.extract.transformers_engine import TransformersEngine

    return TransformersEngine.load(
        Path(config.target),
        config.layers,
        teacher=config.teacher,
        arguments=config.arguments,
        trust_remote_code=config.trust_remote_code,
    )


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def run(
    config: ExtractConfig,
    *,
    load: Callable[[ExtractConfig], Engine] | None = None,
    shard_bytes: int = SHARD_BYTES,
    part_conversations: int = parts.PART_CONVERSATIONS,
    features_root: Path = Path(FEATURES_ROOT),
    free_bytes: Callable[[Path], int] = _free_bytes,
) -> ExtractResult:
    """Extract the features of this pod's parts of the conversations, and publish all if none is missing.

    Args:
        config: of the stage.
        load: makes the engine; without, ``load_engine`` does.
        shard_bytes: of a shard, about.
        part_conversations: of a part.
        features_root: where the volume is mounted; elsewhere in tests.
        free_bytes: of the file system of a folder.

    Returns:
        What there is of the whole; ``whole`` says whether that is all, or other pods are still at work.

    Raises:
        StageError: inputs that cannot be used or changed since Inspect; no room for what is to be stored; too many states
            that are not finite; or SIGTERM came, after which the next run goes on.
    """
    folder = Path(config.folder)
    at = place_of(config.object_store, folder)
    if (manifest := at.finished(folder, config.key)) is not None:
        return ExtractResult.model_validate_json(at.content(folder, manifest.file(REPORT)))
    remove_abandoned(folder, StageName.EXTRACT, at)  # Inspect counts these bytes as free
    remove_left(folder, pod.index())
    with (
        Termination() as termination,
        closing(_Loaded(lambda: load(config) if load else load_engine(config, termination.check))) as engine,
    ):
        inputs = Inputs.open(config)
        every = parts.cut(len(inputs.conversations), part_conversations)
        there = whole.finished(folder, at, every, config.key)
        unfinished = [part for part in every if part not in there]
        own = parts.own(every, pod.index(), config.shards)
        to_make = [part for part in own if part not in there]
        for part in to_make:  # before the free space is looked at; a pod that was given up and still writes ends by it
            remove_partials(folder / part.name)
            if not at.keeps:  # it was made, and never got to where it is to lie
                (folder / part.name / MANIFEST).unlink(missing_ok=True)
        texts, progress = _texts(inputs, own, to_make, folder, engine, termination)
        found: Sequence[Prompt] | None = None
        with (
            closing(texts),
            closing(Maker(inputs, folder, at, shard_bytes, attend=texts.attend, progress=progress)) as maker,
        ):
            for part in to_make:
                if found is None:
                    found = _begin(inputs, texts, to_make, unfinished, folder, at, features_root, free_bytes, progress)
                usable = texts.of(part)
                if part.count == 1:
                    whole.require_train(inputs, len(usable.texts[Split.TRAIN]), len(usable.all), usable.dropped)
                maker.begin(part, usable, engine())
                if not texts.immediate:  # to wait for answers is no reason to leave a part unstored
                    maker.finish()
            maker.finish()
        if found is None:
            found = inputs.prompts()
        return whole.publish(inputs, folder, at, every, found, check=termination.check)


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


def _texts(
    inputs: Inputs,
    own: Sequence[Part],
    to_make: Sequence[Part],
    folder: Path,
    engine: Callable[[], Engine],
    termination: Termination,
) -> tuple[Texts, ProgressReporter]:
    """Where the answers that are learned from come from; and the progress of this pod."""
    config = inputs.config
    asked = config.data.regenerate
    kind = AsTheyStand if asked is None else Regenerated
    progress = ProgressReporter(kind.steps * sum(len(part.conversations) for part in own), kind.unit)
    if to_make:
        made = sum(len(part.conversations) for part in own) - sum(len(part.conversations) for part in to_make)
        progress.update(kind.steps * made, "begins")
    if asked is None:
        return AsTheyStand(inputs, to_make, termination.check, progress), progress
    end = inputs.renderer.end_token
    ends = {*(config.end_tokens or []), *([] if end is None else [end])}
    sampling = Sampling(asked.temperature, asked.top_p, asked.seed, tuple(sorted(ends)), config.sampling_defaults)
    texts = Regenerated(
        inputs,
        to_make,
        folder,
        sampling,
        asked.max_tokens,
        engine=engine,
        check=termination.check,
        progress=progress,
    )
    return texts, progress


def _begin(
    inputs: Inputs,
    texts: Texts,
    to_make: Sequence[Part],
    unfinished: Sequence[Part],
    folder: Path,
    at: Place,
    features_root: Path,
    free_bytes: Callable[[Path], int],
    progress: ProgressReporter,
) -> list[Prompt]:
    """What must hold before hours are spent, told by the first conversations that this pod is to make; the probe's prompts."""
    config = inputs.config
    looked_at, usable = texts.first(to_make, SAMPLES)
    if usable.answers is not None and (warning := cut_warning(usable.answers.all, usable.answers.cut)):
        progress.warning = f"of the first {looked_at} conversations {warning}"
    if looked_at == len(inputs.conversations):
        whole.require_train(inputs, len(usable.texts[Split.TRAIN]), len(usable.all), usable.dropped)
    found = inputs.prompts()
    if not at.keeps:  # where parts go elsewhere, there need be room for one
        to_store = to_make[:1]
    elif looked_at == sum(len(part.conversations) for part in to_make):  # too few to tell how long other pods' are
        to_store = to_make
    else:
        to_store = unfinished
    folder.mkdir(parents=True, exist_ok=True)
    free, cache = free_bytes(folder), config.object_store
    capacity = config.features_capacity if cache is None else cache.cache_bytes
    if capacity is not None:
        free = min(free, max(0, capacity - held_bytes(features_root)))
    require_space(
        Sampled(looked_at, sum(len(text.input_ids) for text in usable.all)),
        left=sum(len(one.conversations) for one in to_store),
        token_bytes=bytes_per_token(hidden_size(Path(config.target)), len(config.layers), config.dtype, config.teacher),
        stored=stored_bytes([folder / one.name for one in to_store]),
        free=free,
        keeps=at.keeps,
    )
    return found
