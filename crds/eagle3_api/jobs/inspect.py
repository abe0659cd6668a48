"""Inspect: look at everything, write nothing."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.jobs.contract import ObjectReference
from eagle3_api.jobs.data import DataConfig, SamplingDefaults
from eagle3_api.jobs.fetch import FetchResult
from eagle3_api.jobs.storage import ObjectStoreConfig
from eagle3_api.spec.draft import Attention


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
    attention: Attention = "Heads"
    feature_dtype: FeatureDtype = "bf16"
    feature_teacher: TeacherKind = "LastState"
    sglang_version: str
    engine: list[str] | None = Field(
        None, description="What of serve.arguments changes the target's states, by which features are known."
    )
    context_length: int | None = None
    longer_context: Literal[True] | None = Field(
        None,
        description="SGLang is told to take a context beyond the target's positions.",
    )
    object_store: ObjectStoreConfig | None = None
    features_capacity: int | None = Field(None, description="Bytes of the features claim, to set against the estimate.")
    features_gone: bool = Field(
        False,
        description="The features' claim went with them and is not mounted; the capacity is that of one made anew.",
    )
    fetched: FetchResult | None = Field(None, description="What came from a hub, for the report.")


class Facts(Model):
    """What Inspect found: ``status.resolved``."""

    architecture: str
    num_layers: int
    hidden_size: int
    vocabulary_size: int
    target_dtype: str = Field(
        description="That SGLang runs the target in, as torch says it; the draft is written in it."
    )
    weight_bytes: int
    active_parameters: int | None = Field(
        None,
        description="Parameters that one token uses, the head included; in a mixture of experts, those of the chosen "
        "experts.",
    )
    context_length: int
    target_digest: str
    auxiliary_layers: list[int]
    draft_vocabulary_size: int | None = None
    draft_attention: Attention = Field("Heads", description="Attention of the draft, trained or adopted.")
    sglang_version: str
    layer_convention: str
    capture_ids: list[int]
    conversations: int | None = None
    held_out: int | None = None
    data_digest: str | None = None
    expected_tokens: int | None = None
    feature_bytes: int | None = None
    chat_template_digest: str | None = None
    end_tokens: list[int] | None = Field(
        None,
        description="Tokens with which the target ends an answer, as far as its configuration says; only if it "
        "answers itself.",
    )
    sampling_defaults: SamplingDefaults | None = Field(
        None,
        description="Sampling parameters of the target's generation_config.json, if it answers itself and its "
        "server follows them.",
    )
    checkpoint_digest: str | None = None
    init_digest: str | None = Field(None, description="Digest of draft.initFrom, as checkpoint_digest.")
    fetched: FetchResult | None = Field(None, description="What was fetched from a hub, with its commits.")
    warnings: list[str] = Field(default_factory=list, max_length=4)

    def target_folder(self, model: str) -> str:
        """Where pods see the target: where it was fetched to, or else the path that ``target.model`` is."""
        return self.fetched.target.path if self.fetched is not None and self.fetched.target is not None else model
