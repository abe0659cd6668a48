"""How an extraction is cut: into parts of a fixed number of conversations, in the order that their content decides.

The cut does not depend on how many pods share the work, so that any number of them can go on with what others began.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_api.base import Model

#: Conversations of a part. A killed pod loses less than one: some tens of gigabytes of a large target.
PART_CONVERSATIONS = 512


@dataclass(frozen=True)
class Part:
    """Some of the conversations.

    Attributes:
        number: counted from 0.
        count: how many parts there are.
        conversations: their positions.
    """

    number: int
    count: int
    conversations: range

    @property
    def name(self) -> str:
        """Of its folder. The count is in it: a store that was cut otherwise is another one."""
        return f"part-{self.number:05d}-of-{self.count:05d}"


class PartNumbers(Model):
    """What stands in a part's manifest for the sum over all parts."""

    conversations: int
    held_out: int
    tokens: int
    supervised_tokens: int
    dropped: dict[str, int]
    cut: int = 0
    lost_tokens: int = 0
    computed_tokens: int
    seconds: float
    answers: int | None = None
    cut_answers: int | None = None


def cut(conversations: int, size: int = PART_CONVERSATIONS) -> list[Part]:
    """All parts, in order; one of them even where there is no conversation."""
    count = max(1, -(-conversations // size))
    return [Part(i, count, range(i * size, min((i + 1) * size, conversations))) for i in range(count)]


def own(parts: Sequence[Part], index: int, shards: int) -> list[Part]:
    """The parts that one of several pods makes: every ``shards``-th."""
    return [part for part in parts if part.number % shards == index]
