"""``Eagle3Draft.spec``: what a user writes. Sections mirror the stages.

The CustomResourceDefinition is generated from these models (``crd``): descriptions become ``kubectl explain``, bounds
become the schema, constant defaults become the API server's defaults, and ``rules`` become CEL rules whose messages say
what to do. Values that depend on the target (layers, digests, estimates) have no default here: Inspect derives them and
reports them in ``status.resolved``.
"""

import json
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from eagle3_api.affinity import Affinity
from eagle3_api.base import Model
from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.references import PATTERN
from eagle3_api.schema import BY_NAME, Label, Name, Text, rule, rules, section
from eagle3_api.sglang import OWNED_FLAGS, UNSUPPORTED_FLAGS

Path = Annotated[str, StringConstraints(min_length=2, max_length=512, pattern=r"^/[^\x00]*$")]
#: ``organisation/name`` of a hub.
_REPOSITORY = r"[A-Za-z0-9][-A-Za-z0-9._]{0,95}/[A-Za-z0-9][-A-Za-z0-9._]{0,95}"
Repository = Annotated[str, StringConstraints(max_length=193, pattern=f"^{_REPOSITORY}$")]
PathOrRepository = Annotated[
    str, StringConstraints(min_length=2, max_length=512, pattern=rf"^(/[^\x00]*|{_REPOSITORY})$")
]
HubRevision = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$")]
Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$", max_length=32)]
#: Also the value of a label.
QueueName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Resource = Annotated[str, StringConstraints(pattern=r"^[-a-z0-9.]+/[-a-zA-Z0-9._]+$", max_length=253)]
#: ``0s`` is one of them.
Duration = Annotated[str, StringConstraints(pattern=r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?$", min_length=2, max_length=16)]
#: A duration that is not zero.
Period = Annotated[
    str,
    StringConstraints(pattern=r"^([1-9][0-9]*h)?([1-9][0-9]*m)?([1-9][0-9]*s)?$", min_length=2, max_length=16),
]


# ---------------------------------------------------------------------------------------------------------- pods


class EnvironmentVariable(Model):
    """An environment variable of the pod's main container: a value, or a key of a Secret."""

    model_config = rules(
        rule("has(self.value) != has(self.secretKeyRef)", "give either value or secretKeyRef"),
    )

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)] = Field(
        description="The variable's name."
    )
    value: Annotated[str, StringConstraints(max_length=4096)] | None = Field(None, description="Its value, verbatim.")
    secret_key_ref: "SecretKey | None" = Field(None, description="A key of a Secret in the object's namespace.")


class SecretKey(Model):
    """A key of a Secret; the kubelet reads it, the operator never does."""

    name: Name = Field(description="The Secret's name.")
    key: Text = Field(description="The key whose value is taken.")


class Toleration(Model):
    """A taint that the pod tolerates, as in a pod's own ``tolerations``."""

    key: Label | None = Field(None, description="The taint's key; without one, operator Exists tolerates every taint.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="Equal compares the value, Exists does not.")
    value: Label | None = Field(None, description="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="The taint's effect; all of them without."
    )


class ClaimSource(Model):
    """A PersistentVolumeClaim of the object's namespace."""

    claim_name: Name = Field(description="The claim's name.")
    read_only: bool = Field(False, description="Mount it read-only; a target's and the data's should be.")


class Volume(Model):
    """A claim mounted at the same path in every pod, so that a path in the object means the same file everywhere."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=50)] = Field(
        description="The volume's name in the pods."
    )
    mount_path: Path = Field(description="Where the pods see it; target.model and the other paths begin with it.")
    sub_path: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        None, description="A folder of the claim to mount instead of its root."
    )
    persistent_volume_claim: ClaimSource


class Placement(Model):
    """Where pods run and with what. A typed allow-list: it cannot say hostPath or privileged."""

    model_config = rules(
        rule(
            "!has(self.volumes) || self.volumes.all(v, !(v.mountPath + '/').startsWith('/eagle3/'))",
            "mountPath: /eagle3 is where the operator mounts its own volumes; choose another path",
        ),
        rule(
            "!has(self.volumes) || self.volumes.all(v, !(v.mountPath in ['/tmp', '/dev/shm']) && !v.name.startsWith('eagle3-'))",
            "volumes: /tmp, /dev/shm and names that begin with eagle3- are the operator's own; choose others",
        ),
        rule(
            "!has(self.volumes) || self.volumes.all(v, self.volumes.exists_one(w, w.mountPath == v.mountPath))",
            "volumes: two of them have the same mountPath",
        ),
    )

    node_selector: dict[str, Label] | None = Field(
        None,
        description="Labels that the node must carry, verbatim (nvidia.com/gpu.product: NVIDIA-H200).",
        json_schema_extra={"maxProperties": 32},
    )
    tolerations: list[Toleration] | None = Field(
        None, max_length=32, description="Taints that the pods tolerate; GPU nodes often carry nvidia.com/gpu."
    )
    affinity: Affinity | None = Field(
        None, description="Nodes, and other pods to be near to or far from, where labels of one node are not enough."
    )
    volumes: list[Volume] | None = Field(
        None,
        max_length=16,
        description="The claims that hold the target, the data and adopted checkpoints.",
        json_schema_extra=BY_NAME,
    )
    env: list[EnvironmentVariable] | None = Field(
        None, max_length=64, description="Environment variables of the main container.", json_schema_extra=BY_NAME
    )
    cpu: Quantity | None = Field(
        None, description="CPU request of servers, extraction and training; the small Jobs take little and ignore it."
    )
    memory: Quantity | None = Field(
        None,
        description="Memory request and limit of servers, extraction and training; the small Jobs take little and ignore it.",
    )
    gpu_resource: Resource | None = Field(
        None, description="The name of the GPU resource (default nvidia.com/gpu); MIG's mixed strategy has others."
    )
    shm_size: Quantity | None = Field(
        None, description="Size of /dev/shm, a memory volume that counts against memory. Default 1Gi; NCCL wants more."
    )
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=3600)] | None = Field(
        None, description="Seconds to end in: a server drains its requests, a trainer writes a checkpoint."
    )
    priority_class_name: Name | None = Field(None, description="A PriorityClass of the cluster.")
    runtime_class_name: Name | None = Field(None, description="A RuntimeClass of the cluster (nvidia, on some).")
    run_as_user: Annotated[int, Field(ge=1, le=2147483647)] | None = Field(
        None, description="User that the containers run as. Default 65532."
    )
    run_as_group: Annotated[int, Field(ge=1, le=2147483647)] | None = Field(
        None, description="Group that the containers run as. Default 65532."
    )
    fs_group: Annotated[int, Field(ge=1, le=2147483647)] | None = Field(
        None, description="Group that owns the volumes, where their driver can do that. Default 65532."
    )
    supplemental_groups: list[Annotated[int, Field(ge=1, le=2147483647)]] | None = Field(
        None, max_length=16, description="Further groups, for volumes whose files belong to one."
    )
    service_account_name: Name | None = Field(
        None,
        description="A service account that the chart's values allow (allowedServiceAccounts), for what a cluster ties to it: "
        "access to a cloud's storage, a policy. Its token is not mounted.",
    )
    image_pull_secrets: list[Name] | None = Field(
        None, max_length=8, description="Secrets of the namespace that the kubelet pulls images with."
    )

    def over(self, base: "Placement") -> "Placement":
        """This placement on top of a more general one: a field that is set here wins as a whole."""
        return Placement.model_validate(base.to_json() | self.to_json())


# ------------------------------------------------------------------------------------------------------ sections

STAGE_PLACEMENT = "For these pods only: a field that is set here replaces the one of spec.placement."


class Target(Model):
    """The target model: the large model that is served."""

    model_config = rules(
        rule(
            "!has(self.revision) || !self.model.startsWith('/')",
            "target.revision is one of a hub's repository: a path on a volume has none",
        ),
    )

    model: PathOrRepository = Field(
        description="Folder of the target's checkpoint (config.json, safetensors, tokenizer) on a volume, or a repository of "
        "a hub (organisation/name), which is fetched once into storage.models.",
    )
    revision: HubRevision | None = Field(
        None,
        description="Branch, tag or commit of the repository; the default branch without. It is resolved once; retry fetch "
        "resolves it anew.",
    )
    tensor_parallel_size: int = Field(1, ge=1, le=64, description="GPUs that one server spreads the target over.")
    trust_remote_code: bool = Field(False, description="Let the target's own Python code run (Kimi-K2.5 needs it).")

    @property
    def repository(self) -> str | None:
        """The hub's repository, or None where the target is a path."""
        return None if self.model.startswith("/") else self.model


class Regenerate(Model):
    """How the target answers the data's questions itself: a draft learns best from what the target really says."""

    enabled: bool = Field(
        True, description="Whether it does. Without this section it does not, unless the data is prompts."
    )
    temperature: float = Field(
        0.0, ge=0, le=2, description="Of its answers; 0 takes the likeliest token. Best what your clients ask for."
    )
    top_p: float = Field(1.0, gt=0, le=1, description="Share of the probability that an answer's token is drawn from.")
    max_tokens: int = Field(
        1024,
        ge=1,
        le=1_048_576,
        description="Tokens of an answer, reasoning included. One that is cut is learned from, without an end.",
    )
    seed: int = Field(0, ge=0, le=2147483647, description="Of what is drawn at a temperature above 0.")


class Dataset(Model):
    """A data set of a hub: its JSON Lines and Parquet files, in the forms that conversations may have."""

    repository: Repository = Field(description="organisation/name.")
    revision: HubRevision | None = Field(
        None,
        description="Branch, tag or commit; the default branch without. It is resolved once; retry fetch resolves it anew.",
    )
    split: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+$", max_length=64)] = Field(
        "train",
        description="The files with this word in their path; where no path names a split, all of them are train.",
    )
    files: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = Field(
        None, description="A pattern of paths (data/*.parquet) that decides instead of split."
    )


class Data(Model):
    """The conversations that the draft learns from."""

    model_config = rules(
        rule(
            "[has(self.conversations), has(self.prompts), has(self.dataset)].exists_one(given, given)",
            "give one of data.conversations, data.prompts and data.dataset: each is a whole set of data",
        ),
        rule(
            "!has(self.prompts) || !has(self.regenerate) || self.regenerate.enabled",
            "data.prompts have no answers: the target must give them, so regenerate.enabled cannot be false",
        ),
    )

    conversations: Path | None = Field(
        None,
        description='JSON Lines on a volume, one conversation a line: {"messages": [{"role": ..., "content": ...}, ...]}, or '
        'ShareGPT\'s {"conversations": [{"from": ..., "value": ...}, ...]}; or Parquet with such a column (needs pyarrow).',
    )
    prompts: Path | None = Field(
        None,
        description='Questions that the target answers itself: JSON Lines of {"prompt": text}, or conversations that end with '
        "a user's turn; or Parquet with such a column.",
    )
    dataset: Dataset | None = Field(None, description="A data set of a hub, fetched once into storage.models.")
    regenerate: Regenerate | None = Field(
        None,
        description="The target answers every user's turn itself, in order; the answers in the data are not looked at. Implied "
        "by prompts.",
    )
    max_samples: int | None = Field(None, ge=1, le=100_000_000, description="Use at most so many conversations.")
    max_length: int = Field(2048, ge=16, le=1_048_576, description="Tokens of a conversation; longer ones are cut.")
    expected_tokens: int | None = Field(
        None,
        ge=1,
        le=10**15,
        description="Tokens of the conversations, where you have counted them: for the estimate of the space, which is "
        "otherwise reckoned from the data's bytes, rather too high.",
    )
    holdout: float = Field(
        0.02,
        gt=0,
        le=0.5,
        description="Share of the conversations kept out of training, by hash: they measure the draft and probe servers.",
    )
    chat_template: Path | None = Field(None, description="A Jinja chat template that replaces the tokenizer's own.")

    @property
    def regeneration(self) -> Regenerate | None:
        """How the target answers itself; None where the data's own answers are taken."""
        if self.prompts is not None:
            return self.regenerate or Regenerate()
        return self.regenerate if self.regenerate is not None and self.regenerate.enabled else None


class Draft(Model):
    """The draft model: a small decoder that reads the target's hidden states."""

    model_config = rules(
        rule(
            "!has(self.checkpoint) || !has(self.vocabularySize)",
            "draft.checkpoint brings its own vocabulary: leave vocabularySize out",
        ),
        rule(
            "!has(self.checkpoint) || (self.depth == 1 && self.variant == 'EAGLE-3' && self.attention == 'Heads')",
            "draft.checkpoint brings its own architecture: leave depth, variant and attention out",
        ),
        rule(
            "!(has(self.checkpoint) && has(self.initFrom))",
            "draft.checkpoint is served as it is, draft.initFrom is trained further: give one of the two",
        ),
        rule(
            "!has(self.initFrom) || !has(self.vocabularySize)",
            "draft.initFrom brings its own vocabulary, in the order of its head's rows: leave vocabularySize out",
        ),
        rule(
            "!has(self.initFrom) || (self.depth == 1 && self.variant == 'EAGLE-3' && self.attention == 'Heads')",
            "draft.initFrom brings its own architecture: leave depth, variant and attention out",
        ),
        rule(
            "self.attention != 'Latent' || self.depth == 1",
            "SGLang serves drafts with latent attention of one layer only: set draft.depth to 1, or draft.attention to Heads",
        ),
    )

    vocabulary_size: int | None = Field(
        None,
        ge=64,
        le=1_048_576,
        multiple_of=64,
        description="Tokens that the draft can propose, the most frequent ones. Default 32000, at most the target's.",
    )
    auxiliary_layers: list[Annotated[int, Field(ge=-1, le=1023)]] | None = Field(
        None,
        min_length=1,
        max_length=8,
        description="Decoder layers whose output the draft reads, 0-based; -1 is the embedding. Default 1, n/2-1, n-4.",
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "self.isSorted() && self.all(x, self.exists_one(y, x == y))",
                    "auxiliaryLayers must be strictly increasing: SGLang captures in layer order",
                )
            ]
        },
    )
    depth: int = Field(
        1,
        ge=1,
        le=8,
        description="Decoder layers of the draft. EAGLE-3 has one; each further one is accepted a little longer and makes each "
        "draft step that much slower, which the probe weighs.",
    )
    variant: Literal["EAGLE-3", "EAGLE-3.1"] = Field(
        "EAGLE-3",
        description="EAGLE-3.1 puts a norm on each auxiliary state and feeds the normed state back, which is meant for "
        "longer contexts and more draft steps.",
    )
    attention: Literal["Heads", "Latent"] = Field(
        "Heads",
        description="Heads are Llama's. Latent is the target's own, where that is DeepSeek's or Kimi's: its keys and values take "
        "a tenth of the memory, and it runs on the target's attention backend.",
    )
    init_from: Path | None = Field(
        None,
        description="Begin training with an existing draft of this target, a folder on a volume, in any layout that "
        "draft.checkpoint takes. Its architecture, its vocabulary and, unless auxiliaryLayers says otherwise, its layers are kept.",
    )
    checkpoint: Path | None = Field(
        None,
        description="Adopt a draft trained elsewhere, a folder on a volume: extraction and training are skipped; the target is run for "
        "minutes, on extract.gpus, to ask the draft about it. Its own layers are taken unless auxiliaryLayers says otherwise.",
    )


class Extract(Model):
    """Hidden states of the target over the conversations."""

    gpus: int = Field(1, ge=0, le=64, description="GPUs of a pod.")
    shards: int = Field(
        1,
        ge=1,
        le=64,
        description="Pods that extract side by side, each with gpus GPUs. Another number goes on with what is there.",
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


class EarlyStop(Model):
    """When a training has learned what there is to learn."""

    patience: int = Field(
        3, ge=1, le=1000, description="Evaluations in a row that may pass without an improvement, then training ends."
    )
    min_improvement: float = Field(
        0.01, gt=0, le=10, description="What counts as an improvement: so much more expected accept length."
    )


class WeightsAndBiases(Model):
    """A project of Weights & Biases. Its key comes as WANDB_API_KEY through placement.env, from a Secret."""

    project: Text = Field(description="The project's name.")
    entity: Text | None = Field(None, description="The user or team; the key's own without.")


class Logging(Model):
    """Who else is told how the training goes. The pod's /metrics is there without any of it."""

    tensor_board: bool = Field(
        False, description="Write event files into the artifact's folder; the image needs the package tensorboard."
    )
    weights_and_biases: WeightsAndBiases | None = Field(
        None, description="Log to Weights & Biases; the image needs the package wandb."
    )


class Loss(Model):
    """What training makes small."""

    kind: Literal["CrossEntropy", "KL", "LKAlpha", "LKLambda"] = Field(
        "CrossEntropy",
        description="CrossEntropy with the target's distribution, as EAGLE-3 does. KL is the same but for a constant: its gradient "
        "is that of CrossEntropy, its value says how far there is to go. LKAlpha is the negative logarithm of the probability "
        "that a proposal is accepted, LKLambda goes over from KL to that probability itself as it rises: for drafts that are "
        "verified by sampling rather than greedily.",
    )
    eta: float = Field(
        1.0,
        ge=0,
        le=100,
        description="Of LKLambda: how soon it goes over. KL counts exp(-eta x acceptance), acceptance the rest.",
    )
    decay: float = Field(
        0.8, gt=0, le=1, description="What an unroll step counts less than the one before; 1 counts all alike."
    )
    normalised: bool = Field(
        False,
        description="Divide by the sum of the steps' weights, so that unrollSteps and decay leave the loss's size, and with it what "
        "a learning rate means, as they are.",
    )


class Trainer(Model):
    """A trainer of somebody else's, which keeps the contract in docs/trainers.md."""

    image: Text = Field(
        description="Its image. Ours runs beside it: Python 3.11 or newer, torch, transformers, safetensors, pydantic and prometheus-client must be in it."
    )
    command: list[Annotated[str, StringConstraints(min_length=1, max_length=4096)]] = Field(
        min_length=1,
        max_length=64,
        description="What to run, one item per word. It leaves a checkpoint in $EAGLE3_OUTPUT.",
    )
    arguments: list[Annotated[str, StringConstraints(min_length=1, max_length=4096)]] | None = Field(
        None, max_length=64, description="Further words of the command."
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
    )

    gpus: int = Field(1, ge=0, le=64, description="GPUs of a pod, one process each; 0 trains on the CPU.")
    nodes: int = Field(
        1,
        ge=1,
        le=64,
        description="Pods that train together, each with gpus GPUs. Both storage claims must then be ReadWriteMany.",
    )
    epochs: int = Field(3, ge=1, le=1000, description="Passes over the conversations.")
    tokens_per_step: int = Field(
        8192, ge=16, le=16_777_216, description="Tokens of one optimizer step, all GPUs together."
    )
    tokens_per_pass: int | None = Field(
        None,
        ge=16,
        le=16_777_216,
        description="Tokens that a GPU computes at a time. A larger share of a step is computed in several passes whose gradients "
        "are added up: less memory, the same training. Default all of it.",
    )
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Peak, after the warm-up.")
    unroll_steps: int = Field(
        7, ge=1, le=16, description="Steps of training-time test: how far ahead the draft learns from its own output."
    )
    loss: Loss = section(Loss)
    precision: Literal["bf16", "fp8"] = Field(
        "bf16",
        description="Of the matrix products: bf16, or fp8 for those of the unroll steps, a third faster on Ada, Hopper and "
        "newer. Weights, their gradients and the draft's measures are those of bf16 either way.",
    )
    seed: int = Field(0, ge=0, le=2147483647, description="Of the weights' initial values and the order of samples.")
    evaluations_per_epoch: int = Field(
        1,
        ge=1,
        le=100,
        description="How often the draft is measured on the held-out conversations. The best one, by expected accept "
        "length, is the artifact.",
    )
    early_stop: EarlyStop | None = Field(
        None, description="End the training when the expected accept length no longer grows; {} takes the defaults."
    )
    trainer: Trainer | None = Field(
        None,
        description="Train with somebody else's trainer instead. What it leaves is read, measured and checked like any draft.",
    )
    logging: Logging | None = Field(None, description="TensorBoard and Weights & Biases.")
    checkpoint_interval: Period = Field("10m", description="A resumable checkpoint at least so often.")
    stall_timeout: Period = Field(
        "30m", description="Without a progress line for so long the Job is ended and resumed."
    )
    placement: Placement | None = Field(None, description=STAGE_PLACEMENT)


#: Nodes that a draft tree can have, in CEL.
_TREE = "self.topK + (self.numSteps - 1) * self.topK * self.topK"


class Speculative(Model):
    """How the server speculates. The three numbers belong together; SGLang adjusts some combinations silently."""

    model_config = rules(
        rule(
            "self.topK != 1 || self.numDraftTokens == self.numSteps + 1",
            "with topK 1 SGLang uses numSteps + 1 draft tokens",
            computed="'with topK 1 SGLang uses numSteps + 1 draft tokens; numSteps is %d and numDraftTokens %d. "
            "Set numDraftTokens to %d or numSteps to %d.'"
            ".format([self.numSteps, self.numDraftTokens, self.numSteps + 1, self.numDraftTokens - 1])",
        ),
        rule(
            f"self.topK == 1 || self.numDraftTokens - 1 <= {_TREE}",
            "the tree is too small for numDraftTokens",
            computed="'a tree of %d steps with topK %d has %d nodes, fewer than numDraftTokens - 1 = %d; SGLang would crash "
            "at the first request. Lower numDraftTokens to %d or raise numSteps or topK.'"
            f".format([self.numSteps, self.topK, {_TREE}, self.numDraftTokens - 1, {_TREE} + 1])",
        ),
        rule(
            "self.mode == 'Fixed' || (self.topK == 1 && self.numSteps > 1)",
            "mode Auto: SGLang adapts how far it drafts in a chain, up to numSteps: topK must be 1 and numSteps more than 1",
        ),
    )

    mode: Literal["Fixed", "Auto"] = Field(
        "Fixed",
        description="Fixed always drafts numSteps; Auto lets SGLang draft fewer, down to one, when fewer are accepted or many "
        "requests are decoded together.",
    )

    num_steps: int = Field(3, ge=1, le=32, description="Tokens drafted in a row before the target verifies them.")
    top_k: int = Field(1, ge=1, le=16, description="Branches of the draft tree; 1 is a chain.")
    num_draft_tokens: int = Field(
        4, ge=2, le=256, description="Tokens that one verification covers; with topK 1 it must be numSteps + 1."
    )


def _listed(flags: tuple[str, ...]) -> str:
    return ", ".join(f"'{flag}'" for flag in flags)


Argument = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class Serve(Model):
    """How the model is served: one SGLang Deployment per revision behind one Service."""

    model_config = rules(
        rule(
            "!has(self.arguments) || self.arguments.all(a, !a.startsWith('--speculative') && "
            f"!(a.split('=')[0] in [{_listed(OWNED_FLAGS)}]))",
            "serve.arguments: this flag is rendered by the operator from the object; set the object's field instead "
            "(--speculative-*: serve.speculative, --model-path: target.model, --tp: target.tensorParallelSize)",
        ),
        rule(
            f"!has(self.arguments) || self.arguments.all(a, !(a.split('=')[0] in [{_listed(UNSUPPORTED_FLAGS)}]))",
            "serve.arguments: not in scope: one server over several nodes, prefill/decode disaggregation, "
            "and DP attention with speculation are not supported",
        ),
        rule(
            "!has(self.arguments) || self.arguments.all(a, !a.startsWith('--') || !a.split('=')[0].contains(' '))",
            "serve.arguments: one list item per word: '--dtype' and 'bfloat16' are two items",
        ),
    )

    replicas: int = Field(
        1, ge=0, le=1000, description="Servers of the serving revision; kubectl scale and an HPA set it."
    )
    gpus: int | None = Field(None, ge=0, le=64, description="GPUs of one server. Default target.tensorParallelSize.")
    port: int = Field(30000, ge=1024, le=65535, description="Port of the servers and of the Service.")
    context_length: int | None = Field(
        None, ge=16, le=10_485_760, description="Longest served context. Default what the target's config says."
    )
    max_running_requests: int = Field(
        48,
        ge=1,
        le=65536,
        description="Requests decoded together. Always rendered: SGLang resets it silently otherwise.",
    )
    surge: Literal["IfFree", "Never"] = Field(
        "IfFree",
        description="IfFree starts a new revision beside the serving one and, if its pods find no GPU for two minutes, "
        "replaces it instead; Never always replaces.",
    )
    while_training: Literal["Keep", "ScaleToZero"] = Field(
        "Keep",
        description="ScaleToZero takes the servers' pods away while Extract and Train run, for nodes that have no GPUs for "
        "both: the Service has no pod until the new draft is proven, or the Jobs have failed or are suspended.",
    )
    bake_time: Duration = Field("10m", description="How long the former revision stays warm after a promotion.")
    start_retries: int = Field(2, ge=0, le=10, description="How often a revision that failed to start is tried again.")
    start_timeout: Period | None = Field(
        None, description="How long a server may take to become ready. Default from the bytes of the target's weights."
    )
    speculative: Speculative = section(Speculative)
    arguments: list[Argument] | None = Field(
        None, max_length=64, description="Further SGLang flags, one list item per word (--dtype, bfloat16)."
    )
    placement: Placement | None = Field(None, description=STAGE_PLACEMENT)


class Probe(Model):
    """What a revision has to prove before it gets traffic."""

    min_accept_length: float = Field(1.5, ge=1, le=64, description="Tokens per verify step, the target's own included.")
    min_speedup: float = Field(
        1.05, ge=0, le=100, description="Tokens/s with speculation over tokens/s of the same server without."
    )
    concurrency: int = Field(1, ge=1, le=256, description="Requests in flight while measuring.")
    prompts: int = Field(32, ge=1, le=64, description="Held-out prompts that are sent.")
    max_tokens: int = Field(128, ge=8, le=4096, description="Tokens of an answer, at most.")
    lossless: bool = Field(
        True, description="Greedy answers must equal those of the server without speculation, ties excepted."
    )
    parity_band: float = Field(
        0.25,
        gt=0,
        le=1,
        description="How far the measured accept length may fall below the one expected from training, as a share of it.",
    )


class PrometheusReference(Model):
    """A Prometheus server named in the chart's values."""

    name: Name = Field(description="Its name under prometheus.servers in the chart's values.")


class Failures(Model):
    """So many of the last windows must fail before anything moves."""

    model_config = rules(rule("self.of <= self.__in__", "failures.of cannot be larger than failures.in"))

    of: int = Field(2, ge=1, le=10, description="Windows that must fail,")
    within: int = Field(2, ge=1, le=10, alias="in", description="of so many judged ones, the last.")


class Watch(Model):
    """Judgement of the serving revision from what its servers count."""

    prometheus: PrometheusReference | None = Field(
        None,
        description="Where the counters are asked for. Without it the operator reads them from the serving pods themselves.",
    )
    window: Period = Field("5m", description="Length of one window; windows do not overlap.")
    min_tokens: int = Field(
        1000, ge=1, le=1_000_000_000, description="Generated tokens that a window needs to be judged."
    )
    failures: Failures = section(Failures)
    mode: Literal["Enforce", "Observe"] = Field("Enforce", description="Observe reports and never rolls back.")
    cooldown: Duration = Field(
        "10m",
        description="After the watch has acted, by a rollback or by looking for new data, it does not act again for so long.",
    )
    on_no_data: Literal["Ignore", "Report"] = Field(
        "Ignore",
        description="Report makes DraftHealthy False, not Unknown, while metrics cannot be read or none of the last windows "
        "had enough traffic. Nothing is rolled back for it.",
    )
    drift_band: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="How far the accept length may fall below that of the revision's first windows, as a share of it, "
        "before the draft is said to drift.",
    )
    on_drift: Literal["Report", "Retrain"] = Field(
        "Report",
        description="A draft that drifts is still faster than none, and serves on. Retrain looks at the data again, and "
        "trains on it if it has changed.",
    )


class OciArtifact(Model):
    """A place in an OCI registry."""

    reference: Text = Field(
        description="registry/repository or registry/repository:tag. Without a tag the draft's digest makes one (draft-9f2c…), which "
        "another draft never takes over.",
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    f"self.matches({json.dumps(PATTERN)})",
                    "reference: name the registry too, in lower case and without https://, as in "
                    "registry.example.com/llm/kimi-draft or registry.example.com/llm/kimi-draft:v1",
                )
            ]
        },
    )
    secret: Name | None = Field(
        None,
        description="A Secret of type kubernetes.io/dockerconfigjson in the object's namespace, whose user may push there.",
    )
    plain_http: bool = Field(False, description="Speak HTTP: for a registry inside of the cluster.")


class Publish(Model):
    """Where the converted draft goes, besides the drafts volume: for servers elsewhere, and for those who verify what they run."""

    oci: OciArtifact


class Root(Model):
    """Where artifacts lie: a claim of yours, or one that the operator makes."""

    model_config = rules(
        rule("has(self.claim) != has(self.size)", "give either claim (yours) or size (a claim made by the operator)"),
        rule(
            "!has(self.storageClassName) || has(self.size)", "storageClassName belongs to size, not to a claim of yours"
        ),
    )

    claim: Name | None = Field(None, description="A PersistentVolumeClaim of the object's namespace.")
    size: Quantity | None = Field(None, description="Make a claim of this size.")
    storage_class_name: Name | None = Field(
        None, description="StorageClass of a claim made by the operator. Default the cluster's."
    )
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        "ReadWriteOnce", description="Access mode of a claim that the operator makes."
    )


class ObjectStore(Model):
    """A bucket of an S3-compatible object store."""

    url: Annotated[
        str, StringConstraints(pattern=r"^s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9](/[-A-Za-z0-9._/]*)?$", max_length=512)
    ] = Field(description="s3://BUCKET/PREFIX; the object's folders lie under it.")
    endpoint: Annotated[str, StringConstraints(pattern=r"^https?://[-A-Za-z0-9.:_/]+$", max_length=512)] | None = Field(
        None, description="The service's address. Default Amazon's."
    )
    region: Text = Field("us-east-1", description="Of the bucket.")
    secret: Name | None = Field(
        None,
        description="A Secret of the object's namespace with the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the "
        "kubelet reads it, the operator never does. Without one the pods have what placement.env gives them.",
    )
    cache: Quantity = Field(
        "100Gi",
        description="Room on the node's disk for what is in use: a part of 512 conversations while it is extracted, shards "
        "while they are trained from.",
    )


class FeaturesRoot(Root):
    """Where features lie: a claim of yours, one that the operator makes, or an object store."""

    model_config = rules(
        rule(
            "[has(self.claim), has(self.size), has(self.objectStore)].filter(given, given).size() == 1",
            "give one of claim (yours), size (a claim made by the operator) and objectStore",
        ),
        rule(
            "!has(self.storageClassName) || has(self.size)",
            "storageClassName belongs to size, not to a claim of yours or an object store",
        ),
    )

    object_store: ObjectStore | None = Field(
        None,
        description="Keep features in a bucket instead of a claim. Train's checkpoints then lie with the drafts.",
    )


class Storage(Model):
    """features is huge scratch; drafts is small and outlives everything; models holds what comes from a hub."""

    features: FeaturesRoot = Field(
        description="Hidden states and resumable checkpoints. Emptied when training has finished."
    )
    drafts: Root = Field(description="Trained and converted drafts, reports, prompts and measurements.")
    models: Root | None = Field(
        None,
        description="What is fetched from a hub. Servers read the target from it, so it must be where they run.",
    )


class DeletionPolicy(StrEnum):
    RETAIN = "Retain"
    DELETE = "Delete"


class AutoApply(StrEnum):
    WHEN_NO_OUTAGE = "WhenNoOutage"
    ALWAYS = "Always"
    NEVER = "Never"


class Eagle3DraftSpec(Model):
    """Which target, which data, which node, which bar; the operator does the rest."""

    model_config = rules(
        rule(
            "has(self.data) || (has(self.draft) && has(self.draft.checkpoint))",
            "give data to train a draft, or draft.checkpoint to adopt one",
        ),
        rule(
            "has(self.storage.models) || "
            "(self.target.model.startsWith('/') && (!has(self.data) || !has(self.data.dataset)))",
            "storage.models: target.model or data.dataset is a repository of a hub (a path begins with /); say where what is "
            "fetched is kept",
        ),
        rule("has(self.serve) || !has(self.watch)", "watch judges a serving revision: it needs serve"),
        rule(
            "!has(self.serve) || !has(self.serve.gpus) || self.serve.gpus == 0 || "
            "self.serve.gpus >= self.target.tensorParallelSize",
            "serve.gpus: fewer than target.tensorParallelSize; SGLang would not start",
        ),
        rule(
            "has(self.sglangVersion) || self.image.matches(':v?[0-9]+[.][0-9]+[.][0-9]+')",
            "image: SGLang's version cannot be read from the tag; set sglangVersion (0.5.23)",
        ),
        rule(
            "!has(self.train) || !has(self.train.trainer) || !has(self.draft) || !has(self.draft.initFrom)",
            "train.trainer begins with what it likes: leave draft.initFrom out and give the path in trainer.arguments",
        ),
        rule(
            "!has(self.train) || self.train.nodes == 1 || "
            "(!has(self.storage.features.size) || self.storage.features.accessMode == 'ReadWriteMany') && "
            "(!has(self.storage.drafts.size) || self.storage.drafts.accessMode == 'ReadWriteMany')",
            "train.nodes: pods on several nodes write to storage.features and storage.drafts; set accessMode of both to "
            "ReadWriteMany, or nodes to 1",
        ),
        rule(
            "self.storage.features == oldSelf.storage.features && self.storage.drafts == oldSelf.storage.drafts && "
            "(!has(oldSelf.storage.models) || (has(self.storage.models) && self.storage.models == oldSelf.storage.models))",
            "storage cannot be changed: finished artifacts lie there. Make a new object, or copy the claim",
        ),
        rule(
            "has(self.serve) || !has(oldSelf.serve)",
            "serve cannot be removed: the servers would go without a word. Set serve.replicas to 0, or delete the object",
        ),
    )

    image: Text = Field(
        description="The SGLang image. GPU Jobs and servers run in it: extraction cannot drift from serving."
    )
    sglang_version: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+(\.post[0-9]+)?$")] | None = (
        Field(None, description="SGLang's version, where the image's tag does not say it.")
    )
    target: Target
    data: Data | None = None
    draft: Draft = section(Draft)
    extract: Extract = section(Extract)
    train: Train = section(Train)
    serve: Serve | None = Field(
        None,
        description="How the model is served: one SGLang Deployment per revision behind one Service. Leave it out to "
        "train only: status.artifact names the result.",
    )
    probe: Probe = section(Probe)
    watch: Watch | None = Field(
        None,
        description="Judgement of the serving revision from what its servers count. What serves is watched, with the "
        "defaults of these fields where they are left out.",
    )
    publish: Publish | None = Field(
        None,
        description="Push the converted draft as an OCI artifact, with its provenance beside it. Roll-outs do not wait for that.",
    )
    storage: Storage
    placement: Placement = section(Placement, "For all pods; a stage's own placement goes on top.")
    queue_name: QueueName | None = Field(
        None,
        description="A LocalQueue of Kueue in the object's namespace: Extract, Train and the servers wait there for quota. "
        "Running Jobs and servers stay in the queue they were made for.",
    )
    suspend: bool = Field(False, description="Start nothing new and suspend running Jobs. Servers go on serving.")
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN,
        description="Delete lets claims made by the operator go with the object; yours always stay.",
    )
    revision_history_limit: int = Field(3, ge=1, le=20, description="Retired revisions that are kept, scaled to 0.")
    auto_apply: AutoApply = Field(
        AutoApply.WHEN_NO_OUTAGE,
        description="Once the object has been Ready: whether a roll-out, or a training, that leaves the Service without a "
        "pod for a while starts by itself. Rollbacks never wait.",
    )

    @property
    def watched(self) -> Watch | None:
        """How what serves is watched; None for an object that does not serve."""
        return (self.watch or Watch()) if self.serve else None

    @property
    def fetches(self) -> bool:
        """Whether anything comes from a hub."""
        return self.target.repository is not None or (self.data is not None and self.data.dataset is not None)


class Metadata(Model):
    """What the operator reads of an object's metadata."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    resource_version: str = ""
    annotations: dict[str, str] = Field(default_factory=dict)
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None


class Eagle3Draft(Model):
    """The whole object, as read from the API server."""

    metadata: Metadata
    spec: Eagle3DraftSpec
    status: dict[str, Any] = Field(default_factory=dict)


_UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds(duration: str) -> float:
    """``1h30m`` as seconds."""
    total, number = 0, ""
    for character in duration:
        if character.isdigit():
            number += character
        else:
            total += int(number) * _UNITS[character]
            number = ""
    return float(total)
