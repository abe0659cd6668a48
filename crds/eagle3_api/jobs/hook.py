"""Hook: a command of the user's, after a push. It has no result: its exit code says all."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.jobs.contract import ObjectReference


class HookConfig(Model):
    """Hook: what was pushed, for a command of the user's."""

    stage: Literal["hook"] = "hook"
    owner: ObjectReference
    key: str
    published: str = Field(description="Publish's artifact, with the statement of where the draft comes from.")
    command: list[str] = Field(description="As the object says.")
    digest: str = Field(description="Of the manifest that the reference, or else the address, names.")
    reference: str | None = Field(None, description="registry/repository@digest.")
    address: str | None = Field(None, description="s3://BUCKET/PREFIX/sha256-…")
