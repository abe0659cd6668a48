"""Rotary position embedding, as Llama's: the first half of a head's numbers is rotated against the second."""

import math

import torch
from torch import Tensor

from eagle3_api.checkpoints.rope import magnitude
from eagle3_draft.model.config import DraftConfig, DynamicScaling, Llama3Scaling, LongScaling, YarnScaling


class Rotary:
    """The rotary embedding of a draft.

    Args:
        config: of the draft.
        device: where angles are computed.
    """

    def __init__(self, config: DraftConfig, device: torch.device) -> None:
        self.device = device
        self._frequencies = inverse_frequencies(config).to(device)
        self._stretch = stretch(config)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of each position's angles: both (tokens, 1, rotary_dim), float32, for all heads."""
        angles = positions.to(torch.float32)[:, None] * self._frequencies
        angles = torch.cat([angles, angles], -1)[:, None, :]
        if self._stretch == 1.0:
            return angles.cos(), angles.sin()
        return angles.cos() * self._stretch, angles.sin() * self._stretch


def inverse_frequencies(config: DraftConfig) -> Tensor:
    """Radians per position: (rotary_dim / 2,), float32.

    Source of the scalings: SGLang 0.5.21, ``rotary_embedding``. Its linear, llama3 and yarn are Transformers' of these names, its dynamic
    is not, and its longrope is for texts of up to ``turned_alike`` tokens.
    """
    width, scaling, base = config.rotary_dim, config.rope_scaling, config.rope_theta
    if isinstance(scaling, DynamicScaling):
        base *= scaling.growth ** (width / (width - 2))
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    frequencies = 1.0 / base**exponents
    if scaling is None or isinstance(scaling, DynamicScaling):
        return frequencies
    if isinstance(scaling, LongScaling):
        return frequencies / torch.tensor(scaling.short_factor)
    if isinstance(scaling, Llama3Scaling):
        kept = _kept_by_llama3(frequencies, scaling)
    elif isinstance(scaling, YarnScaling):
        kept = _kept_by_yarn(width, base, scaling)
    else:
        kept = torch.zeros_like(frequencies)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def stretch(config: DraftConfig) -> float:
    """What turned queries and keys are multiplied with, by YaRN and LongRoPE. Source: as of ``inverse_frequencies``."""
    scaling = config.rope_scaling
    if isinstance(scaling, LongScaling):
        if scaling.short_mscale is not None:
            return scaling.short_mscale
        original = scaling.original_max_position_embeddings
        further = config.max_position_embeddings / original
        return math.sqrt(1 + math.log(further) / math.log(original)) if further > 1 else 1.0
    if not isinstance(scaling, YarnScaling):
        return 1.0
    return (
        magnitude(scaling.factor, scaling.mscale)
        / magnitude(scaling.factor, scaling.mscale_all_dim)
        * scaling.attn_factor
    )


def _kept_by_llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """How much of each frequency stays, from 0 to 1."""
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((scaling.original_max_position_embeddings / wavelengths - low) / (high - low)).clamp(0, 1)


def _kept_by_yarn(width: int, theta: float, scaling: YarnScaling) -> Tensor:
    """How much of each frequency stays, from 0 to 1: all of those that turn ``beta_fast`` times within the original
    positions, nothing of those that turn less than ``beta_slow`` times."""

    def which(turns: float) -> float:
        return (
            width * math.log(scaling.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))
        )

    low, high = which(scaling.beta_fast), which(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = (torch.arange(width // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return kept if scaling.extrapolation_factor is None else kept * scaling.extrapolation_factor


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn queries or keys (tokens, heads, rotary_dim) to their positions; computed in float32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    first, second = wide.chunk(2, -1)
    return (wide * cosines + torch.cat([-second, first], -1) * sines).to(x.dtype)
