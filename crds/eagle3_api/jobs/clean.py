"""Clean: remove what nobody needs once a draft is trained."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.jobs.contract import ObjectReference
from eagle3_api.jobs.storage import ObjectStoreConfig


class CleanConfig(Model):
    """Clean: remove what nobody needs once a draft is trained."""

    stage: Literal["clean"] = "clean"
    owner: ObjectReference
    key: str
    folders: list[str] = Field(description="Of the object, under the features root.")
    object_store: ObjectStoreConfig | None = None


class CleanResult(Model):
    """What Clean removed."""

    files: int
    bytes: int
