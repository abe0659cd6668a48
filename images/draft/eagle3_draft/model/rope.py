"""Rotary position embedding, as Llama's: the first half of a head's numbers is rotated against the second."""

import math

import torch
from torch import Tensor

from eagle3_draft.model.config import DraftConfig


def inverse_frequencies(config: DraftConfig) -> Tensor:
    """Radians per position: (head_dim / 2,), float32.

    Source of the scaling: Llama 3.1, as in Transformers' ``rope_type: llama3``.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((scaling.original_max_position_embeddings / wavelengths - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def rotation(frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position's angles: both (tokens, 1, head_dim), float32, for all heads."""
    angles = positions.to(torch.float32)[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn queries or keys (tokens, heads, head_dim) to their positions; computed in float32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    first, second = wide.chunk(2, -1)
    return (wide * cosines + torch.cat([-second, first], -1) * sines).to(x.dtype)
