"""What a server runs with, against what it was asked for.

SGLang adjusts arguments in silence (with topK 1 the number of draft tokens, with speculation the number of running
requests), so what matters is what it says itself.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from eagle3_api.jobs.probe import MISMATCHES, Mismatch

#: Of each value, so many characters fit the report.
CHARACTERS = 60

Scalar = str | int | float | bool | None


def mismatches(asked: Mapping[str, Scalar], info: Mapping[str, Any]) -> list[Mismatch]:
    """The arguments that differ, as many as a report has room for.

    Args:
        asked: by the server's own names.
        info: ``/server_info``. A name that it lacks is null.
    """
    differ = [name for name, value in asked.items() if not _same(value, info.get(name))]
    return [Mismatch(name=name, asked=_text(asked[name]), got=_text(info.get(name))) for name in differ[:MISMATCHES]]


def _same(asked: Scalar, got: Any) -> bool:
    # 1 is 1.0, but neither is true
    if isinstance(asked, bool) or isinstance(got, bool):
        return asked is got
    if isinstance(asked, int | float) and isinstance(got, int | float):
        return math.isclose(asked, got)
    return bool(asked == got)


def _text(value: Any) -> str:
    """As JSON. Of a long one the middle is left out: paths differ at their ends."""
    text = json.dumps(value)
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS // 2]}…{text[1 - CHARACTERS // 2 :]}"
