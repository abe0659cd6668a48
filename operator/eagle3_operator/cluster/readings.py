"""What the logs of running Jobs said last, each read once in a while.

Every status write comes back as an event, and so does whatever happens to a pod: reading the logs each time would make a
loop as fast as they are.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from eagle3_api.jobs import Progress

#: For how long it is known whose logs did not come.
_REMEMBERED = timedelta(hours=1)


@dataclass(frozen=True)
class LogReading:
    """What was found in the logs of a Job's pods.

    Attributes:
        progress: what they said together; None where they have said nothing yet.
        problem: why one could not be read, if so.
        unread: the UIDs of the pods that were asked for their logs last and gave none.
    """

    progress: Progress | None
    problem: str = ""
    unread: frozenset[str] = frozenset()


class Readings:
    """The last readings, by the pods whose logs they are of. Safe to share between threads.

    Args:
        seconds: after which the logs of the same pods are read anew.
    """

    def __init__(self, *, seconds: float) -> None:
        self._lasts = timedelta(seconds=seconds)
        self._lock = threading.Lock()
        #: When each was made, the oldest first.
        self._kept: OrderedDict[tuple[str, ...], tuple[datetime, LogReading]] = OrderedDict()

    def get(self, pods: tuple[str, ...], now: datetime) -> LogReading | None:
        """What was read of these pods (their UIDs) a moment ago; None where it is to be read anew."""
        with self._lock:
            while self._kept and now - next(iter(self._kept.values()))[0] >= max(self._lasts, _REMEMBERED):
                self._kept.popitem(last=False)
            known = self._kept.get(pods)
            return known[1] if known and now - known[0] < self._lasts else None

    def unread(self, pods: tuple[str, ...]) -> frozenset[str]:
        """Which of these pods gave no log when they were asked last."""
        with self._lock:
            known = self._kept.get(pods)
            return known[1].unread if known else frozenset()

    def keep(self, pods: tuple[str, ...], now: datetime, reading: LogReading) -> None:
        """Remember what was read just now."""
        with self._lock:
            self._kept.pop(pods, None)
            self._kept[pods] = (now, reading)
