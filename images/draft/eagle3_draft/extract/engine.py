"""What Extract needs of whatever runs the target."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from eagle3_draft.data.dialogue import Answer
from eagle3_draft.features import Teaching


@dataclass(frozen=True)
class States:
    """What the target computed over one conversation.

    Attributes:
        hidden: (tokens, layers x hidden), outputs of the layers side by side, in their order.
        teaching: what the target says after each token.
    """

    hidden: torch.Tensor
    teaching: Teaching


@dataclass(frozen=True)
class Sampling:
    """How the target's answers are drawn.

    Attributes:
        temperature: 0 takes the likeliest token each time.
        top_p: share of the probability that a token is drawn from.
        seed: from which each answer has its own.
        end_tokens: each of them ends an answer.
    """

    temperature: float
    top_p: float
    seed: int
    end_tokens: tuple[int, ...]


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

    def converse(
        self, dialogues: Sequence[AskerT], sampling: Sampling, attend: Callable[[], None]
    ) -> Generator[AskerT, None, None]:
        """Have the target answer in each dialogue until there is nothing more to answer; each comes when it is finished.

        Closed before its end, it gives up what is not finished.

        Args:
            dialogues: of which some may be finished already.
            sampling: how answers are drawn.
            attend: called now and then while none is finished; what it raises ends the conversation.
        """
        ...

    def close(self) -> None:
        """End what the engine started. It is not used afterwards."""
        ...
