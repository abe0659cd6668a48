"""``extract``: how hidden states are taken and kept."""

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.spec.duration import Period
from eagle3_api.spec.placement import STAGE_PLACEMENT, Placement


class Extract(Model):
    """Extraction of the target's hidden states over the conversations."""

    gpus: int = Field(1, ge=0, le=64, description="GPUs of one pod.")
    shards: int = Field(
        1,
        ge=1,
        le=64,
        description="Pods that extract side by side, each with gpus GPUs. You may change it at any time; finished parts are reused.",
    )
    dtype: FeatureDtype = Field(
        "bf16",
        description="How hidden states are stored: bf16 (8 x hidden bytes per token), fp8 with a scale for each row "
        "(half of that; values keep 4 significant bits), or fp32 for a target in fp32.",
    )
    teacher: TeacherKind = Field(
        "LastState",
        description="What is stored of the target's output. LastState: its last hidden state, from which training "
        "computes the probability of every token that the draft knows. TopK: the probabilities of the 64 "
        "most likely tokens only, which with fp8 takes 3 instead of 4 x hidden bytes per token and leaves "
        "out what the other tokens would add.",
    )
    retain: bool = Field(False, description="Keep the features when training has finished.")
    stall_timeout: Period = Field(
        "30m", description="A Job that prints no progress line for this long is ended and resumed."
    )
    placement: Placement | None = Field(None, description=STAGE_PLACEMENT)
