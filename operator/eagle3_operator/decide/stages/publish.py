"""Publish: a converted draft to a registry, to an object store, or to both."""

from dataclasses import dataclass
from typing import Any

from eagle3_api.jobs import ConvertResult, PublishConfig, StageName
from eagle3_api.spec import Eagle3Draft, Publish
from eagle3_operator.decide.stages.configuration import bucket, owner
from eagle3_operator.decide.stages.stage import Link, Stage, drafts_folder


@dataclass(frozen=True)
class Push:
    """What Publish is made from: what Convert made goes to where the object says. Servers do not wait for it.

    Attributes:
        obj: the object.
        to: where it says.
        convert: the finished stage.
        result: what it made.
    """

    obj: Eagle3Draft
    to: Publish
    convert: Link
    result: ConvertResult


def _inputs(push: Push) -> dict[str, Any]:
    oci, store = push.to.oci, push.to.object_store
    return {
        "converted": push.convert.key,
        "reference": oci.reference if oci else None,
        "objectStore": {"url": store.url, "endpoint": store.endpoint} if store else None,
    }


def _folder(push: Push, key: str) -> str:
    return drafts_folder(push.obj, StageName.PUBLISH, key)


def _config(push: Push, key: str) -> PublishConfig:
    oci, store = push.to.oci, push.to.object_store
    return PublishConfig(
        owner=owner(push.obj),
        key=key,
        folder=_folder(push, key),
        converted=push.convert.artifact or "",
        converted_key=push.convert.key,
        draft=push.result.digest,
        reference=oci.reference if oci else None,
        login=oci is not None and oci.secret is not None,
        plain_http=oci is not None and oci.plain_http,
        object_store=bucket(store) if store else None,
    )


PUBLISH = Stage(StageName.PUBLISH, 1, _inputs, _config, _folder)
