"""Publish: a converted draft to a registry, to an object store, or to both."""

from eagle3_api.artifacts import DRAFTS_ROOT, folder
from eagle3_api.jobs import ConvertResult, PublishConfig, StageName
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.decide.keys import key_of
from eagle3_operator.decide.stages.configuration import bucket, owner
from eagle3_operator.decide.stages.stage import Link


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
    oci, store, metadata = obj.spec.publish.oci, obj.spec.publish.object_store, obj.metadata
    places = {
        "reference": oci.reference if oci else None,
        "objectStore": {"url": store.url, "endpoint": store.endpoint} if store else None,
    }
    key = key_of("publish/1", {"converted": convert.key, **places, "attempt": attempt})
    place = str(folder(DRAFTS_ROOT, metadata.namespace, metadata.name, StageName.PUBLISH, key))
    config = PublishConfig(
        owner=owner(obj),
        key=key,
        folder=place,
        converted=convert.artifact or "",
        converted_key=convert.key,
        draft=result.digest,
        reference=oci.reference if oci else None,
        login=oci is not None and oci.secret is not None,
        plain_http=oci is not None and oci.plain_http,
        object_store=bucket(store) if store else None,
    )
    return Link(StageName.PUBLISH, key, config, place, attempt)
