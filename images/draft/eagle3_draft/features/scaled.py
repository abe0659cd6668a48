"""States in FP8: half of bf16's bytes, with one scale for each row of each layer.

They stay so until they are where they are computed with: a GPU gets half the bytes and widens them in no time.
"""

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn


def quantised(states: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """States in FP8 (E4M3), each row of each layer scaled to the whole range of the type.

    Args:
        states: (tokens, layers x width). What is not finite in a row shows in its scale.
        width: hidden size.

    Returns:
        (tokens, layers x width) in FP8 and (tokens, layers) fp32: stored x scale is the state.
    """
    rows = states.float().reshape(len(states), states.shape[-1] // width, width)
    scale = rows.abs().amax(-1) / torch.finfo(FP8).max
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (rows / scale[..., None]).to(FP8).flatten(-2), scale


def restored(stored: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """States as numbers of a type: the inverse of ``quantised``, up to its rounding, where there is a scale.

    Args:
        stored: (tokens, layers x width).
        scale: (tokens, layers), or None where the states are stored as they are.
        dtype: wanted.
    """
    if scale is None:
        return stored.to(dtype)
    layers = scale.shape[-1]
    rows = stored.float().reshape(len(stored), layers, stored.shape[-1] // layers)
    return (rows * scale[..., None]).flatten(-2).to(dtype)
