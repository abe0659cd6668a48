"""Train: hidden states to a draft, its vocabulary and its measure."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.jobs.contract import ObjectReference
from eagle3_api.jobs.storage import ObjectStoreConfig
from eagle3_api.spec.draft import Attention, Variant
from eagle3_api.spec.train import EarlyStop, Loss, Precision, Sharding, WeightsAndBiases

#: Where a training's pod answers /metrics.
METRICS_PORT = 9400
#: Where the pods of a training on several nodes meet, in the first of them.
MEETING_PORT = 29400

#: GPUs that compute for a smaller share of the time than this are warned of.
BUSY = 0.8


def idle_warning(busy: float) -> str:
    """What is wrong where GPUs wait for each other, as of ``TrainResult.busy``; empty where they hardly do."""
    if busy >= BUSY:
        return ""
    return (
        f"the GPUs stand idle for {1 - busy:.0%} of the time: a step has too few conversations, which are dealt whole. Raise "
        "train.tokensPerStep, to about four conversations a GPU, or train on fewer GPUs"
    )


class TrainConfig(Model):
    """Train: hidden states to a draft, its vocabulary and its measure."""

    stage: Literal["train"] = "train"
    owner: ObjectReference
    key: str
    folder: str = Field(description="The artifact's folder, under the drafts root.")
    scratch: str = Field(description="Resumable checkpoints, under the features root.")
    features: str = Field(description="Extract's artifact.")
    features_key: str
    object_store: ObjectStoreConfig | None = None
    target: str
    target_digest: str
    layers: list[int]
    vocabulary_size: int
    depth: int = Field(1, description="Decoder layers of the draft.")
    variant: Variant = "EAGLE-3"
    attention: Attention = "Heads"
    context_length: int | None = Field(
        None, description="That is served: the draft's positions where the target does not say its own."
    )
    init_from: str | None = Field(None, description="A draft to go on from, with its own vocabulary and architecture.")
    init_digest: str | None = None
    epochs: int
    tokens_per_step: int
    tokens_per_pass: int | None = Field(None, description="Of a rank; all of its share where it is left out.")
    learning_rate: float
    unroll_steps: int
    precision: Precision = "bf16"
    loss: Loss = Field(default_factory=Loss, description="As the object says.")
    deterministic: bool = Field(False, description="As the object says.")
    seed: int
    evaluations_per_epoch: int = 1
    trainer: list[str] | None = Field(None, description="The command of somebody else's trainer, which trains instead.")
    early_stop: EarlyStop | None = Field(None, description="As the object says.")
    tensor_board: bool = False
    weights_and_biases: WeightsAndBiases | None = Field(None, description="As the object says.")
    metrics_port: int | None = Field(None, description="Where to answer /metrics, if at all.")
    checkpoint_interval: float = Field(description="Seconds.")
    stall_timeout: float = Field(1800.0, description="Seconds in which a checkpoint must be written.")
    processes: int = Field(1, description="Ranks of each pod: its GPUs, or 1 on a CPU.")
    sharding: Sharding = Field("Full", description="As the object says.")
    hosts: list[str] = Field(
        default_factory=list,
        description="Names of the pods that train together, in the order of their index; empty where there is one.",
    )
    meeting_port: int = Field(MEETING_PORT, description="Of the first of them.")
    grace_seconds: int = Field(
        30, description="The pod's termination grace: an interrupted training writes its checkpoint within it."
    )


class TrainResult(Model):
    """What Train reached, on the held-out conversations."""

    steps: int
    tokens: int
    loss: float
    accuracy: list[float] = Field(
        description="Share of right proposals at each unroll step, over supervised positions."
    )
    prefix_survival: list[float] = Field(
        default_factory=list, description="Share of chains that are right in all unroll steps up to each."
    )
    expected_accept_lengths: list[float] = Field(
        description="By replay, the target's own token counted: the i-th when a server drafts i + 1 steps."
    )
    held_out: int
    vocabulary_size: int
    vocabulary_coverage: float = Field(description="Share of supervised tokens inside the draft vocabulary.")
    special_tokens: int = Field(0, description="That the target's tokenizer names.")
    special_tokens_inside: int = Field(
        0, description="Of them, those in the draft vocabulary: all that a chat template or a conversation has."
    )
    tokens_per_second: float
    waiting: float = Field(0.0, description="Share of the time of all steps that went by waiting for data.")
    measuring_seconds: float = Field(
        0.0, description="Spent on the held-out conversations, in all evaluations together."
    )
    busy: float = Field(
        1.0,
        description="Share of all GPUs' time in which they compute, by the tokens of each step's conversations: a step takes as "
        "long as the GPU that has most of them.",
    )
    peak_memory_bytes: int = Field(0, description="On the GPU that took most; of a process, on a CPU.")
    best_step: int = Field(
        0,
        description="After which step the published weights were measured best; 0 where they are those that the training began with.",
    )
    resumed: int = Field(0, description="How often the training was resumed.")
    passed_over: int = Field(0, description="Checkpoints that could not be gone on from; the report names them.")

    @property
    def warning(self) -> str:
        """What is wrong with it all the same; or empty."""
        return "; ".join(filter(None, (self._vain, idle_warning(self.busy))))

    @property
    def _vain(self) -> str:
        """That no step made the draft better; empty where one did, and where there were none."""
        if self.best_step or not self.steps:
            return ""
        return (
            "no step made the draft of draft.initFrom better, which is published as it was. Lower train.learningRate, or give "
            "conversations that are more like your requests"
        )
