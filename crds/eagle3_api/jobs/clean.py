"""Clean: remove what nobody needs once a draft is trained."""

from typing import Literal

from eagle3_api.base import Model
from eagle3_api.jobs.contract import ObjectReference
from eagle3_api.jobs.storage import ObjectStoreConfig


class CleanConfig(Model):
    """Clean: remove what the object's extractions and trainings, of whatever key, left under the features root."""

    stage: Literal["clean"] = "clean"
    owner: ObjectReference
    key: str
    object_store: ObjectStoreConfig | None = None


class CleanResult(Model):
    """What Clean removed."""

    files: int
    bytes: int
