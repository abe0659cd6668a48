"""The stages as values of one type, and the chain of them that an object wants.

A stage says which inputs determine its output (its key hashes them, with its upstream's key) and which configuration its
Job gets. A new stage is one new value here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_api.artifacts import DRAFTS_ROOT, FEATURES_ROOT, MODELS_ROOT, folder
from eagle3_api.features import TeacherKind
from eagle3_api.jobs import (
    METRICS_PORT,
    CleanConfig,
    ConvertConfig,
    ConvertResult,
    DataConfig,
    ExtractConfig,
    Facts,
    FetchConfig,
    FetchResult,
    HubDataset,
    HubSource,
    InspectConfig,
    LossConfig,
    ObjectReference,
    ObjectStoreConfig,
    ProbeConfig,
    PublishConfig,
    StageName,
    TrainConfig,
)
from eagle3_api.quantity import quantity
from eagle3_api.sglang import Version
from eagle3_api.spec import Data, Eagle3Draft, Eagle3DraftSpec, Logging, seconds
from eagle3_api.status import Handled
from eagle3_operator.decide.keys import changed, key_of
from eagle3_operator.manifests import group
from eagle3_operator.manifests.jobs import stage_grace

JobConfig = (
    FetchConfig
    | InspectConfig
    | ExtractConfig
    | TrainConfig
    | CleanConfig
    | ConvertConfig
    | PublishConfig
    | ProbeConfig
)


@dataclass(frozen=True)
class Link:
    """A stage of one object's chain: what its Job is to do, under which key, and where its artifact will lie."""

    stage: StageName
    key: str
    config: JobConfig
    artifact: str | None


@dataclass(frozen=True)
class Context:
    """What a stage's inputs and configuration are made of."""

    obj: Eagle3Draft
    facts: Facts
    #: Keys and folders of the stages before, by name.
    before: Mapping[StageName, Link]

    @property
    def spec(self) -> Eagle3DraftSpec:
        return self.obj.spec

    @property
    def target(self) -> str:
        """Where pods see the target."""
        return self.facts.target_folder(self.spec.target.model)

    def folder(self, stage: StageName, key: str) -> str:
        root = FEATURES_ROOT if stage is StageName.EXTRACT else DRAFTS_ROOT
        return str(folder(root, self.obj.metadata.namespace, self.obj.metadata.name, stage, key))

    def upstream(self, stage: StageName) -> Link:
        return self.before[stage]


@dataclass(frozen=True)
class Stage:
    """One stage."""

    name: StageName
    #: Raised when the same inputs would give another output.
    version: int
    inputs: Callable[[Context], dict[str, Any]]
    config: Callable[[Context, str], JobConfig]

    def link(self, context: Context, attempt: str | None) -> Link:
        """This stage for one object; ``attempt`` is the token of a retry that made a finished stage run again."""
        key = key_of(f"{self.name}/{self.version}", self.inputs(context) | {"attempt": attempt})
        return Link(self.name, key, self.config(context, key), context.folder(self.name, key))


def sglang_version(spec: Eagle3DraftSpec) -> str:
    """The version that the object names, or else its image's tag."""
    return spec.sglang_version or str(Version.parse(spec.image))


def _owner(obj: Eagle3Draft) -> ObjectReference:
    return ObjectReference(namespace=obj.metadata.namespace, name=obj.metadata.name, uid=obj.metadata.uid)


def _engine_arguments(spec: Eagle3DraftSpec) -> list[str]:
    """The server's own flags, by which an engine in a Job computes what the server will."""
    return list(spec.serve.arguments or []) if spec.serve else []


def _data(data: Data, fetched: FetchResult | None) -> DataConfig:
    regeneration, dataset = data.regeneration, fetched.dataset if fetched else None
    derived = {
        "regenerate": regeneration and regeneration.to_json(),
        "dataset": dataset.path if data.dataset is not None and dataset else None,
    }
    return DataConfig.model_validate(data.to_json() | derived)


def _unusual(teacher: TeacherKind) -> TeacherKind | None:
    """The teacher as it stands in keys, which are older than the choice."""
    return None if teacher == "LastState" else teacher


def _object_store(spec: Eagle3DraftSpec) -> ObjectStoreConfig | None:
    store = spec.storage.features.object_store
    if store is None:
        return None
    # A tenth stays free: the kubelet ends a pod whose volume is fuller than its limit
    room = quantity(store.cache) * 9 // 10
    return ObjectStoreConfig(url=store.url, endpoint=store.endpoint, region=store.region, cache_bytes=room)


def _given(data: Data | None) -> Data:
    if data is None:
        raise ValueError("training needs data; admission lets no such object through")
    return data


# -------------------------------------------------------------------------------------------------------- fetch


def fetch(obj: Eagle3Draft, attempt: str | None, drift: str | None = None) -> Link | None:
    """What comes from a hub, before everything else; None where nothing does.

    Target and data set have a key and a folder each, so that another data set does not fetch the target again. What a
    branch is called may move: a revision is resolved once, and anew with a retry of the finished stage; that of the data
    set also where traffic has drifted from it.

    Args:
        obj: the object.
        attempt: token of such a retry.
        drift: when the data was last looked at again because the draft drifts.
    """
    spec = obj.spec
    if not spec.fetches:
        return None
    target: HubSource | None = None
    dataset: HubDataset | None = None
    if spec.target.repository is not None:
        target = HubSource.model_validate(
            _hub_source(obj, {"repository": spec.target.repository, "revision": spec.target.revision}, attempt=attempt)
        )
    if spec.data is not None and spec.data.dataset is not None:
        dataset = HubDataset.model_validate(_hub_source(obj, spec.data.dataset.to_json(), attempt=attempt, drift=drift))
    sources = {"target": target and target.key, "dataset": dataset and dataset.key}
    key = key_of("fetch/1", sources)
    config = FetchConfig(owner=_owner(obj), key=key, target=target, dataset=dataset)
    first = target or dataset
    return Link(StageName.FETCH, key, config, first.folder if first else None)


def _hub_source(obj: Eagle3Draft, source: dict[str, object], **anew: str | None) -> dict[str, object]:
    key = key_of("fetched/1", source | anew)
    where = folder(MODELS_ROOT, obj.metadata.namespace, obj.metadata.name, StageName.FETCH, key)
    return source | {"key": key, "folder": str(where)}


# ------------------------------------------------------------------------------------------------------ inspect


def inspect(
    obj: Eagle3Draft, handled: Handled, features_capacity: int | None, fetched: FetchResult | None = None
) -> Link:
    """Inspect has no artifact and is never finished: it runs again when what it reads changes, or on request.

    Args:
        obj: the object.
        handled: what was asked for last, of the user or of drift.
        features_capacity: bytes of the features claim. Not in the key: a claim that is bound when its first pod comes
            has another size then, which is no news.
        fetched: what came from a hub.
    """
    spec = obj.spec
    target = fetched.target.path if fetched and fetched.target else spec.target.model
    reads = {
        "target": changed(spec.target),
        "data": changed(spec.data),
        "draft": changed(spec.draft),
        "dtype": spec.extract.dtype,
        "teacher": _unusual(spec.extract.teacher),
        "version": sglang_version(spec),
        "contextLength": spec.serve.context_length if spec.serve else None,
        "storage": changed(spec.storage),
        "volumes": [v.to_json() for v in spec.placement.volumes or []],
        "token": handled.retry,
        "drift": handled.drift,
        "fetched": fetched and fetched.to_json(),
    }
    key = key_of("inspect/1", reads)
    config = InspectConfig(
        owner=_owner(obj),
        key=key,
        target=target,
        trust_remote_code=spec.target.trust_remote_code,
        data=_data(spec.data, fetched) if spec.data else None,
        checkpoint=spec.draft.checkpoint,
        init_from=spec.draft.init_from,
        auxiliary_layers=spec.draft.auxiliary_layers,
        vocabulary_size=spec.draft.vocabulary_size,
        attention=spec.draft.attention,
        feature_dtype=spec.extract.dtype,
        feature_teacher=spec.extract.teacher,
        sglang_version=sglang_version(spec),
        context_length=spec.serve.context_length if spec.serve else None,
        object_store=_object_store(spec),
        features_capacity=features_capacity,
        fetched=fetched,
    )
    return Link(StageName.INSPECT, key, config, None)


# ------------------------------------------------------------------------------------------------------ extract


def _extract_inputs(context: Context) -> dict[str, Any]:
    facts, data = context.facts, _given(context.spec.data)
    return {
        "target": facts.target_digest,
        "data": facts.data_digest,
        "maxSamples": data.max_samples,
        "maxLength": data.max_length,
        "holdout": data.holdout,
        "chatTemplate": facts.chat_template_digest,
        "layers": facts.auxiliary_layers,
        "dtype": context.spec.extract.dtype,
        # An empty object where the target answers itself with nothing but defaults
        "regenerate": changed(data.regeneration),
        "endTokens": facts.end_tokens,
        "teacher": _unusual(context.spec.extract.teacher),
    }


def _extract_config(context: Context, key: str) -> ExtractConfig:
    spec, facts = context.spec, context.facts
    return ExtractConfig(
        owner=_owner(context.obj),
        key=key,
        folder=context.folder(StageName.EXTRACT, key),
        target=context.target,
        target_digest=facts.target_digest,
        trust_remote_code=spec.target.trust_remote_code,
        data=_data(_given(spec.data), facts.fetched),
        data_digest=facts.data_digest or "",
        object_store=_object_store(spec),
        layers=facts.auxiliary_layers,
        dtype=spec.extract.dtype,
        teacher=spec.extract.teacher,
        sglang_version=facts.sglang_version,
        arguments=_engine_arguments(spec),
        tensor_parallel_size=spec.target.tensor_parallel_size,
        shards=spec.extract.shards,
        end_tokens=facts.end_tokens,
    )


# -------------------------------------------------------------------------------------------------------- train


def _train_inputs(context: Context) -> dict[str, Any]:
    draft, train = context.spec.draft, context.spec.train
    return {
        "features": context.upstream(StageName.EXTRACT).key,
        "vocabularySize": context.facts.draft_vocabulary_size,
        "depth": draft.depth if draft.depth != 1 else None,
        "variant": draft.variant if draft.variant != "EAGLE-3" else None,
        "attention": draft.attention if draft.attention != "Heads" else None,
        "initFrom": context.facts.init_digest,
        "epochs": train.epochs,
        "tokensPerStep": train.tokens_per_step,
        "learningRate": train.learning_rate,
        "unrollSteps": train.unroll_steps,
        "loss": changed(train.loss) or None,
        "precision": None if train.precision == "bf16" else train.precision,
        "seed": train.seed,
        "evaluationsPerEpoch": train.evaluations_per_epoch if train.evaluations_per_epoch > 1 else None,
        "earlyStop": changed(train.early_stop),
        "trainer": changed(train.trainer),
    }


def _scratch(context: Context, key: str) -> str:
    """Where Train's checkpoints lie: with the features, or, where these lie in an object store, with the drafts."""
    metadata = context.obj.metadata
    if context.spec.storage.features.object_store is not None:
        return f"{context.folder(StageName.TRAIN, key)}/.scratch"
    return str(folder(FEATURES_ROOT, metadata.namespace, metadata.name, StageName.TRAIN, key))


def _train_config(context: Context, key: str) -> TrainConfig:
    spec, facts, features = context.spec, context.facts, context.upstream(StageName.EXTRACT)
    logging = spec.train.logging or Logging()
    return TrainConfig(
        owner=_owner(context.obj),
        key=key,
        folder=context.folder(StageName.TRAIN, key),
        scratch=_scratch(context, key),
        features=features.artifact or "",
        features_key=features.key,
        object_store=_object_store(spec),
        target=context.target,
        target_digest=facts.target_digest,
        layers=facts.auxiliary_layers,
        vocabulary_size=facts.draft_vocabulary_size or facts.vocabulary_size,
        depth=spec.draft.depth,
        variant=spec.draft.variant,
        attention=spec.draft.attention,
        init_from=spec.draft.init_from,
        init_digest=facts.init_digest,
        epochs=spec.train.epochs,
        tokens_per_step=spec.train.tokens_per_step,
        tokens_per_pass=spec.train.tokens_per_pass,
        learning_rate=spec.train.learning_rate,
        unroll_steps=spec.train.unroll_steps,
        loss=LossConfig.model_validate(spec.train.loss.to_json()),
        precision=spec.train.precision,
        seed=spec.train.seed,
        evaluations_per_epoch=spec.train.evaluations_per_epoch,
        early_stop=spec.train.early_stop,
        trainer=[*trainer.command, *(trainer.arguments or [])] if (trainer := spec.train.trainer) else None,
        tensor_board=logging.tensor_board,
        weights_and_biases=logging.weights_and_biases,
        metrics_port=METRICS_PORT,
        checkpoint_interval=seconds(spec.train.checkpoint_interval),
        processes=max(1, spec.train.gpus),
        hosts=group.hosts(context.obj, key),
        grace_seconds=stage_grace(spec, StageName.TRAIN),
    )


# ------------------------------------------------------------------------------------------------------ convert


def _convert_inputs(context: Context) -> dict[str, Any]:
    facts, adopted = context.facts, context.spec.draft.checkpoint is not None
    return {
        "trained": None if adopted else context.upstream(StageName.TRAIN).key,
        "checkpoint": facts.checkpoint_digest if adopted else None,
        "prompts": facts.data_digest if adopted else None,
        "target": facts.target_digest,
        "layers": facts.auxiliary_layers,
        "convention": facts.layer_convention,
        "contextLength": facts.context_length,
    }


def _convert_config(context: Context, key: str) -> ConvertConfig:
    spec, facts = context.spec, context.facts
    trained = None if spec.draft.checkpoint else context.upstream(StageName.TRAIN)
    return ConvertConfig(
        owner=_owner(context.obj),
        key=key,
        folder=context.folder(StageName.CONVERT, key),
        trained=trained.artifact if trained else None,
        trained_key=trained.key if trained else None,
        checkpoint=spec.draft.checkpoint,
        checkpoint_digest=facts.checkpoint_digest,
        data=_data(spec.data, facts.fetched) if spec.data else None,
        target=context.target,
        target_digest=facts.target_digest,
        trust_remote_code=spec.target.trust_remote_code,
        layers=facts.auxiliary_layers,
        sglang_version=facts.sglang_version,
        context_length=facts.context_length,
        arguments=_engine_arguments(spec),
        tensor_parallel_size=spec.target.tensor_parallel_size,
    )


# ------------------------------------------------------------------------------------------------------ publish


def publish(obj: Eagle3Draft, convert: Link, result: ConvertResult, attempt: str | None) -> Link:
    """Publish belongs to no chain: servers do not wait for it. It pushes what Convert made, to where the object says.

    Args:
        obj: the object, which says where.
        convert: the finished stage.
        result: what it made.
        attempt: the token of a retry that made a finished stage run again.
    """
    if obj.spec.publish is None:
        raise ValueError("an object without publish publishes nothing")
    oci, metadata = obj.spec.publish.oci, obj.metadata
    key = key_of("publish/1", {"converted": convert.key, "reference": oci.reference, "attempt": attempt})
    place = str(folder(DRAFTS_ROOT, metadata.namespace, metadata.name, StageName.PUBLISH, key))
    config = PublishConfig(
        owner=_owner(obj),
        key=key,
        folder=place,
        converted=convert.artifact or "",
        converted_key=convert.key,
        draft=result.digest,
        reference=oci.reference,
        login=oci.secret is not None,
        plain_http=oci.plain_http,
    )
    return Link(StageName.PUBLISH, key, config, place)


# -------------------------------------------------------------------------------------------------------- clean


def clean(obj: Eagle3Draft, extract: Link, train: Link) -> Link:
    """Clean belongs to no chain: it removes Extract's artifact and Train's scratch once Train is finished.

    Its ``artifact`` is the one that it removes.
    """
    config = train.config
    # In an object store there are features alone
    stored = obj.spec.storage.features.object_store is not None
    scratch = [config.scratch] if isinstance(config, TrainConfig) and not stored else []
    key = key_of("clean/1", {"features": extract.key, "trained": train.key})
    folders = [extract.artifact or "", *scratch]
    return Link(
        StageName.CLEAN,
        key,
        CleanConfig(owner=_owner(obj), key=key, folders=folders, object_store=_object_store(obj.spec)),
        extract.artifact,
    )


EXTRACT = Stage(StageName.EXTRACT, 1, _extract_inputs, _extract_config)
TRAIN = Stage(StageName.TRAIN, 1, _train_inputs, _train_config)
CONVERT = Stage(StageName.CONVERT, 1, _convert_inputs, _convert_config)


def after_inspection(obj: Eagle3Draft, facts: Facts, attempts: Mapping[StageName, str | None]) -> list[Link]:
    """The stages that follow, in order: all three, or Convert alone for an adopted checkpoint."""
    stages = [CONVERT] if obj.spec.draft.checkpoint else [EXTRACT, TRAIN, CONVERT]
    links: dict[StageName, Link] = {}
    for stage in stages:
        links[stage.name] = stage.link(Context(obj, facts, dict(links)), attempts.get(stage.name))
    return list(links.values())
