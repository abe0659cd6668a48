"""The base of every model that crosses a boundary: camelCase outside, snake_case inside, immutable. And of its words."""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """An immutable value whose JSON names are camelCase.

    Unknown fields are ignored: an older reader must be able to read what a newer writer wrote. Users are told of a
    misspelt field by the API server, whose schema knows every name.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    def to_json(self) -> dict[str, object]:
        """The plain JSON object, camelCase, without fields that are not set (null)."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


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
