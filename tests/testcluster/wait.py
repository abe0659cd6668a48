"""Waiting for a condition, with a bound: what tests do in place of a `sleep`, but for one that stands for slowness or for silence."""

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5  # seconds


def wait_for(
    what: str, seconds: float, check: Callable[[], Seen], *, tolerate: tuple[type[Exception], ...] = ()
) -> Seen:
    """Calls `check` until what it returns is true, and returns that.

    A `check` that raises an API server's 404 has seen that the object is not there yet; so has one that raises an
    exception in `tolerate`. Every other exception ends the wait.

    Raises AssertionError that names `what` and the last value seen once `seconds` have passed.
    """
    end = time.monotonic() + seconds
    pause = FIRST_PAUSE
    while True:
        seen: object
        try:
            value = check()
            if value:
                return value
            seen = value
        except Exception as error:
            if not isinstance(error, tolerate) and getattr(error, "status", None) != 404:
                raise
            seen = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:g} s; last seen: {_short(seen)}")
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _short(seen: object, limit: int = 2000) -> str:
    text = seen if isinstance(seen, str) else repr(seen)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
