"""Lets speculators' trainer, which takes a GPU for granted, run on a CPU. Python imports this where the folder is on PYTHONPATH.

Its ``.to(0)`` means the first GPU, and it waits for a GPU to measure a step. Nothing else of it is touched.
"""

from collections.abc import Callable
from typing import Any

import torch


def _to_cpu(move: Callable[..., Any]) -> Callable[..., Any]:
    def moved(self: Any, *where: Any, **settings: Any) -> Any:
        return move(self, *("cpu" if type(one) is int else one for one in where), **settings)

    return moved


torch.Tensor.to = _to_cpu(torch.Tensor.to)  # type: ignore[method-assign]
torch.nn.Module.to = _to_cpu(torch.nn.Module.to)  # type: ignore[method-assign]
torch.accelerator.synchronize = lambda device=None, /: None
