"""One keyed queue: which object is looked at next, and when.

``Schedule`` is the whole logic as a plain value whose time is an argument. ``Queue`` runs it on asyncio: it starts
flights, a bounded number at a time, and feeds their outcome back.

- *Single flight*: an object is never reconciled twice at once.
- *Coalescing*: what happens to an object is gathered for a moment. However often an object is enqueued while it waits, it
  is looked at once; enqueued while it is in flight, it is looked at once more.
- *Requeue-after*: a flight says when the object must be looked at again; an earlier request wins over it.
- *Backoff*: an object whose flights raise is tried again after 0.25 s, 0.5 s, 1 s, ... up to five minutes; sooner where the
  flight did its work but for something (``UnfinishedError``) and says when the object must be looked at anyway.
- *Resync*: every object is enqueued anew once per period, spread evenly over it, however quiet the watches are.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

logger = logging.getLogger(__name__)

#: What happens comes as several events (a Job, its pod, their status, our own): one look a moment later sees all of it.
GATHER_SECONDS = 0.2

FIRST_BACKOFF = 0.25
LAST_BACKOFF = 300.0


class Key(NamedTuple):
    """An object's namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class UnfinishedError(Exception):
    """A flight did all that it could, but something is to be tried again.

    Args:
        what: that is.
        again: seconds until the object must be looked at again in any case; None if nothing but a change makes it necessary.
    """

    def __init__(self, what: str, again: float | None) -> None:
        super().__init__(what)
        self.again = again


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(LAST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures - 1, 32))


@dataclass
class Schedule:
    """When which key is due. Times are seconds of any one clock that does not go back."""

    #: Waiting keys and when they are due; a key in flight may wait too, for its next one.
    due: dict[Key, float] = field(default_factory=dict)
    #: Keys in flight and since when.
    flights: dict[Key, float] = field(default_factory=dict)
    failures: dict[Key, int] = field(default_factory=dict)
    #: When a flight began or ended last.
    _moved: float = float("-inf")
    #: The due times in order. Entries that ``due`` no longer confirms are skipped when they come up.
    _order: list[tuple[float, Key]] = field(default_factory=list)

    def enqueue(self, key: Key, at: float) -> None:
        """Ask for a look at this time; an earlier request that still waits covers this one."""
        if at < self.due.get(key, float("inf")):
            self.due[key] = at
            heapq.heappush(self._order, (at, key))

    def take(self, now: float) -> Key | None:
        """The next key that is due and not in flight, which is in flight from now on; None if there is none."""
        while self._order and self._order[0][0] <= now:
            at, key = heapq.heappop(self._order)
            if self.due.get(key) == at and key not in self.flights:
                del self.due[key]
                self.flights[key] = self._moved = now
                return key
        return None

    def landed(self, key: Key, now: float, *, again: float | None = None, failed: bool = False) -> None:
        """A flight ended.

        Args:
            key: in flight until now.
            now: the time.
            again: seconds until the object must be looked at again; None if nothing but a change makes it necessary.
            failed: the flight raised; the backoff may be over before ``again``.
        """
        del self.flights[key]
        self._moved = now
        if failed:
            self.failures[key] = self.failures.get(key, 0) + 1
            wait = backoff(self.failures[key])
            again = wait if again is None else min(wait, again)
        else:
            self.failures.pop(key, None)
        if key in self.due:  # asked for during the flight, and possibly skipped by take() because of it
            heapq.heappush(self._order, (self.due[key], key))
        if again is not None:
            self.enqueue(key, now + again)

    def next_due(self) -> float | None:
        """When the next key that is not in flight is due; None if none waits."""
        while self._order:
            at, key = self._order[0]
            if self.due.get(key) == at and key not in self.flights:
                return at
            heapq.heappop(self._order)
        return None

    def overdue(self, now: float) -> float:
        """Seconds that the longest flight has taken, or for which a key is due and no flight begins or ends, whichever is more.

        However long keys wait while others are looked at: a slow API server lets them, and is not helped by another start.
        """
        first = self.next_due()
        longest = max((now - since for since in self.flights.values()), default=0.0)
        return max(longest, 0.0 if first is None else now - max(first, self._moved))


class Queue:
    """The schedule at work on the running event loop.

    Args:
        reconcile: looks at one object; returns the seconds until it must be looked at again, or None.
        workers: flights at a time.
        resync: lists the keys of all objects.
        resync_seconds: once in so many seconds every object is looked at.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int,
        resync: Callable[[], Awaitable[Collection[Key]]],
        resync_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._resync = resync
        self._resync_seconds = resync_seconds
        self._clock = clock
        self._schedule = Schedule()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._flying: set[asyncio.Task[None]] = set()

    def backlog(self) -> int:
        """Keys that are due and wait for a worker, or for the end of their own flight. Any thread may ask."""
        now = self._clock()
        return sum(due <= now for due in list(self._schedule.due.values()))

    def enqueue(self, key: Key, after: float = 0.0) -> None:
        """Look at an object in ``after`` seconds at the latest."""
        self._schedule.enqueue(key, self._clock() + after)
        self._changed.set()

    def wake(self, key: Key) -> None:
        """Something happened to an object. Any thread may say so."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and so does the process
                self._loop.call_soon_threadsafe(self.enqueue, key, GATHER_SECONDS)

    def overdue(self) -> float:
        """Seconds for which the queue stands still: of a flight that does not end, or of a key that nobody takes."""
        return self._schedule.overdue(self._clock())

    def start(self) -> None:
        """Begin to start flights and to resync."""
        self._loop = asyncio.get_running_loop()
        self._loops = [asyncio.create_task(self._dispatch()), asyncio.create_task(self._resync_forever())]

    async def stop(self, patience: float = 5.0) -> None:
        """Start no more flights, and wait so many seconds for those under way."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._flying:
            _, late = await asyncio.wait(self._flying, timeout=patience)
            for flight in late:
                flight.cancel()

    async def _dispatch(self) -> None:
        while True:
            self._changed.clear()
            while len(self._flying) < self._workers and (key := self._schedule.take(self._clock())) is not None:
                flight = asyncio.create_task(self._fly(key), name=f"reconcile {key}")
                self._flying.add(flight)
                flight.add_done_callback(self._flying.discard)
                flight.add_done_callback(lambda _: self._changed.set())
            # Not wait_for(): of Python 3.11 it may swallow the cancellation that stop() relies on.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_due()):
                    await self._changed.wait()

    def _until_due(self) -> float | None:
        """Seconds to sleep at most; for ever where only a landing or an enqueue changes anything."""
        due = self._schedule.next_due() if len(self._flying) < self._workers else None
        return None if due is None else max(0.0, due - self._clock())

    async def _fly(self, key: Key) -> None:
        try:
            again = await self._reconcile(key)
        except UnfinishedError as unfinished:
            self._schedule.landed(key, self._clock(), again=unfinished.again, failed=True)
        except Exception:  # whatever it was, the object is tried again; the reconcile has logged it
            self._schedule.landed(key, self._clock(), failed=True)
        else:
            self._schedule.landed(key, self._clock(), again=again)

    async def _resync_forever(self) -> None:
        while True:
            await asyncio.sleep(self._resync_seconds)
            try:
                keys = await self._resync()
            except Exception as error:
                logger.warning("the objects could not be listed; the next resync will tell: %s", error)
                continue
            for position, key in enumerate(keys):
                self.enqueue(key, after=self._resync_seconds * position / len(keys))
