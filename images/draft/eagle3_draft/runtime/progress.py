"""Progress lines: how a running stage tells the operator, and whoever reads its log, how far it is.

The operator takes a Job without a line for ``stallTimeout`` for hung, so a stage calls ``update`` at every step of its
work; printing is bounded here.
"""

import sys
import time
from collections.abc import Callable
from threading import Lock
from typing import TextIO

from eagle3_api.jobs import Progress

#: Seconds between two lines.
INTERVAL = 2.0


class ProgressReporter:
    """The progress of one piece of work. Several threads may tell of it.

    Args:
        total: the whole work, in units.
        unit: what is counted, in plural ("tokens").
        clock: seconds since the epoch.
        out: where the lines go; standard output unless given.

    Attributes:
        warning: that every further line ends with.
    """

    def __init__(
        self, total: float, unit: str, *, clock: Callable[[], float] = time.time, out: TextIO | None = None
    ) -> None:
        self.warning = ""
        self._total = total
        self._unit = unit
        self._clock = clock
        self._out = out
        self._first: tuple[float, float] | None = None
        self._done = 0.0
        self._printed: float | None = None
        self._complete = False
        self._telling = Lock()

    def update(self, done: float, message: str = "") -> None:
        """Say how much is done. The first call and the one that completes the work always print a line.

        Args:
            done: in units, of ``total``. Work that was done by an earlier, interrupted run counts; the time left is
                reckoned from this run alone.
            message: a few words for people; by default how many units of how many.
        """
        with self._telling:
            self._update(done, message)

    def _update(self, done: float, message: str) -> None:
        self._done = done
        now = self._clock()
        if self._first is None:
            self._first = (now, done)
        completes = done >= self._total and not self._complete
        # A clock that was set back would have it silent for as long, and its Job taken for hung
        if self._printed is not None and 0 <= now - self._printed < INTERVAL and not completes:
            return
        self._printed = now
        self._complete = self._complete or completes
        told = message or f"{done:,.0f} of {self._total:,.0f} {self._unit}"
        line = Progress(
            done=round(min(1.0, max(0.0, done / self._total)), 4) if self._total > 0 else 1.0,
            seconds_left=self._seconds_left(now, done, since=self._first),
            message=f"{told}; {self.warning}" if self.warning else told,
            time=now,
        )
        print(line.dump(), file=self._out or sys.stdout, flush=True)

    def advance(self, more: float, message: str = "") -> None:
        """Say that so much more is done than was said last; nothing more means that it is still under way."""
        with self._telling:
            self._update(self._done + more, message)

    def _seconds_left(self, now: float, done: float, since: tuple[float, float]) -> float | None:
        if done >= self._total:
            return 0.0
        began, already = since
        if done <= already or now <= began:
            return None
        return round((self._total - done) * (now - began) / (done - already), 1)
