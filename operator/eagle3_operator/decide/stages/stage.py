"""What a stage is, and what its Job gets of one object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_api.artifacts import DRAFTS_ROOT, FEATURES_ROOT, folder
from eagle3_api.jobs import Facts, JobConfig, StageName
from eagle3_api.spec import Eagle3Draft, Eagle3DraftSpec
from eagle3_operator.decide.keys import key_of


@dataclass(frozen=True)
class Link:
    """A stage of one object's chain: what its Job is to do, under which key, and where its artifact will lie."""

    stage: StageName
    key: str
    config: JobConfig
    artifact: str | None
    #: Token of the retry that is in the key.
    attempt: str | None = None


@dataclass(frozen=True)
class Context:
    """What a stage's inputs and configuration are made of."""

    obj: Eagle3Draft
    facts: Facts
    #: Keys and folders of the stages before, by name.
    before: Mapping[StageName, Link]
    #: Bytes of the features claim.
    features_capacity: int | None = None

    @property
    def spec(self) -> Eagle3DraftSpec:
        return self.obj.spec

    @property
    def target(self) -> str:
        """Where pods see the target."""
        return self.facts.target_folder(self.spec.target.model)

    def folder(self, stage: StageName, key: str) -> str:
        root = FEATURES_ROOT if stage is StageName.EXTRACT else DRAFTS_ROOT
        return str(folder(root, self.obj.metadata.namespace, self.obj.metadata.name, stage, key))

    def upstream(self, stage: StageName) -> Link:
        return self.before[stage]


@dataclass(frozen=True)
class Stage:
    """One stage."""

    name: StageName
    #: Raised when the same inputs would give another output.
    version: int
    inputs: Callable[[Context], dict[str, Any]]
    config: Callable[[Context, str], JobConfig]

    def link(self, context: Context, attempt: str | None) -> Link:
        """This stage for one object; ``attempt`` is the token of a retry that made a finished stage run again."""
        key = key_of(f"{self.name}/{self.version}", self.inputs(context) | {"attempt": attempt})
        return Link(self.name, key, self.config(context, key), context.folder(self.name, key), attempt)
