"""Extract: conversations to hidden states."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.jobs.contract import ObjectReference
from eagle3_api.jobs.data import DataConfig, SamplingDefaults
from eagle3_api.jobs.storage import ObjectStoreConfig

#: Share of the target's answers of which it is told that a length cut them.
MANY_CUT = 0.2


def cut_warning(answers: int, cut: int) -> str:
    """What is wrong where a length cut many of the target's answers; empty where it did not."""
    if cut <= MANY_CUT * answers:
        return ""
    return (
        f"{cut / answers:.0%} of the answers are cut by a length, and what a cut one would have said, often all behind its "
        "reasoning, is not learned: raise data.regenerate.maxTokens, and data.maxLength with it"
    )


class ExtractConfig(Model):
    """Extract: conversations to hidden states."""

    stage: Literal["extract"] = "extract"
    owner: ObjectReference
    key: str
    folder: str = Field(description="The artifact's folder, under the features root.")
    target: str
    target_digest: str
    target_revision: str | None = Field(None, description="Commit that the target was fetched at, for the record.")
    trust_remote_code: bool = False
    data: DataConfig
    data_digest: str
    object_store: ObjectStoreConfig | None = None
    layers: list[int]
    dtype: FeatureDtype
    teacher: TeacherKind = "LastState"
    sglang_version: str
    arguments: list[str] = Field(default_factory=list, description="serve.arguments, which reach the engine too.")
    tensor_parallel_size: int = 1
    shards: int = Field(1, description="Pods that share the parts of the data; which one a pod is, its index says.")
    features_capacity: int | None = Field(None, description="Bytes of the features claim, to set against the estimate.")
    end_tokens: list[int] | None = Field(None, description="With which the target ends an answer of its own.")
    sampling_defaults: SamplingDefaults | None = Field(None, description="By which its answers are drawn, too.")


class ExtractResult(Model):
    """What Extract made."""

    conversations: int
    held_out: int
    tokens: int
    supervised_tokens: int
    bytes: int
    dropped: dict[str, int] = Field(default_factory=dict, description="Conversations left out, by why.")
    cut: int = Field(0, description="Conversations that are longer than data.maxLength and were cut there.")
    lost_tokens: int = Field(
        0,
        description="Tokens of them beyond it. Where the target answers, what it was not asked any more is in no number.",
    )
    tokens_per_second: float
    engine: str = Field("", description="What ran the target, and its version.")
    parts: int = Field(1, description="Finished parts of the data.")
    whole: bool = Field(True, description="These are all parts; if not, other pods were still at work.")
    answers: int | None = Field(None, description="That the target gave itself.")
    cut_answers: int | None = Field(None, description="Of them, those that a length cut: they have no end.")

    @property
    def warning(self) -> str:
        """What is wrong with it all the same; or empty."""
        return cut_warning(self.answers or 0, self.cut_answers or 0)
