"""What conversations open with, which decides whether they are kept out of training: their first question.

Several answers to one question, and dialogues that are listed as they grow, are on one side then: the draft is measured and
probed with what it never learned. What stands before the question, a system prompt or a greeting, is left aside, for the same
question after another one is the same question. So are blanks.

Where more than half of all conversations open alike, with a greeting or a form that a program fills in later, the first question
tells nothing: those open with their first two questions, or with as many more as it takes; and with their system prompt, too, where
they ask no more.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

#: Of a digest: to choose between two sides takes no more.
DIGEST_BYTES = 8

#: A held-out share of so many times what was asked for is told, or of one part in so many.
FAR_OFF = 2


def digests(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """End to end, ``DIGEST_BYTES`` for each question of a conversation: a digest of it and of those before it. And then one of all
    questions and the system prompt. Nothing of a conversation that asks nothing.
    """
    asked, found = hashlib.sha256(), b""
    texts = {role: [one["content"] for one in messages if one["role"] == role] for role in ("user", "system")}
    for text in [*texts["user"], *texts["system"]] if texts["user"] else ():
        asked.update(json.dumps(text.split()).encode())
        found += asked.digest()[:DIGEST_BYTES]
    return found


class Openings:
    """What each of many conversations opens with.

    Args:
        every: the ``digests`` of each; of one that asks nothing, another digest of that length.

    Attributes:
        most: how many conversations open with the same, at most.
        alike: how many have a first question that more than half of all have, and are told apart by what else they are asked.
    """

    def __init__(self, every: Sequence[bytes]) -> None:
        self.alike, depth = 0, 0
        self._found = [one[:DIGEST_BYTES] for one in every]
        common, self.most = _commonest(self._found)
        while self.most > 1 and 2 * self.most > len(every):
            depth += DIGEST_BYTES
            further = slice(depth, depth + DIGEST_BYTES)
            longer = [
                (one[further] or own) if own == common else own for one, own in zip(every, self._found, strict=True)
            ]
            if longer == self._found:
                return  # there is no more
            self.alike = self.alike or self.most
            self._found = longer
            common, self.most = _commonest(longer)

    def held_out(self, share: float) -> list[bool]:
        """Which conversations are kept out of training, in order; those of one opening at least, if there are any.

        Args:
            share: of the openings, about.
        """
        least = min(self._found, default=b"")
        return [own == least or int.from_bytes(own) < share * 2 ** (8 * DIGEST_BYTES) for own in self._found]

    def notes(self, share: float) -> list[str]:
        """What whoever asked for this share does not expect, in sentences."""
        found, count, notes = sum(self.held_out(share)), len(self._found), []
        if self.alike:
            notes.append(
                f"{self.alike:,} of {count:,} conversations open with the same question; they are held out or not by what else "
                "they are asked, so that the draft is also measured with a question that it learned"
            )
        if self.most > 1 and not count * share / FAR_OFF <= found <= count * share * FAR_OFF:
            notes.append(
                f"{found:,} of {count:,} conversations ({found / count:.1%}) are held out, not data.holdout's {share:.1%}: what "
                f"opens with the same question is on one side, up to {self.most:,} of them"
            )
        return notes


def _commonest(found: Sequence[bytes]) -> tuple[bytes, int]:
    return next(iter(Counter(found).most_common(1)), (b"", 0))
