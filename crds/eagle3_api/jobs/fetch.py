"""Fetch: from a hub or a bucket to the models root."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.jobs.contract import ObjectReference


class HubSource(Model):
    """A repository of a hub, and where it goes."""

    repository: str
    revision: str | None = Field(None, description="Branch, tag or commit; the default branch without.")
    key: str = Field(description="Of this source alone: a new data set does not fetch the target again.")
    folder: str = Field(description="The artifact's folder, under the models root.")


class HubDataset(HubSource):
    """A data set of a hub."""

    split: str = "train"
    files: str | None = None


class StoredSource(Model):
    """A draft that was published in an object store, and where it goes.

    Where the store is and what lets us in is in the environment, as ``AWS_*``.
    """

    address: str = Field(description="s3://BUCKET/PREFIX/sha256-…")
    key: str
    folder: str = Field(description="The artifact's folder, under the models root.")


class FetchConfig(Model):
    """Fetch: from a hub or a bucket to the models root."""

    stage: Literal["fetch"] = "fetch"
    owner: ObjectReference
    key: str
    target: HubSource | None = None
    dataset: HubDataset | None = None
    draft: HubSource | None = Field(None, description="To be adopted.")
    stored: StoredSource | None = Field(None, description="Likewise, from a bucket.")


class Fetched(Model):
    """What was fetched of one source."""

    repository: str = Field(description="The repository, or the address in a bucket.")
    commit: str = Field(description="The commit, or the digest of the manifest in the bucket.")
    path: str = Field(description="Path of the target's or the draft's folder, or of the data's file, as pods see it.")
    files: int
    bytes: int


class FetchResult(Model):
    """What Fetch has."""

    target: Fetched | None = None
    dataset: Fetched | None = None
    draft: Fetched | None = None

    @property
    def sources(self) -> list[Fetched]:
        """Whatever was."""
        return [one for one in (self.target, self.dataset, self.draft) if one is not None]
