"""The contract between the two planes: a Job's configuration, its report, its exit codes and its progress lines.

- In: the pod template carries the configuration as the annotation ``CONFIG_ANNOTATION``; the pod reads it as the file
  ``CONFIG_FILE`` through the downward API. One object, atomic.
- Out: the report as JSON in the container's termination message, at most ``REPORT_LIMIT`` bytes; a fuller one lies
  beside the artifact. Done means: the Job is Complete *and* there is a report.
- Progress: one JSON line on stdout now and then, after the mark ``PROGRESS_MARK``.
"""

import json
from bisect import bisect_right
from enum import IntEnum, StrEnum
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from eagle3_api.base import Model
from eagle3_api.conditions import Reason
from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.spec import EarlyStop, WeightsAndBiases

CONFIG_ANNOTATION = "eagle3.dev/config"
CONFIG_FILE = "/eagle3/config/config.json"
LIBRARY = "/eagle3/lib"
TERMINATION_LOG = "/dev/termination-log"
#: Credentials of registries, as docker writes them down, in the pod of a Publish.
REGISTRY_LOGIN = "/eagle3/registry/config.json"
REPORT_LIMIT = 3 * 1024
PROGRESS_MARK = "EAGLE3-PROGRESS "

#: Where a training's pod answers /metrics.
METRICS_PORT = 9400

#: Where the pods of a training on several nodes meet, in the first of them.
MEETING_PORT = 29400


class StageName(StrEnum):
    """The stages, in order."""

    FETCH = "fetch"
    INSPECT = "inspect"
    EXTRACT = "extract"
    TRAIN = "train"
    CLEAN = "clean"
    CONVERT = "convert"
    PUBLISH = "publish"
    PROBE = "probe"


class ExitCode(IntEnum):
    """How a stage ends. 10-19 mean that trying again cannot help: ``podFailurePolicy`` fails the Job at once."""

    DONE = 0
    BAD_CONFIGURATION = 10
    BAD_INPUT = 11
    NON_FINITE = 12
    REFUSED = 13
    DOES_NOT_FIT = 14
    INTERNAL_ERROR = 19
    INTERRUPTED = 20
    ENGINE_CRASHED = 21


FATAL_EXIT_CODES = tuple(range(10, 20))


# ---------------------------------------------------------------------------------------------------- configuration


class ObjectReference(Model):
    """Whose Job this is."""

    namespace: str
    name: str
    uid: str


class RegenerateConfig(Model):
    """How the target answers the data's questions itself."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = Field(1024, description="Of one answer.")
    seed: int = 0


class DataConfig(Model):
    """What ``spec.data`` says, as the data plane needs it."""

    conversations: str | None = Field(None, description="One of these three is there.")
    prompts: str | None = None
    dataset: str | None = Field(None, description="The file that a fetched data set became.")
    regenerate: RegenerateConfig | None = Field(None, description="Always there with prompts.")
    max_samples: int | None = None
    max_length: int
    holdout: float
    chat_template: str | None = None
    expected_tokens: int | None = Field(None, description="As the user counted them.")


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


class Fetched(Model):
    """What was fetched of one source."""

    repository: str
    commit: str
    path: str = Field(description="Of the target's folder, or of the data's file, as pods see it.")
    files: int
    bytes: int


class FetchResult(Model):
    """What Fetch has."""

    target: Fetched | None = None
    dataset: Fetched | None = None


class ObjectStoreConfig(Model):
    """Where features lie, if not on a volume. Credentials are in the environment, as ``AWS_*``."""

    url: str = Field(description="s3://BUCKET/PREFIX, under which the folders of the features root lie.")
    endpoint: str | None = Field(None, description="Of the service, if it is not Amazon's.")
    region: str = "us-east-1"
    cache_bytes: int = Field(description="Room on the pod's disk for what is in use.")


class InspectConfig(Model):
    """Inspect: look at everything, write nothing."""

    stage: Literal["inspect"] = "inspect"
    owner: ObjectReference
    key: str
    target: str
    trust_remote_code: bool = False
    data: DataConfig | None = None
    checkpoint: str | None = None
    init_from: str | None = None
    auxiliary_layers: list[int] | None = None
    vocabulary_size: int | None = None
    attention: Literal["Heads", "Latent"] = "Heads"
    feature_dtype: FeatureDtype = "bf16"
    feature_teacher: TeacherKind = "LastState"
    sglang_version: str
    context_length: int | None = None
    object_store: ObjectStoreConfig | None = None
    features_capacity: int | None = Field(None, description="Bytes of the features claim, to set against the estimate.")
    fetched: FetchResult | None = Field(None, description="What came from a hub, for the report.")


class ExtractConfig(Model):
    """Extract: conversations to hidden states."""

    stage: Literal["extract"] = "extract"
    owner: ObjectReference
    key: str
    folder: str = Field(description="The artifact's folder, under the features root.")
    target: str
    target_digest: str
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
    end_tokens: list[int] | None = Field(None, description="With which the target ends an answer of its own.")


class LossConfig(Model):
    """What ``spec.train.loss`` says, as the data plane needs it."""

    kind: Literal["CrossEntropy", "KL", "LKAlpha", "LKLambda"] = "CrossEntropy"
    eta: float = 1.0
    decay: float = 0.8
    normalised: bool = False


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
    variant: Literal["EAGLE-3", "EAGLE-3.1"] = "EAGLE-3"
    attention: Literal["Heads", "Latent"] = "Heads"
    init_from: str | None = Field(None, description="A draft to go on from, with its own vocabulary and architecture.")
    init_digest: str | None = None
    epochs: int
    tokens_per_step: int
    tokens_per_pass: int | None = Field(None, description="Of a rank; all of its share where it is left out.")
    learning_rate: float
    unroll_steps: int
    precision: Literal["bf16", "fp8"] = "bf16"
    loss: LossConfig = Field(default_factory=LossConfig)
    seed: int
    evaluations_per_epoch: int = 1
    trainer: list[str] | None = Field(None, description="The command of somebody else's trainer, which trains instead.")
    early_stop: EarlyStop | None = Field(None, description="As the object says.")
    tensor_board: bool = False
    weights_and_biases: WeightsAndBiases | None = Field(None, description="As the object says.")
    metrics_port: int | None = Field(None, description="Where to answer /metrics, if at all.")
    checkpoint_interval: float = Field(description="Seconds.")
    processes: int = Field(1, description="Ranks of each pod: its GPUs, or 1 on a CPU.")
    hosts: list[str] = Field(
        default_factory=list,
        description="Names of the pods that train together, in the order of their index; empty where there is one.",
    )
    meeting_port: int = Field(MEETING_PORT, description="Of the first of them.")
    grace_seconds: int = Field(
        30, description="The pod's termination grace: an interrupted training writes its checkpoint within it."
    )


class CleanConfig(Model):
    """Clean: remove what nobody needs once a draft is trained."""

    stage: Literal["clean"] = "clean"
    owner: ObjectReference
    key: str
    folders: list[str] = Field(description="Of the object, under the features root.")
    object_store: ObjectStoreConfig | None = None


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
        default_factory=list, description="serve.arguments, for the engine that measures an adopted checkpoint."
    )
    tensor_parallel_size: int = Field(1, description="Of that engine.")


class PublishConfig(Model):
    """Publish: a converted draft to an OCI registry."""

    stage: Literal["publish"] = "publish"
    owner: ObjectReference
    key: str
    folder: str = Field(description="The artifact's folder, under the drafts root: what was pushed, and where.")
    converted: str = Field(description="Convert's artifact.")
    converted_key: str
    draft: str = Field(description="Digest of the draft.")
    reference: str = Field(description="registry/repository, with or without a tag.")
    login: bool = Field(False, description="Credentials lie at REGISTRY_LOGIN.")
    plain_http: bool = False


class ProbeConfig(Model):
    """Probe: measure one revision's server before it gets traffic."""

    stage: Literal["probe"] = "probe"
    owner: ObjectReference
    key: str
    folder: str = Field(description="The artifact's folder, under the drafts root.")
    revision: int
    url: str = Field(description="The revision's own Service.")
    prompts: str = Field(description="Folder of the converted draft, which holds the held-out prompts.")
    prompts_digest: str
    baseline: str | None = Field(
        None, description="Folder of the plain revision's probe; none when this is the plain one."
    )
    expected_arguments: dict[str, str | int | float | bool | None] = Field(
        description="What /server_info must say, by the server's own names."
    )
    concurrency: int
    count: int = Field(description="Prompts to send.")
    max_tokens: int
    exact: bool = Field(False, description="fp32 on a CPU: answers are tied only within its own rounding.")


JobConfig = Annotated[
    FetchConfig
    | InspectConfig
    | ExtractConfig
    | TrainConfig
    | CleanConfig
    | ConvertConfig
    | PublishConfig
    | ProbeConfig,
    Field(discriminator="stage"),
]


class JobEnvelope(Model):
    """The configuration as it stands in the annotation; the discriminator is ``stage``."""

    config: JobConfig


# ----------------------------------------------------------------------------------------------------------- reports


class Facts(Model):
    """What Inspect found: ``status.resolved``."""

    architecture: str
    num_layers: int
    hidden_size: int
    vocabulary_size: int
    target_dtype: str
    weight_bytes: int
    context_length: int
    target_digest: str
    auxiliary_layers: list[int]
    draft_vocabulary_size: int | None = None
    draft_attention: Literal["Heads", "Latent"] = Field("Heads", description="The draft's, trained or adopted.")
    sglang_version: str
    layer_convention: str
    capture_ids: list[int]
    conversations: int | None = None
    held_out: int | None = None
    data_digest: str | None = None
    expected_tokens: int | None = None
    feature_bytes: int | None = None
    bytes_per_token: int | None = None
    chat_template_digest: str | None = None
    end_tokens: list[int] | None = Field(
        None,
        description="With which the target ends an answer, as far as its configuration says; if it answers itself.",
    )
    checkpoint_digest: str | None = None
    init_digest: str | None = Field(None, description="Of draft.initFrom, as checkpoint_digest.")
    fetched: FetchResult | None = Field(None, description="What came from a hub, with its commits.")
    warnings: list[str] = Field(default_factory=list, max_length=4)

    def target_folder(self, model: str) -> str:
        """Where pods see the target: where it was fetched to, or else the path that ``target.model`` is."""
        return self.fetched.target.path if self.fetched is not None and self.fetched.target is not None else model


class ExtractResult(Model):
    """What Extract made."""

    conversations: int
    held_out: int
    tokens: int
    supervised_tokens: int
    bytes: int
    dropped: dict[str, int] = Field(default_factory=dict, description="Conversations left out, by why.")
    tokens_per_second: float
    engine: str = Field("", description="What ran the target, and its version.")
    parts: int = Field(1, description="Finished parts of the data.")
    whole: bool = Field(True, description="These are all parts; if not, other pods were still at work.")
    answers: int | None = Field(None, description="That the target gave itself.")
    cut_answers: int | None = Field(None, description="Of them, those that a length cut: they have no end.")


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
    tokens_per_second: float
    waiting: float = Field(0.0, description="Share of the time of all steps that went by waiting for data.")
    peak_memory_bytes: int = Field(0, description="On the GPU that took most; of a process, on a CPU.")
    best_step: int = Field(0, description="After which step the published weights were measured best.")
    resumed: int = Field(0, description="How often the training was resumed.")


class CleanResult(Model):
    """What Clean removed."""

    files: int
    bytes: int


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
    chance: float | None = Field(
        None, description="The first step's accuracy of a draft that knew nothing of its target."
    )
    parity_error: float | None = Field(
        None, description="Largest difference of logits, converted against trained, on held-out features."
    )
    warnings: list[str] = Field(default_factory=list, max_length=4)


class PublishResult(Model):
    """What Publish pushed: ``status.artifact.published``."""

    reference: str = Field(description="registry/repository@digest: what others pull, verify and sign.")
    digest: str = Field(description="Of the manifest.")
    provenance: str = Field(
        description="Digest of the manifest that says where the draft comes from; it refers to the other one."
    )
    bytes: int


class ProbeResult(Model):
    """What Probe measured: stored with the revision and judged by policy, as often as the policy changes."""

    speculative: bool
    prompts_digest: str
    concurrency: int
    requests: int
    tokens: int
    seconds: float
    tokens_per_second: float
    verify_steps: int = 0
    accept_length: float | None = Field(None, description="(tokens - requests) / verify steps, over all requests.")
    break_even: float | None = Field(
        None, description="Accept length at which this server is as fast as the plain one."
    )
    baseline_tokens_per_second: float | None = None
    first_token_seconds: float = Field(description="Median.")
    inter_token_seconds: float = Field(description="Median.")
    compared: int = Field(0, description="Answers compared with the plain server's.")
    different: int = Field(0, description="Of them, those that differ beyond a tie.")
    ties: int = 0
    baseline_different: int = Field(
        0,
        description="Of as many answers of the plain server, those that differ from its own second ones beyond a tie.",
    )
    argument_mismatches: list[str] = Field(
        default_factory=list,
        max_length=8,
        description="What /server_info says otherwise: '<name>: asked <a>, got <b>'.",
    )
    template_mismatch: str = Field(
        "", description="How the server's own chat template differs from the rendering that the draft learned from."
    )
    foreign_requests: int = Field(0, description="Requests that were not ours while measuring.")


Result = FetchResult | Facts | ExtractResult | TrainResult | CleanResult | ConvertResult | PublishResult | ProbeResult
RESULTS: dict[
    StageName,
    type[FetchResult | Facts | ExtractResult | TrainResult | CleanResult | ConvertResult | PublishResult | ProbeResult],
] = {
    StageName.FETCH: FetchResult,
    StageName.INSPECT: Facts,
    StageName.EXTRACT: ExtractResult,
    StageName.TRAIN: TrainResult,
    StageName.CLEAN: CleanResult,
    StageName.CONVERT: ConvertResult,
    StageName.PUBLISH: PublishResult,
    StageName.PROBE: ProbeResult,
}


class Report(Model):
    """What a Job says at its end."""

    stage: StageName
    key: str
    ok: bool
    reason: Reason | None = Field(None, description="Why it failed.")
    message: str = ""
    result: dict[str, object] | None = None

    @property
    def partial(self) -> bool:
        """One of several pods succeeded, while others were still at work: not the report of the whole Job."""
        return self.ok and self.result is not None and self.result.get("whole") is False

    def dump(self) -> str:
        """The JSON of the termination message, within ``REPORT_LIMIT`` bytes: an over-long message is cut."""

        def text(message: str) -> str:
            report = self.model_copy(update={"message": message})
            return json.dumps(report.to_json(), separators=(",", ":"), ensure_ascii=False)

        def excess(message: str) -> int:
            return len(text(message).encode()) - REPORT_LIMIT

        if excess(self.message) <= 0:
            return text(self.message)
        if excess("…") > 0:
            raise ValueError(f"the result of {self.stage} alone takes more than {REPORT_LIMIT} bytes")
        too_long = bisect_right(range(len(self.message)), 0, key=lambda kept: excess(self.message[:kept] + "…"))
        return text(self.message[: too_long - 1] + "…")

    @classmethod
    def parse(cls, text: str) -> "Report | None":
        """The report in a termination message, or None where there is none (a pod that was killed, another's text)."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


def result_of(report: Report) -> Result:
    """The typed result of a successful report; ValidationError if it does not fit its stage."""
    return RESULTS[report.stage].model_validate(report.result)


class Progress(Model):
    """One progress line."""

    done: float = Field(ge=0, le=1, description="Share of the work that is done.")
    seconds_left: float | None = None
    message: str = ""
    time: float = Field(description="Seconds since the epoch.")

    def dump(self) -> str:
        """The line as it is printed."""
        return PROGRESS_MARK + json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def last(cls, log: str) -> "Progress | None":
        """The last progress line in a piece of log, or None."""
        for line in reversed(log.splitlines()):
            _, mark, text = line.partition(PROGRESS_MARK)
            if mark:
                try:
                    return cls.model_validate_json(text)
                except ValidationError:
                    continue
        return None
