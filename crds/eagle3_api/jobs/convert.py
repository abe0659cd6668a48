"""Convert: a trained or adopted draft to what SGLang loads, checked."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.jobs.contract import ObjectReference
from eagle3_api.jobs.data import DataConfig


class ConvertConfig(Model):
    """Convert: a trained or adopted draft to what SGLang loads, checked."""

    stage: Literal["convert"] = "convert"
    owner: ObjectReference
    key: str
    folder: str = Field(description="The artifact's folder, under the drafts root.")
    trained: str | None = Field(None, description="Train's artifact, or")
    trained_key: str | None = None
    checkpoint: str | None = Field(None, description="an adopted checkpoint's folder.")
    checkpoint_digest: str | None = None
    data: DataConfig | None = Field(
        None, description="For the prompts of an adopted checkpoint; built-in ones without."
    )
    target: str
    target_digest: str
    trust_remote_code: bool = Field(False, description="For the target's tokenizer, which renders prompts.")
    layers: list[int] = Field(description="What the server must capture; an adopted checkpoint must say the same.")
    sglang_version: str
    context_length: int
    arguments: list[str] = Field(
        default_factory=list,
        description="serve.arguments, for the draft's type and for the engine that measures an adopted checkpoint.",
    )
    tensor_parallel_size: int = Field(1, description="Of that engine.")
    memory_bytes: int | None = Field(None, description="What the Job asks the scheduler for, by the draft's size.")


class ConvertResult(Model):
    """What Convert published: ``status.artifact``."""

    digest: str = Field(description="sha256 over the weights and the config: the draft's identity.")
    parameters: int
    bytes: int
    layers: list[int]
    capture_ids: list[int]
    draft_vocabulary_size: int
    prompts: int
    prompts_digest: str
    expected_accept_lengths: list[float] | None = Field(
        None, description="As trained; of an adopted checkpoint as measured here, on the target's own answers."
    )
    accuracy: list[float] | None = Field(
        None,
        description="Of the converted draft's own forward: share of right proposals at each step, on the held-out features that "
        "came with a trained draft, or on the target's own answers.",
    )
    equal_proposals: list[float] | None = Field(
        None,
        description="Of a trained draft, at each step: share of the proposals that are those which its trainer recorded at the same "
        "positions. None where the trainer was of a version that recorded none.",
    )
    chance: float | None = Field(
        None, description="The first step's accuracy of a draft that knew nothing of its target."
    )
    parity_error: float | None = Field(
        None,
        description="Largest difference of a weight, converted against trained: what rounding to the served type took.",
    )
    warnings: list[str] = Field(default_factory=list, max_length=4)
