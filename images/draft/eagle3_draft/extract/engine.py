"""What Extract needs of whatever runs the target."""

from collections.abc import Iterator, Sequence
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

    def states(self, conversations: Sequence[Sequence[int]]) -> Iterator[States]:
        """The states over each conversation, in order, each computed from an empty cache; on the CPU.

        An engine may run several at a time and ahead of what was taken, within bounds of its own.
        """
        ...

    def close(self) -> None:
        """End what the engine started. It is not used afterwards."""
        ...


class AnsweringEngine(Engine, Protocol):
    """Lets the target speak, too."""

    def answers(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """What the target itself says to prompts, greedily: at most so many tokens, the one that ends an answer included."""
        ...
