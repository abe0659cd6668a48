"""What the models of the object are made of: CEL rules, and defaults of sections."""

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, JsonValue
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from eagle3_api.base import Model


def rule(expression: str, message: str, *, computed: str | None = None) -> dict[str, JsonValue]:
    """One CEL rule of the schema.

    Args:
        expression: true for a valid object; ``self`` is the section that carries the rule.
        message: what the user reads when it is false, unless ``computed``.
        computed: a CEL expression for a message that contains the object's own values.
    """
    made: dict[str, JsonValue] = {"rule": expression, "message": message}
    return made | ({"messageExpression": computed} if computed else {})


def rules(*made: dict[str, JsonValue]) -> ConfigDict:
    """The model configuration that puts CEL rules on a section."""
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": list(made)})


@dataclass(frozen=True)
class Says:
    """What the API server says of a string that does not match its pattern, which it would show to the user instead.

    Stands after the pattern in the string's annotation, and makes a CEL rule of it.

    Attributes:
        message: a sentence that helps.
        pattern: what is asked of new objects instead, where those that are stored may have been held to less: an operator
            that cannot read an object does nothing for it.
    """

    message: str
    pattern: str | None = None

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        read = schema.pop("pattern")
        made = rule(f"self.matches(r'{self.pattern or read}')", self.message)
        return schema | {"x-kubernetes-validations": [made]}


#: A list whose items the API server knows by their names, which must differ.
BY_NAME: dict[str, JsonValue] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}

Section = TypeVar("Section", bound=Model)


def section(model: type[Section], description: str | None = None) -> Section:
    """A section that a user may leave out: the API server then fills in the defaults of its fields.

    The default spells them out, because the API server checks a schema's defaults against the CEL rules as they stand.
    """
    default = model()
    extra: dict[str, Any] = {"default": default.to_json()}
    made: Section = Field(default, description=description, json_schema_extra=extra)
    return made
