"""What Extract needs of whatever runs the target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class States:
    """What the target computed over one conversation.

    Attributes:
        hidden: (tokens, layers x hidden), outputs of the layers side by side, in their order.
        last: (tokens, hidden), what lm_head multiplies.
    """

    hidden: torch.Tensor
    last: torch.Tensor


class Engine(Protocol):
    """Runs the target.

    Attributes:
        hidden_size: of the target.
        vocabulary_size: rows of its embedding: no token may be beyond.
        provenance: what ran it: versions, device, dtype.
    """

    hidden_size: int
    vocabulary_size: int
    provenance: dict[str, str]

    def states(self, input_ids: Sequence[int]) -> States:
        """The states over one conversation, from an empty cache, on the CPU."""
        ...
