"""SIGTERM: the pod is to end, and is killed when its grace period is over. SIGINT means the same, by hand.

The supervisor passes it on to the stage's processes. What a process of ours does about it is one of three things:

- *It asks, where it can stop.* What works for hours notes the signal (``Termination``) and looks between two pieces of work,
  where nothing is lost: between two steps of training, between two conversations of an extraction.
- *It is interrupted, where it waits.* What waits for somebody else, who may not answer for long, has KeyboardInterrupt raised
  (``interrupting``): a fetch.
- *It is ended by the signal.* All others: what they write has no manifest until it is whole, and is begun anew.

However it comes about, it is the exit code ``INTERRUPTED`` and the reason Interrupted in the end: the Job tries again, and the
next pod goes on from what was finished. Processes that are not ours and have a process group of their own are passed the signal on.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError


def interrupted(following: str = "goes on from what was finished") -> StageError:
    """How a stage ends then. ``following`` is what the next try does."""
    return StageError(ExitCode.INTERRUPTED, Reason.INTERRUPTED, f"interrupted; the next try {following}")


class Termination:
    """Notes from now on that the pod is to end; as a context, until that is left. To be made in the main thread."""

    def __init__(self) -> None:
        #: The signal that came.
        self._signal: signal.Signals | None = None
        self._group: int | None = None
        self._former = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    @property
    def received(self) -> bool:
        """The pod is to end."""
        return self._signal is not None

    def check(self) -> None:
        """Raises:
        StageError: the pod is to end (Interrupted).
        """
        if self.received:
            raise interrupted()

    @contextmanager
    def passed_on_to(self, group: int) -> Iterator[None]:
        """Meanwhile a process group is sent what comes, and what came before."""
        self._group = group
        self._pass_on()
        try:
            yield
        finally:
            self._group = None

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signal = signal.Signals(number)
        self._pass_on()

    def _pass_on(self) -> None:
        if self._group is not None and self._signal is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._group, self._signal)


@contextmanager
def interrupting() -> Iterator[None]:
    """Within this, SIGTERM interrupts as Ctrl-C does: KeyboardInterrupt, wherever the main thread is."""
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
