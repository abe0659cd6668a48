"""Words that cross a boundary, and may be those of a newer version."""

from enum import StrEnum
from typing import Self


class Word(StrEnum):
    """A set of words to which a newer version may add: one that is not known here is read, equals none that is, and is kept.

    A status outlives the operator that wrote it. After a ``helm rollback`` its words are still there, and nothing is decided
    by those that only the newer operator knew.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        word = str.__new__(cls, value)
        word._name_ = word._value_ = value
        return word
