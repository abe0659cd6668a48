"""Publish: a converted draft to an OCI registry, to an object store, or to both."""

from typing import Literal

from pydantic import Field

from eagle3_api.artifacts import MANIFEST
from eagle3_api.base import Model
from eagle3_api.jobs.contract import ObjectReference
from eagle3_api.jobs.storage import BucketConfig

#: Credentials of registries, as docker writes them down, in the pod of a Publish.
REGISTRY_LOGIN = "/eagle3/registry/config.json"


class PublishConfig(Model):
    """Publish: a converted draft to an OCI registry, to an object store, or to both."""

    stage: Literal["publish"] = "publish"
    owner: ObjectReference
    key: str
    folder: str = Field(description="The artifact's folder, under the drafts root: what was pushed, and where.")
    converted: str = Field(description="Convert's artifact.")
    converted_key: str
    draft: str = Field(description="Digest of the draft.")
    reference: str | None = Field(None, description="registry/repository, with or without a tag.")
    login: bool = Field(False, description="Credentials lie at REGISTRY_LOGIN.")
    plain_http: bool = False
    object_store: BucketConfig | None = None


class StoredDraft(Model):
    """A draft in an object store."""

    address: str = Field(description="s3://BUCKET/PREFIX/sha256-…: the folder, named after its manifest.")
    digest: str = Field(description="Of the manifest.")
    provenance: str = Field(description="Address of the statement of where the draft comes from.")


class PublishResult(Model):
    """What Publish pushed: ``status.artifact.published`` and ``.stored``."""

    reference: str | None = Field(
        None, description="registry/repository@digest: what others pull, verify and sign; none without a registry."
    )
    digest: str | None = Field(None, description="Of the manifest there.")
    provenance: str | None = Field(
        None,
        description="Digest of the manifest there that says where the draft comes from; it refers to the other one.",
    )
    stored: StoredDraft | None = Field(None, description="Where it is in an object store.")
    bytes: int

    @property
    def subject(self) -> tuple[str, str]:
        """Name and sha256 of the manifest that others verify first: the registry's, or else the store's."""
        if self.reference is not None:
            name, _, digest = self.reference.partition("@sha256:")
            return name, digest
        if self.stored is None:
            raise ValueError("nothing was pushed")
        return f"{self.stored.address}/{MANIFEST}", self.stored.digest.removeprefix("sha256:")

    def told(self) -> str:
        """Where the draft is now, and where it says where it comes from."""
        oci = [f"{self.reference}, its provenance {self.provenance} beside it"] if self.reference else []
        stored = [f"{self.stored.address}, its provenance in {self.stored.provenance}"] if self.stored else []
        return "; ".join([*oci, *stored])
