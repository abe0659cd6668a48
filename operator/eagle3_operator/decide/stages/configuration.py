"""Parts of a Job's configuration that several stages have."""

from eagle3_api.features import TeacherKind
from eagle3_api.jobs import BucketConfig, DataConfig, FetchResult, ObjectReference, ObjectStoreConfig
from eagle3_api.quantity import quantity
from eagle3_api.sglang import Version, numeric_arguments
from eagle3_api.spec import Bucket, Data, Eagle3Draft, Eagle3DraftSpec


def sglang_version(spec: Eagle3DraftSpec) -> str:
    """The version that the object names, or else its image's tag."""
    return spec.sglang_version or str(Version.parse(spec.image))


def owner(obj: Eagle3Draft) -> ObjectReference:
    return ObjectReference(namespace=obj.metadata.namespace, name=obj.metadata.name, uid=obj.metadata.uid)


def engine_arguments(spec: Eagle3DraftSpec) -> list[str]:
    """The server's own flags, by which an engine in a Job computes what the server will."""
    return list(spec.serve.arguments or []) if spec.serve else []


def engine_numerics(spec: Eagle3DraftSpec) -> list[str] | None:
    """What of them changes the states that it computes; None where nothing does, as in keys that are older than this."""
    return numeric_arguments(engine_arguments(spec)) or None


def checkpoint(spec: Eagle3DraftSpec, fetched: FetchResult | None) -> str | None:
    """Where pods see the draft that is adopted: where it was fetched to, or else the path that the object names."""
    return fetched.draft.path if fetched is not None and fetched.draft is not None else spec.draft.checkpoint


def data_config(data: Data, fetched: FetchResult | None) -> DataConfig:
    regeneration, dataset = data.regeneration, fetched.dataset if fetched else None
    derived = {
        "regenerate": regeneration and regeneration.to_json(),
        "dataset": dataset.path if data.dataset is not None and dataset else None,
    }
    return DataConfig.model_validate(data.to_json() | derived)


def given(data: Data | None) -> Data:
    if data is None:
        raise ValueError("training needs data; admission lets no such object through")
    return data


def object_store(spec: Eagle3DraftSpec) -> ObjectStoreConfig | None:
    store = spec.storage.features.object_store
    if store is None:
        return None
    # A tenth stays free: the kubelet ends a pod whose volume is fuller than its limit
    room = quantity(store.cache) * 9 // 10
    return ObjectStoreConfig(**bucket(store).model_dump(), cache_bytes=room)


def bucket(store: Bucket) -> BucketConfig:
    return BucketConfig(url=store.url, endpoint=store.endpoint, region=store.region, addressing=store.addressing)


def unusual(teacher: TeacherKind) -> TeacherKind | None:
    """The teacher as it stands in keys, which are older than the choice."""
    return None if teacher == "LastState" else teacher
