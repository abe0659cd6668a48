"""Tools, as a request to a server offers them: OpenAI's ``{"type": "function", "function": {"name": ..., "parameters": ...}}``.

What a chat template is given of them is SGLang's affair: which fields it fills in, leaves out and in which order differs from
version to version, and the text that the target reads with it. So they go through SGLang's own classes where it is installed, as
it is wherever its engine runs; elsewhere they are taken as they are written.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

#: In OpenAI's form.
Tool = dict[str, Any]


def listed(value: Any) -> list[Tool]:
    """What data has of tools: a list of them, or of their functions alone, or the same as a text of JSON.

    Raises:
        ValueError: it is something else.
        RecursionError: the text is nested too deep.
    """
    found = json.loads(value) if isinstance(value, str) and value.strip() else value
    if not found:
        return []
    if not isinstance(found, list):
        raise ValueError("no list")
    return [_tool(one) for one in found]


def _tool(value: Any) -> Tool:
    one = json.loads(value) if isinstance(value, str) else value
    made = one if isinstance(one, dict) and "function" in one else {"type": "function", "function": one}
    function = made["function"]
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError("no function with a name")
    return {"type": "function", **made}


def names(tools: Sequence[Tool]) -> list[str]:
    """Of their functions."""
    return [tool["function"]["name"] for tool in tools]


def served(tools: Sequence[Tool]) -> list[Tool]:
    """Tools as SGLang's server hands them to the chat template.

    Raises:
        ValueError: the server refuses them.
    """
    found = find_spec("sglang") if tools else None
    if found is None or found.origin is None:  # a mere folder of that name
        return [*tools]
    from sglang.srt.entrypoints.openai.protocol import Tool as Served
    from sglang.srt.function_call.utils import normalize_json_schema_types

    made = [Served.model_validate(deepcopy(tool)) for tool in tools]
    for tool in made:
        normalize_json_schema_types(tool.function.parameters)
    return [tool.model_dump() for tool in made]
