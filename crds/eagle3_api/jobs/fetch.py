"""Fetch: from a hub to the models root."""

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


class FetchConfig(Model):
    """Fetch: from a hub to the models root."""

    stage: Literal["fetch"] = "fetch"
    owner: ObjectReference
    key: str
    target: HubSource | None = None
    dataset: HubDataset | None = None
    draft: HubSource | None = Field(None, description="To be adopted.")


class Fetched(Model):
    """What was fetched of one source."""

    repository: str
    commit: str
    path: str = Field(description="Of the target's or the draft's folder, or of the data's file, as pods see it.")
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
