"""What a stage is, and what its Job gets of one object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
    """What Extract, Train and Convert are made from."""

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

    def upstream(self, stage: StageName) -> Link:
        return self.before[stage]


#: What a stage is made from.
From = TypeVar("From")


@dataclass(frozen=True)
class Stage(Generic[From]):
    """One stage.

    Attributes:
        name: of it.
        version: raised when the same inputs would give another output.
        inputs: what determines its output.
        config: what its Job is to do, under this key.
        artifact: where its output will lie, under this key; of Clean, what it removes.
    """

    name: StageName
    version: int
    inputs: Callable[[From], dict[str, Any]]
    config: Callable[[From, str], JobConfig]
    artifact: Callable[[From, str], str | None] = lambda _made_from, _key: None

    def link(self, made_from: From, attempt: str | None = None) -> Link:
        """This stage of one object; ``attempt`` is the token of a retry that made a finished stage run again."""
        key = key_of(f"{self.name}/{self.version}", self.inputs(made_from) | {"attempt": attempt})
        return Link(self.name, key, self.config(made_from, key), self.artifact(made_from, key), attempt)


def drafts_folder(obj: Eagle3Draft, stage: StageName, key: str) -> str:
    """Where a stage's artifact lies with the drafts."""
    return str(folder(DRAFTS_ROOT, obj.metadata.namespace, obj.metadata.name, stage, key))


def features_folder(obj: Eagle3Draft, stage: StageName, key: str) -> str:
    """Where what a stage makes lies with the features."""
    return str(folder(FEATURES_ROOT, obj.metadata.namespace, obj.metadata.name, stage, key))
