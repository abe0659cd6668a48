"""What the API server would refuse of an object, told without one: the CEL rules of its definition, and items that occur twice.

What a field alone may be, the models say when they read it. The rules that stand over several fields, or in words of their own,
are written in CEL in the definition, and nowhere else; here they are evaluated by Google's library, as the API server evaluates them.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from eagle3_api.crd import definition

Json = dict[str, Any]

#: Of the names of fields, those that CEL has a meaning for; the API server's rules call them __in__.
_RESERVED = frozenset({"in"})

#: A rule over a change, which an object that is new cannot break.
_OF_A_CHANGE = "oldSelf"


class NoCelError(Exception):
    """The library that evaluates CEL is not installed."""


def refused(name: str, spec: Json) -> Iterator[tuple[str, str]]:
    """Each rule that an object breaks: the path of what carries it, and the words of the API server.

    Args:
        name: of the object.
        spec: with its defaults, as the API server applies them before it looks at rules.

    Raises:
        NoCelError: nothing can be told.
    """
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    yield from _broken(schema, {"metadata": {"name": name}, "spec": spec}, "")


def _broken(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations") or ():
        if _OF_A_CHANGE not in rule["rule"] and _evaluated(rule["rule"], value) is not True:
            computed = rule.get("messageExpression")
            yield path, _evaluated(computed, value) if computed else rule["message"]
    if isinstance(value, Mapping):
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, one in value.items():
            if inner := properties.get(name) or others:
                yield from _broken(inner, one, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        yield from _twice(value, schema, path)
        for number, one in enumerate(value):
            yield from _broken(schema["items"], one, f"{path}[{number}]")


def _twice(items: Sequence[Any], schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Items of a list that must differ, as a whole or by some of their fields, and do not."""
    keys, known = schema.get("x-kubernetes-list-map-keys") or (), []
    if not keys and schema.get("x-kubernetes-list-type") != "set":
        return
    for number, item in enumerate(items):
        key = ", ".join(f"{name} {item.get(name)}" for name in keys) or str(item)
        if key in known:
            yield f"{path}[{number}]", f"duplicate of {key}"
        known.append(key)


def _evaluated(expression: str, value: Any) -> Any:
    """What a rule, or the expression of its message, makes of a value; a rule that cannot be evaluated makes nothing."""
    return _compiled(expression).eval(data={"self": _escaped(value)}).value()


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {f"__{name}__" if name in _RESERVED else name: _escaped(one) for name, one in value.items()}
    return [_escaped(one) for one in value] if isinstance(value, list) else value


@cache
def _compiled(expression: str) -> Any:
    return _environment().compile(expression)


@cache
def _environment() -> Any:
    """CEL with what Kubernetes adds to it, as far as our rules use that."""
    try:
        from cel_expr_python import cel
        from cel_expr_python.ext.ext_strings import ExtStrings
    except ImportError as error:
        raise NoCelError from error

    def is_sorted(items: Sequence[Any]) -> bool:
        return all(one <= next_ for one, next_ in pairwise(items))

    of_a_list = cel.Overload(
        "list_is_sorted", cel.Type.BOOL, [cel.Type.List(cel.Type.DYN)], is_member=True, impl=is_sorted
    )
    return cel.NewEnv(
        variables={"self": cel.Type.DYN},
        extensions=[ExtStrings()],
        functions=[cel.FunctionDecl("isSorted", [of_a_list])],
    )
