"""What Extract needs of whatever runs the target."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from eagle3_api.jobs import SamplingDefaults
from eagle3_draft.data.dialogue import Answer
from eagle3_draft.features import Teaching


@dataclass(frozen=True)
class States:
    """What the target computed over one conversation.

    Attributes:
        hidden: (tokens, layers x hidden), outputs of the layers side by side, in their order.
        teaching: what the target says after each token.
        hidden_scale: (tokens, layers) float32, where the states are in FP8 already.
    """

    hidden: torch.Tensor
    teaching: Teaching
    hidden_scale: torch.Tensor | None = None


@dataclass(frozen=True)
class Sampling:
    """How the target's answers are drawn.

    Attributes:
        temperature: 0 takes the likeliest token each time.
        top_p: share of the probability that a token is drawn from.
        seed: from which each answer has its own.
        end_tokens: each of them ends an answer.
        defaults: of the target.
    """

    temperature: float
    top_p: float
    seed: int
    end_tokens: tuple[int, ...]
    defaults: SamplingDefaults | None = None

    @property
    def of_target(self) -> dict[str, float]:
        """The defaults by name, as both engines call them."""
        return self.defaults.model_dump(exclude_none=True) if self.defaults is not None else {}


class Asker(Protocol):
    """Whoever asks the target, a question at a time, until there is nothing more to ask (``Dialogue``)."""

    @property
    def prompt(self) -> list[int] | None:
        """The tokens from which the target is to go on; None at the end."""
        ...

    @property
    def room(self) -> int:
        """Tokens that the answer may have."""
        ...

    def seed(self, base: int) -> int:
        """For the answer's sampling."""
        ...

    def take(self, answer: Answer) -> None:
        """The answer to ``prompt``."""
        ...


AskerT = TypeVar("AskerT", bound=Asker)


class Answering(Protocol[AskerT]):
    """Dialogues that a target answers in. An engine may do so while states are taken from it."""

    def ask(self, dialogues: Sequence[AskerT]) -> None:
        """Add dialogues. Until they are finished they are the engine's, which may change them from another thread."""
        ...

    def finished(self, seconds: float) -> list[AskerT]:
        """The dialogues that were finished since they were last asked for; there may be none.

        Args:
            seconds: to wait for one at most. An engine that answers only when it is waited for does nothing in no time, and
                may take longer to give one answer otherwise.
        """
        ...

    def close(self) -> None:
        """Give up the dialogues that are not finished."""
        ...


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

        An engine may begin at once, and run several at a time and ahead of what was taken, within bounds of its own. What was
        asked for first must be taken first.
        """
        ...

    def converse(self, sampling: Sampling) -> "Answering[AskerT]":
        """Have the target answer in dialogues, until there is nothing more to answer in them.

        Args:
            sampling: how answers are drawn.
        """
        ...

    def close(self) -> None:
        """End what the engine started. It is not used afterwards."""
        ...
