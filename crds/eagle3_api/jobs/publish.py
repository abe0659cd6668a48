"""Publish: a converted draft to an OCI registry."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.jobs.contract import ObjectReference

#: Credentials of registries, as docker writes them down, in the pod of a Publish.
REGISTRY_LOGIN = "/eagle3/registry/config.json"


class PublishConfig(Model):
    """Publish: a converted draft to an OCI registry."""

    stage: Literal["publish"] = "publish"
    owner: ObjectReference
    key: str
    folder: str = Field(description="The artifact's folder, under the drafts root: what was pushed, and where.")
    converted: str = Field(description="Convert's artifact.")
    converted_key: str
    draft: str = Field(description="Digest of the draft.")
    reference: str = Field(description="registry/repository, with or without a tag.")
    login: bool = Field(False, description="Credentials lie at REGISTRY_LOGIN.")
    plain_http: bool = False


class PublishResult(Model):
    """What Publish pushed: ``status.artifact.published``."""

    reference: str = Field(description="registry/repository@digest: what others pull, verify and sign.")
    digest: str = Field(description="Of the manifest.")
    provenance: str = Field(
        description="Digest of the manifest that says where the draft comes from; it refers to the other one."
    )
    bytes: int
