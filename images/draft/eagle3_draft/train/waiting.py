"""How long a device stood still because the batch that it was to compute next had not come.

The host runs ahead of a GPU: while it waits for a batch there is mostly work left that was launched before, and nothing is
lost. What counts is the gap on the device, from the end of what was launched to the beginning of what follows.
"""

import time
from collections import deque
from typing import Any, Generic, Protocol, TypeVar

import torch

#: When a device was done with all that had been launched on it by then.
Moment = TypeVar("Moment")


class Clock(Protocol[Moment]):
    """A device's."""

    def now(self) -> Moment:
        """The moment of all that was launched so far."""

    def passed(self, moment: Moment) -> bool:
        """Whether the device has come so far."""

    def seconds(self, begin: Moment, end: Moment) -> float:
        """Between two moments that have passed."""


class HostClock:
    """Of the CPU, which does at once what it is told."""

    def now(self) -> float:
        return time.monotonic()

    def passed(self, moment: float) -> bool:
        return True

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class GpuClock:
    """Of the current stream of a GPU."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def passed(self, moment: torch.cuda.Event) -> bool:
        return bool(moment.query())  # type: ignore[no-untyped-call]

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1000


def clock_of(device: torch.device) -> Clock[Any]:
    """The clock by which a device's gaps are measured."""
    return GpuClock() if device.type == "cuda" else HostClock()


class Waiting(Generic[Moment]):
    """Adds up the gaps of one device.

    Args:
        clock: the device's.
    """

    def __init__(self, clock: Clock[Moment]) -> None:
        self._clock = clock
        self._gaps: deque[tuple[Moment, Moment]] = deque()  # of which the device may not have passed the end
        self._idle_from = clock.now()

    def begin(self) -> None:
        """What was launched by now, or done instead, is followed by work on a batch."""
        self._idle_from = self._clock.now()

    def came(self) -> None:
        """The batch is there. Its work is launched from here on."""
        self._gaps.append((self._idle_from, self._clock.now()))

    def take(self) -> float:
        """Seconds of all gaps that the device has behind it, each told once. Waits for nothing."""
        seconds = 0.0
        while self._gaps and self._clock.passed(self._gaps[0][1]):
            seconds += self._clock.seconds(*self._gaps.popleft())
        return seconds
