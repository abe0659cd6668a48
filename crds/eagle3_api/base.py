"""The base of every model that crosses a boundary: camelCase outside, snake_case inside, immutable."""

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
