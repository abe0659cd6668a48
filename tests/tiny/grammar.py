"""Conversations about counting: easy to learn in a minute, and predictable though not trivial.

The user names a number and a stride, the assistant counts on::

    user:       count from 60 in twos
    assistant:  62 64 ones 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 twos 82 84 ... 126
    user:       go on in threes
    assistant:  1 4 7 10 13 16 twos 18 20 ... 126

- There are 128 numbers, in a ring; an answer ends before it would pass the last one.
- After a multiple of 16 the assistant usually announces a stride, which the number decides, and counts on in that.  One
  time in five it does not: the text has entropy there, but the likeliest continuation is always determined.
- ``go on`` continues from the last number of the answer before.
"""

from __future__ import annotations

import random

NUMBERS = 128
GATE = 16
STRIDES = {"ones": 1, "twos": 2, "threes": 3, "fives": 5}
WORDS = (*map(str, range(NUMBERS)), *STRIDES, "count", "from", "in", "go", "on")

_STRIDE_WORDS = tuple(STRIDES)
_SILENT_AT_A_GATE = 0.2

#: ``{"role": "user" | "assistant", "content": words}``.
Message = dict[str, str]


def question(last: int, stride: str) -> str:
    """What the user says to have the assistant count on from ``last``."""
    return f"count from {last} in {stride}"


def stride_after(number: int) -> str | None:
    """The stride that is usually announced after ``number``; None after most numbers."""
    return _STRIDE_WORDS[number // GATE % len(_STRIDE_WORDS)] if number % GATE == 0 else None


def answer(last: int, stride: str, rng: random.Random | None = None) -> list[str]:
    """Count on from ``last``: the likeliest words, or with ``rng`` words drawn as the conversations have them."""
    words: list[str] = []
    number = (last + STRIDES[stride]) % NUMBERS
    while number < NUMBERS:
        words.append(str(number))
        announced = stride_after(number)
        if announced is not None and (rng is None or rng.random() >= _SILENT_AT_A_GATE):
            words.append(announced)
            stride = announced
        number += STRIDES[stride]
    return words


def conversation(rng: random.Random) -> list[Message]:
    """One to three turns of 20 to 120 tokens together."""
    while True:
        messages = _turns(rng, rng.choice((1, 1, 2, 3)))
        if 20 <= tokens(messages) <= 120:
            return messages


def conversations(seed: int, count: int) -> list[list[Message]]:
    """``count`` conversations, the same ones for the same seed."""
    rng = random.Random(seed)
    return [conversation(rng) for _ in range(count)]


def tokens(messages: list[Message]) -> int:
    """Length in tokens: one a word, one for each message's role, one for its end, one for the beginning."""
    return 1 + sum(2 + len(message["content"].split()) for message in messages)


def _turns(rng: random.Random, turns: int) -> list[Message]:
    messages: list[Message] = []
    last = 0
    for turn in range(turns):
        stride = rng.choice(_STRIDE_WORDS)
        if turn and rng.random() < 0.5:
            asked = f"go on in {stride}"
        else:
            last = rng.randrange(NUMBERS)
            asked = question(last, stride)
        words = answer(last, stride, rng)
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": " ".join(words)}]
        last = int(next(word for word in reversed(words) if word not in STRIDES))
    return messages
