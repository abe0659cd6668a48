"""The sizes of a draft, and how they follow from its target's configuration."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from eagle3_api.base import Model

#: An MLA target (DeepSeek, Kimi) has no plain heads to take over; published drafts for them have these.
MLA_HEADS, MLA_KV_HEADS, MLA_HEAD_DIM = 64, 8, 128

_DEFAULT_THETA = 10000.0


class Llama3Scaling(Model):
    """Llama 3.1's rope scaling: frequencies below a wavelength stay, above another are slowed down."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class DraftConfig(Model):
    """Everything that determines a draft's shapes and its forward."""

    hidden_size: int
    target_hidden_size: int = Field(description="Numbers in one auxiliary hidden state of the target.")
    layers: list[int] = Field(description="The target's layers whose output it reads; -1 is the embedding.")
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None = None
    vocabulary_size: int = Field(description="The target's.")
    draft_vocabulary_size: int
    max_position_embeddings: int


def text_config(target: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a target's config.json: multimodal ones nest it."""
    nested = target.get("text_config")
    return nested if isinstance(nested, Mapping) else target


def draft_config(target: Mapping[str, Any], *, layers: list[int], draft_vocabulary_size: int) -> DraftConfig:
    """The draft for a target: a Llama layer of the target's own width.

    Args:
        target: the target's config.json.
        layers: the auxiliary layers.
        draft_vocabulary_size: tokens that the draft can propose.

    Raises:
        KeyError: a size is missing; the message is its name.
    """
    text = text_config(target)
    hidden = int(text["hidden_size"])
    if text.get("kv_lora_rank"):
        heads, kv_heads, head_dim = MLA_HEADS, MLA_KV_HEADS, MLA_HEAD_DIM
    else:
        heads = int(text["num_attention_heads"])
        kv_heads = int(text.get("num_key_value_heads") or heads)
        head_dim = int(text.get("head_dim") or hidden // heads)
    theta, scaling = rope_of(text)
    return DraftConfig(
        hidden_size=hidden,
        target_hidden_size=hidden,
        layers=layers,
        intermediate_size=int(text["intermediate_size"]),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=float(text.get("rms_norm_eps") or 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        vocabulary_size=int(text["vocab_size"]),
        draft_vocabulary_size=draft_vocabulary_size,
        max_position_embeddings=int(text["max_position_embeddings"]),
    )


def rope_of(text: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling of the draft's rotary embedding, from either spelling of the target's.

    ``rope_parameters`` is Transformers 5's, ``rope_theta`` with ``rope_scaling`` the older one. Llama 3's scaling is kept.
    Of any other (yarn, linear, by layer type) only the base is: the draft is trained from scratch, its rope is its own.
    """
    parameters = text.get("rope_parameters") or text.get("rope_scaling") or {}
    parameters = parameters.get("full_attention", parameters)  # nested where layer types differ (Gemma)
    theta = float(parameters.get("rope_theta") or text.get("rope_theta") or _DEFAULT_THETA)
    if parameters.get("rope_type", parameters.get("type")) != "llama3":
        return theta, None
    return theta, Llama3Scaling(
        factor=parameters["factor"],
        low_freq_factor=parameters["low_freq_factor"],
        high_freq_factor=parameters["high_freq_factor"],
        original_max_position_embeddings=parameters["original_max_position_embeddings"],
    )
