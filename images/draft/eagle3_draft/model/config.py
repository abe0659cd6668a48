"""The sizes and switches of a draft, and how they follow from its target's configuration or from a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from pydantic import Field, ValidationError

from eagle3_api.base import Model
from eagle3_api.checkpoints.form import LATENT_SIZES, Form
from eagle3_api.checkpoints.readers.llama import positive, rope_of
from eagle3_api.checkpoints.rope import sglangs_alone
from eagle3_api.checkpoints.target import language_config
from eagle3_api.conditions import Reason
from eagle3_api.draft_size import DraftSize, size_in
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError


class LinearScaling(Model):
    """All positions closer together by a factor."""

    rope_type: Literal["linear"]
    factor: float


class Llama3Scaling(Model):
    """Llama 3.1's rope scaling: frequencies below a wavelength stay, above another are slowed down."""

    rope_type: Literal["llama3"] = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class YarnScaling(Model):
    """YaRN (arXiv 2309.00071): fast frequencies stay, slow ones are slowed down by a factor, a ramp between; and the turned
    numbers are stretched. Names and defaults are SGLang's."""

    rope_type: Literal["yarn"]
    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attn_factor: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    extrapolation_factor: float | None = None
    truncate: bool = True


class DynamicScaling(Model):
    """A larger base, by the factor, or by ``alpha`` where that is said (Hunyuan's). SGLang takes it for texts of every length, where
    Transformers' grows with them and knows no ``alpha``."""

    rope_type: Literal["dynamic"]
    factor: float = 1.0
    alpha: float | None = None

    @property
    def growth(self) -> float:
        """What the base is multiplied with, to the power of width / (width - 2)."""
        return self.factor**2 - self.factor + 1 if self.alpha is None else self.alpha


class LongScaling(Model):
    """LongRoPE (arXiv 2402.13753): each pair of numbers is slowed down by a factor of its own, and what is turned is stretched.

    SGLang has two lists of factors. It turns all texts of a batch by the long one as soon as one of them is longer than the original
    positions, whatever it turned their earlier tokens by. Only shorter texts have one answer, and here are no others.
    """

    rope_type: Literal["longrope"]
    short_factor: list[float]
    long_factor: list[float]
    original_max_position_embeddings: int
    short_mscale: float | None = Field(None, description="The stretch, where it does not follow from the positions.")
    long_mscale: float | None = None


Scaling = Llama3Scaling | YarnScaling | LinearScaling | DynamicScaling | LongScaling


class Latent(Model):
    """Sizes of multi-head latent attention (arXiv 2405.04434): queries, and keys with values, come out of short vectors.

    Names are those of checkpoints' configurations.
    """

    q_lora_rank: int = Field(description="Numbers of the vector that queries come out of.")
    kv_lora_rank: int = Field(description="Numbers of the vector that keys and values come out of.")
    qk_nope_head_dim: int = Field(description="Numbers of a head's query and key that are not rotated,")
    qk_rope_head_dim: int = Field(description="that are; those of the key are the same for all heads.")
    v_head_dim: int
    rope_interleave: bool = Field(True, description="Neighbours are rotated against each other, not the two halves.")


class DraftConfig(Model):
    """Everything that determines a draft's shapes and its forward."""

    hidden_size: int
    target_hidden_size: int = Field(description="Numbers in one auxiliary hidden state of the target.")
    layers: list[int] = Field(description="The target's layers whose output it reads; -1 is the embedding.")
    depth: int = Field(1, description="Decoder layers of its own.")
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Scaling | None = None
    vocabulary_size: int = Field(description="The target's.")
    draft_vocabulary_size: int
    max_position_embeddings: int
    norm_before_fc: bool = Field(False, description="One norm over the auxiliary states side by side.")
    fc_norm: bool = Field(False, description="A norm for each auxiliary state.")
    norm_output: bool = Field(False, description="The next step reads the final-normed state, not the one before.")
    fc_bias: bool = False
    output_bias: bool = Field(False, description="Attention's output projection has a bias.")
    latent: Latent | None = Field(None, description="Latent attention, as DeepSeek's; kv_heads and head_dim follow.")

    @property
    def rotary_dim(self) -> int:
        """Numbers of a head that are rotated."""
        return self.head_dim if self.latent is None else self.latent.qk_rope_head_dim


def draft_config(
    target: Mapping[str, Any],
    *,
    layers: list[int],
    draft_vocabulary_size: int,
    context_length: int | None = None,
    depth: int = 1,
    newer: bool = False,
    latent: bool = False,
) -> DraftConfig:
    """The draft for a target: a Llama layer of the target's own width.

    The rotary embedding has the target's base, and its scaling where that is Llama 3's. Of any other scaling only the base
    is kept: the draft is trained from scratch, its rope is its own.

    Args:
        target: the target's config.json.
        layers: the auxiliary layers.
        draft_vocabulary_size: tokens that the draft can propose.
        context_length: that is served: the draft's positions where the target does not say its own.
        depth: decoder layers of its own.
        newer: EAGLE-3.1 (arXiv 2605.09992): a norm for each auxiliary state, and the normed state fed back.
        latent: with the target's latent attention in place of heads.

    Raises:
        StageError: the target does not say something of which the draft is made (TargetUnsupported).
    """
    text = language_config(target)
    try:
        size, sizes = DraftSize.for_target(text), None
        if latent:
            sizes = Latent.model_validate({name: size_in(text, name) for name in LATENT_SIZES})
            heads = size_in(text, "num_attention_heads")
            head_dim = sizes.qk_nope_head_dim + sizes.qk_rope_head_dim
            size = replace(size, heads=heads, kv_heads=heads, head_dim=head_dim)
        positions = size_in(text, "max_position_embeddings", context_length)
        return DraftConfig(
            **asdict(size),
            target_hidden_size=size.hidden_size,
            layers=layers,
            depth=depth,
            rms_norm_eps=_epsilon(text),
            **_own_rope(text, positions),
            vocabulary_size=size_in(text, "vocab_size"),
            draft_vocabulary_size=draft_vocabulary_size,
            max_position_embeddings=positions,
            fc_norm=newer,
            norm_output=newer,
            latent=sizes,
        )
    except (KeyError, ValueError) as error:
        raise StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNSUPPORTED,
            f"target.model: of its config.json the draft's sizes and its rope are made, and {_what_is_wrong(error)}. Name a draft that "
            "brings its own (draft.initFrom)" + (", or set draft.attention to Heads" if latent else ""),
        ) from None


def _epsilon(text: Mapping[str, Any]) -> float:
    said = text.get("rms_norm_eps") or None
    if (value := positive(said, 1e-6)) is None:
        raise ValueError(f"rms_norm_eps is {said!r:.40}, not a positive number")
    return value


def _own_rope(text: Mapping[str, Any], positions: int) -> dict[str, Any]:
    """The base and the scaling that a draft takes over."""
    rope = rope_of(text)
    if not rope:
        raise ValueError("its rope_scaling or rope_parameters is not an object")
    scaling = scaling_of(rope, positions) if rope["rope_type"] == "llama3" else None
    return {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}


def _what_is_wrong(error: KeyError | ValueError) -> str:
    if isinstance(error, KeyError):
        return f"it says no {error.args[0]}"
    if isinstance(error, ValidationError):  # of a scaling, whose fields stand in rope_scaling or rope_parameters
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        return (
            f"its rope says no {field}"
            if first["type"] == "missing"
            else f"its rope's {field} is {first['input']!r:.40}"
        )
    return str(error)


def config_of(form: Form, layers: Sequence[int]) -> DraftConfig:
    """The draft that SGLang builds from a checkpoint that passed the rules.

    Args:
        form: of the checkpoint.
        layers: the auxiliary layers.

    Raises:
        ValidationError, ValueError: it lacks a size, or its rope turns as it should in SGLang alone.
    """
    positions = form.max_position_embeddings
    return DraftConfig.model_validate(
        {
            "hidden_size": form.hidden_size,
            "target_hidden_size": form.target_hidden_size,
            "layers": list(layers),
            "depth": form.depth,
            "intermediate_size": form.intermediate_size,
            "heads": form.heads,
            "kv_heads": form.kv_heads,
            "head_dim": form.head_dim,
            "rms_norm_eps": form.rms_norm_eps,
            "rope_theta": form.rope["rope_theta"],
            "rope_scaling": scaling_of(form.rope, positions or 0, latent=form.latent is not None),
            "vocabulary_size": form.vocabulary_size,
            "draft_vocabulary_size": form.draft_vocabulary_size,
            "max_position_embeddings": positions,
            "norm_before_fc": form.norm_before_fc,
            "fc_norm": form.fc_norm,
            "norm_output": form.norm_output,
            "fc_bias": form.fc_bias,
            "output_bias": form.output_bias,
            "latent": None if form.latent is None else asdict(form.latent),
        }
    )


def scaling_of(rope: Mapping[str, Any], positions: int, *, latent: bool = False) -> Scaling | None:
    """The scaling of a rotary embedding, as SGLang reads it.

    Args:
        rope: in Transformers 5's spelling (``rope_parameters``).
        positions: that the configuration allows; SGLang takes them where the rope does not say its original ones.
        latent: for latent attention, where each of YaRN's two ``mscale`` counts alone.

    Raises:
        ValueError: it turns as it should in SGLang alone.
    """
    if (why := sglangs_alone(rope)) is not None:
        raise ValueError(why)
    kind = rope["rope_type"]
    given = {"original_max_position_embeddings": positions, **rope}
    # "proportional" turns a part of a head; where that is all of it, it is the plain one
    if kind in ("default", "mrope", "proportional"):
        return None
    if kind == "linear":
        return LinearScaling.model_validate(given)
    if kind == "llama3":
        return Llama3Scaling.model_validate(given)
    if kind == "dynamic":
        return DynamicScaling.model_validate(given)
    if kind == "longrope":
        return LongScaling.model_validate(given)
    if latent:  # whose class in SGLang knows no truncate
        given.pop("truncate", None)
    elif not {"mscale", "mscale_all_dim"} <= given.keys():
        given = {name: value for name, value in given.items() if name not in ("mscale", "mscale_all_dim")}
    return YarnScaling.model_validate(given)


def rope_parameters(config: DraftConfig) -> dict[str, object]:
    """The rotary embedding in Transformers 5's spelling: what ``scaling_of`` reads."""
    if config.rope_scaling is None:
        return {"rope_type": "default", "rope_theta": config.rope_theta}
    return {**config.rope_scaling.model_dump(exclude_none=True), "rope_theta": config.rope_theta}
