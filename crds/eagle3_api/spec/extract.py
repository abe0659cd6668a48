"""``extract``: how hidden states are taken and kept."""

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.spec.duration import Period
from eagle3_api.spec.placement import STAGE_PLACEMENT, Placement


class Extract(Model):
    """Hidden states of the target over the conversations."""

    gpus: int = Field(1, ge=0, le=64, description="GPUs of a pod.")
    shards: int = Field(
        1,
        ge=1,
        le=64,
        description="Pods that extract side by side, each with gpus GPUs. You may change it at any time; finished parts are reused.",
    )
    dtype: FeatureDtype = Field(
        "bf16",
        description="How hidden states are stored: bf16 (8 bytes x hidden a token), fp8 with a scale for each row (half of "
        "that, rounded to 4 bits), or fp32 for a target in fp32.",
    )
    teacher: TeacherKind = Field(
        "LastState",
        description="What is stored of the target's answers: its last hidden state, from which training makes the "
        "probability of every token that the draft knows, or the probabilities of the 64 most likely tokens alone (TopK), "
        "which with fp8 takes 3 instead of 4 bytes x hidden a token and leaves out what the others would add.",
    )
    retain: bool = Field(False, description="Keep the features when training has finished.")
    stall_timeout: Period = Field(
        "30m", description="Without a progress line for so long the Job is ended and resumed."
    )
    placement: Placement | None = Field(None, description=STAGE_PLACEMENT)
