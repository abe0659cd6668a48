"""SIGTERM as a question that a stage asks when it suits it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.stage import StageError


class Interruption:
    """Whether the pod is to end."""

    def __init__(self) -> None:
        self.wanted = False

    def check(self) -> None:
        """Raises:
        StageError: the pod is to end (Interrupted).
        """
        if self.wanted:
            raise StageError(
                ExitCode.INTERRUPTED, Reason.INTERRUPTED, "interrupted; the next try goes on after the last whole shard"
            )


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Within this, SIGTERM and SIGINT end nothing; they are noted."""
    interruption = Interruption()

    def note(_: int, __: FrameType | None) -> None:
        interruption.wanted = True

    former = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield interruption
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
