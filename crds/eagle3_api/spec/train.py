"""``train``: how the draft learns."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from eagle3_api.base import Model
from eagle3_api.spec.duration import Period
from eagle3_api.spec.placement import STAGE_PLACEMENT, Placement
from eagle3_api.spec.schema import rule, rules, section
from eagle3_api.spec.strings import Text

#: Of the matrix products of training.
Precision = Literal["bf16", "fp8"]

#: Among which GPUs of a training one copy of the draft is cut up.
Sharding = Literal["Full", "Hybrid", "Replicate"]


class EarlyStop(Model):
    """When a training has learned what there is to learn."""

    patience: int = Field(
        3, ge=1, le=1000, description="Training ends after this many evaluations in a row without an improvement."
    )
    min_improvement: float = Field(
        0.01, gt=0, le=10, description="Increase of the expected accept length that counts as an improvement."
    )


class WeightsAndBiases(Model):
    """A project of Weights & Biases. Its key comes as WANDB_API_KEY through placement.env, from a Secret."""

    project: Text = Field(description="The project's name.")
    entity: Text | None = Field(None, description="The W&B user or team. Default the API key's owner.")


class Logging(Model):
    """Who else is told how the training goes. The pod's /metrics is there without any of it."""

    tensor_board: bool = Field(
        False, description="Write event files into the artifact's folder; the image needs the package tensorboard."
    )
    weights_and_biases: WeightsAndBiases | None = Field(
        None, description="Log to Weights & Biases; the image needs the package wandb."
    )


class Loss(Model):
    """What training minimises."""

    kind: Literal["CrossEntropy", "KL", "LKAlpha", "LKLambda"] = Field(
        "CrossEntropy",
        description="CrossEntropy with the target's distribution, as in EAGLE-3. KL differs from it by a constant: it "
        "has the same gradient, and its value says how far there is to go. LKAlpha is the negative "
        "logarithm of the probability that a proposal is accepted; LKLambda moves from KL to that "
        "probability itself as it rises. Both are for drafts that are verified by sampling rather than "
        "greedily.",
    )
    eta: float = Field(
        1.0,
        ge=0,
        le=100,
        description="For LKLambda: how soon it moves from KL to acceptance. KL has the weight exp(-eta x acceptance), "
        "acceptance the rest.",
    )
    decay: float = Field(
        0.8, gt=0, le=1, description="Weight of each unroll step relative to the one before; 1 weighs all alike."
    )
    normalised: bool = Field(
        False,
        description="Divide by the sum of the steps' weights, so that unrollSteps and decay change neither the size "
        "of the loss nor what a learning rate means.",
    )


class Trainer(Model):
    """A trainer of somebody else's, which keeps the contract in docs/trainers.md."""

    image: Text = Field(
        description="The trainer's image. Our code runs in it too, so it must have Python 3.11 or newer, torch, "
        "transformers, safetensors, pydantic and prometheus-client."
    )
    command: list[Annotated[str, StringConstraints(min_length=1, max_length=4096)]] = Field(
        min_length=1,
        max_length=64,
        description="What to run, one item per word. It leaves a checkpoint in $EAGLE3_OUTPUT.",
    )
    arguments: list[Annotated[str, StringConstraints(min_length=1, max_length=4096)]] | None = Field(
        None, max_length=64, description="Further arguments of the command, one item per word."
    )


class Train(Model):
    """Training of the draft with FSDP2 and training-time test."""

    model_config = rules(
        rule(
            "self.precision != 'fp8' || self.gpus > 0",
            "precision: fp8 needs GPUs that multiply FP8 (Ada, Hopper or newer), and train.gpus is 0; leave it at bf16",
        ),
        rule(
            "!has(self.trainer) || self.nodes == 1",
            "trainer: one pod runs it; set nodes to 1",
        ),
        rule(
            "self.sharding != 'Hybrid' || self.nodes > 1",
            "sharding: Hybrid keeps one copy of the draft on each node, and train.nodes is 1; leave it at Full",
        ),
        rule(
            "self.sharding != 'Hybrid' || self.gpus > 1",
            "sharding: Hybrid cuts a node's copy up among its GPUs, and train.gpus is at most 1; set it to Replicate",
        ),
        rule(
            "has(self.trainer) || !has(self.earlyStop) || self.earlyStop.patience + 1 < self.epochs * self.evaluationsPerEpoch",
            "earlyStop could never end this training: it takes more than earlyStop.patience + 1 evaluations, and "
            "there are epochs x evaluationsPerEpoch; raise evaluationsPerEpoch or epochs, or lower patience",
        ),
    )

    gpus: int = Field(1, ge=0, le=64, description="GPUs of one pod, one process each; 0 trains on the CPU.")
    nodes: int = Field(
        1,
        ge=1,
        le=64,
        description="Pods that train together, each with gpus GPUs. Both storage claims must then be ReadWriteMany.",
    )
    sharding: Sharding = Field(
        "Full",
        description="How the draft's weights, gradients and optimizer state are placed on the GPUs. Full shards them "
        "over all GPUs. Hybrid keeps a copy on each node, sharded over its GPUs, so that only gradients "
        "travel between nodes. Replicate keeps a whole copy on each GPU, for small drafts. The training "
        "is the same either way, up to rounding.",
    )
    epochs: int = Field(3, ge=1, le=1000, description="Passes over the conversations.")
    tokens_per_step: int = Field(8192, ge=16, le=16_777_216, description="Tokens of one optimizer step, over all GPUs.")
    tokens_per_pass: int | None = Field(
        None,
        ge=16,
        le=16_777_216,
        description="Tokens that a GPU computes at a time. If its share of a step is larger, it takes several passes, "
        "whose gradients are added up: less memory, the same training. Default the whole share.",
    )
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Peak learning rate, after the warm-up.")
    unroll_steps: int = Field(
        7, ge=1, le=16, description="Steps of training-time test: how far ahead the draft learns from its own output."
    )
    loss: Loss = section(Loss)
    precision: Precision = Field(
        "bf16",
        description="Precision of the matrix products: bf16, or fp8 for those of the unroll steps, which is about a "
        "quarter faster on an H200 and needs Ada or newer. Weights, their gradients and the draft's "
        "measurements are those of bf16 either way.",
    )
    deterministic: bool = Field(
        False,
        description="Add up in a fixed order on GPUs too, so that an interrupted training reaches the same bits as "
        "one that was not, on the same number of GPUs of one kind. A few per cent slower where "
        "conversations are about equally long. On a CPU it is always so.",
    )
    seed: int = Field(
        0, ge=0, le=2147483647, description="Random seed of the initial weights and of the order of samples."
    )
    evaluations_per_epoch: int = Field(
        1,
        ge=1,
        le=100,
        description="How often per epoch the draft is measured on the held-out conversations. The best draft, by the "
        "mean of its expected accept lengths with 1 to unrollSteps draft steps, becomes the artifact.",
    )
    early_stop: EarlyStop | None = Field(
        None,
        description="End the training when the expected accept length no longer grows; {} uses the defaults, which "
        "need evaluationsPerEpoch 2 or more. Training then ends at a higher learning rate than with fewer "
        "epochs.",
    )
    trainer: Trainer | None = Field(
        None,
        description="Train with another trainer instead. The checkpoint that it leaves is read, measured and checked "
        "like any draft.",
    )
    logging: Logging | None = Field(None, description="TensorBoard and Weights & Biases.")
    checkpoint_interval: Period = Field("10m", description="How often a resumable checkpoint is written, at least.")
    stall_timeout: Period = Field(
        "30m",
        description="A Job that prints no progress line for this long is ended and resumed. A training whose "
        "checkpoint takes longer to write ends too, and its Job tries again.",
    )
    placement: Placement | None = Field(None, description=STAGE_PLACEMENT)
