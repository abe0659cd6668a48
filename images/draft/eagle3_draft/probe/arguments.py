"""What a server runs with, against what it was asked for.

SGLang adjusts arguments in silence (with topK 1 the number of draft tokens, with speculation the number of running
requests), so what matters is what it says itself.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

#: The report has room for so many, each of so many characters.
MISMATCHES = 8
CHARACTERS = 160

Scalar = str | int | float | bool | None


def mismatches(asked: Mapping[str, Scalar], info: Mapping[str, Any]) -> list[str]:
    """One text for each argument that differs, ``<name>: asked <a>, got <b>``, both as JSON.

    Args:
        asked: by the server's own names.
        info: ``/server_info``. A name that it lacks is null.
    """
    return [
        _shortened(f"{name}: asked {json.dumps(value)}, got ", json.dumps(info.get(name)))
        for name, value in asked.items()
        if not _same(value, info.get(name))
    ][:MISMATCHES]


def _same(asked: Scalar, got: Any) -> bool:
    # 1 is 1.0, but neither is true
    if isinstance(asked, bool) or isinstance(got, bool):
        return asked is got
    if isinstance(asked, int | float) and isinstance(got, int | float):
        return math.isclose(asked, got)
    return bool(asked == got)


def _shortened(asked: str, got: str) -> str:
    room = max(CHARACTERS - len(asked), 20)
    text = asked + (got if len(got) <= room else got[: room - 1] + "…")
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS // 2]}…{text[-(CHARACTERS // 2 - 1) :]}"
