"""Clean: remove what nobody needs once a draft is trained."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.jobs.contract import ObjectReference
from eagle3_api.jobs.storage import ObjectStoreConfig


class CleanConfig(Model):
    """Clean: remove what the object's extractions and trainings, of whatever key, left under the features root and with the drafts."""

    stage: Literal["clean"] = "clean"
    owner: ObjectReference
    key: str
    object_store: ObjectStoreConfig | None = None
    features_gone: bool = Field(False, description="Their claim went with them: what is left lies with the drafts.")


class CleanResult(Model):
    """What Clean removed."""

    files: int
    bytes: int
