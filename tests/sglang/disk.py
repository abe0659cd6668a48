"""A disk that takes the last files of a handover piece by piece, and the clock by which it is slow.

In the names of the modules of both processes. The clock goes on only between looks of the one that reads, so that what is tested
is how long a disk took by it, however busy the machine is.
"""

import time
from collections.abc import Callable
from multiprocessing import Value
from pathlib import Path

#: Files before it come at once: none of the engine's work waits for one.
FIRST_SLOW = 3

_PATIENCE = 60.0


class Clock:
    """In place of ``time``, for the one that reads."""

    def __init__(self) -> None:
        self._now, self._looks = Value("d", 0.0), Value("i", 0)

    def monotonic(self) -> float:
        return float(self._now.value)

    def sleep(self, seconds: float) -> None:
        """Between two looks."""
        with self._looks.get_lock():
            self._looks.value += 1
        time.sleep(seconds)

    def go_on(self, seconds: float) -> None:
        """By the one that writes: so many seconds pass while nothing else does."""
        self._wait_for_a_look()
        self._now.value += seconds
        self._wait_for_a_look()

    def _wait_for_a_look(self) -> None:
        wanted, give_up = self._looks.value + 2, time.monotonic() + _PATIENCE  # one may be under way
        while self._looks.value < wanted:
            if time.monotonic() > give_up:
                raise TimeoutError("nobody looks at this clock")
            time.sleep(0.001)


CLOCK = Clock()


def taking(pieces: int, seconds: float) -> Callable[[Path], Path]:
    """In place of what says where the rows of a note are: a file that takes so many pieces, and so long for each of them."""

    class Slow(type(Path())):  # type: ignore[misc]
        def write_bytes(self, data: memoryview) -> None:
            with self.open("wb") as file:
                size = -(-len(data) // pieces)
                for begin in range(0, len(data), size):
                    file.write(data[begin : begin + size])
                    file.flush()
                    if int(self.stem) >= FIRST_SLOW:
                        CLOCK.go_on(seconds)

    return lambda note: Slow(note.with_suffix(".rows"))
