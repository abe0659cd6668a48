"""Lengths of time, written as ``1h30m``. Five digits bound what is added to the time of day: 99999h are eleven years."""

from typing import Annotated

from pydantic import StringConstraints

from eagle3_api.spec.schema import Says

#: What is read, also of stored objects; what new ones are held to, ``Says`` has.
_NOT_ZERO = StringConstraints(pattern=r"^([1-9][0-9]*h)?([1-9][0-9]*m)?([1-9][0-9]*s)?$", min_length=2, max_length=16)

#: ``0s`` is one of them.
Duration = Annotated[
    str,
    StringConstraints(pattern=r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?$", min_length=2, max_length=16),
    Says(
        "a length of time is written in hours, minutes and seconds, of five digits at most: 90s, 10m, 1h30m",
        pattern=r"^([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?$",
    ),
]
#: A duration that is not zero.
Period = Annotated[
    str,
    _NOT_ZERO,
    Says(
        "a length of time that is not zero is written in hours, minutes and seconds, of five digits at most: 90s, 10m, 1h30m",
        pattern=r"^([1-9][0-9]{0,4}h)?([1-9][0-9]{0,4}m)?([1-9][0-9]{0,4}s)?$",
    ),
]
#: A period of the watch. The end of each is a look, a status write and a question about counters that must have moved.
WindowLength = Annotated[
    str,
    _NOT_ZERO,
    Says(
        "a window of ten seconds at least is written in hours, minutes and seconds, of five digits at most: 30s, 10m, 1h30m",
        pattern=r"^([1-9][0-9]{0,4}h([1-9][0-9]{0,4}m)?([1-9][0-9]{0,4}s)?|[1-9][0-9]{0,4}m([1-9][0-9]{0,4}s)?|[1-9][0-9]{1,4}s)$",
    ),
]
_UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds(duration: str) -> float:
    """``1h30m`` as seconds."""
    total, number = 0, ""
    for character in duration:
        if character.isdigit():
            number += character
        else:
            total += int(number) * _UNITS[character]
            number = ""
    return float(total)
