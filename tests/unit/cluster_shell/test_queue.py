"""The queue: never two flights of one object, no request lost, the earlier request wins."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eagle3_operator.cluster.queue import FIRST_BACKOFF, GATHER_SECONDS, LAST_BACKOFF, Key, Queue, Schedule, backoff

A, B = Key("llm", "a"), Key("llm", "b")
KEYS = st.sampled_from([A, B, Key("llm", "c"), Key("other", "a")])
SECONDS = st.floats(min_value=0, max_value=100)


class EveryScheduleKeepsItsPromises(RuleBasedStateMachine):
    """Any sequence of requests, flights and landings, beside a model that only knows what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()
        self.now = 0.0
        self.asked: dict[Key, float] = {}
        self.flying: set[Key] = set()

    @rule(key=KEYS, after=SECONDS)
    def enqueue(self, key: Key, after: float) -> None:
        self.schedule.enqueue(key, self.now + after)
        self.asked[key] = min(self.asked.get(key, float("inf")), self.now + after)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        ready = {key: at for key, at in self.asked.items() if at <= self.now and key not in self.flying}
        key = self.schedule.take(self.now)
        if key is None:
            assert not ready, "a key that is due and free is taken"
            return
        assert key in ready, "only a key that is due and not in flight is taken"
        assert ready[key] == min(ready.values()), "the one that has waited longest comes first"
        del self.asked[key]
        self.flying.add(key)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), again=st.none() | SECONDS)
    def land(self, data: st.DataObject, again: float | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.flying)))
        self.schedule.landed(key, self.now, again=again)
        self.flying.discard(key)
        if again is not None:
            self.asked[key] = min(self.asked.get(key, float("inf")), self.now + again)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.flying)))
        failures = self.schedule.failures.get(key, 0) + 1
        self.schedule.landed(key, self.now, failed=True)
        self.flying.discard(key)
        self.asked[key] = min(self.asked.get(key, float("inf")), self.now + backoff(failures))

    @invariant()
    def nothing_is_lost_and_nothing_invented(self) -> None:
        assert self.schedule.due == self.asked
        assert set(self.schedule.flights) == self.flying

    @invariant()
    def it_knows_when_to_wake(self) -> None:
        waiting = [at for key, at in self.asked.items() if key not in self.flying]
        assert self.schedule.next_due() == min(waiting, default=None)


TestEverySchedule = EveryScheduleKeepsItsPromises.TestCase
TestEverySchedule.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_a_failing_object_is_tried_less_and_less_often_and_never_given_up() -> None:
    waits = [backoff(failures) for failures in range(1, 40)]
    assert waits[0] == FIRST_BACKOFF
    assert waits == sorted(waits)
    assert waits[-1] == LAST_BACKOFF


def test_success_makes_the_next_failure_the_first_again() -> None:
    schedule = Schedule()
    for failed in (True, True, False, True):
        schedule.enqueue(A, 0.0)
        assert schedule.take(1000.0) == A
        schedule.landed(A, 0.0, failed=failed)
    assert schedule.next_due() == FIRST_BACKOFF


def test_a_flight_that_does_not_end_and_a_key_that_nobody_takes_are_overdue() -> None:
    schedule = Schedule()
    schedule.enqueue(A, 0.0)
    schedule.take(10.0)
    assert schedule.overdue(70.0) == 60.0
    schedule.landed(A, 70.0)
    schedule.enqueue(B, 75.0)
    assert schedule.overdue(140.0) == 65.0
    schedule.take(140.0)
    schedule.landed(B, 140.0)
    assert schedule.overdue(1000.0) == 0.0


def test_keys_that_wait_for_hours_while_others_are_looked_at_slowly_are_not_overdue() -> None:
    schedule = Schedule()
    for number in range(300):
        schedule.enqueue(Key("llm", f"object-{number}"), 0.0)
    for number in range(300):
        taken = schedule.take(80.0 * number)
        assert taken is not None
        assert schedule.overdue(80.0 * (number + 1)) <= 80.0
        schedule.landed(taken, 80.0 * (number + 1))
    assert schedule.next_due() is None


# ------------------------------------------------------------------------------------------- the queue on asyncio


async def until(condition: Callable[[], bool], *, turns: int = 10_000) -> None:
    """Let the loop run until something is so."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


async def no_objects() -> Collection[Key]:
    return ()


@given(
    requests=st.lists(st.tuples(KEYS, st.integers(0, 5)), max_size=30),
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    crashes=st.lists(st.booleans(), min_size=1, max_size=5),
    workers=st.integers(1, 3),
)
@settings(max_examples=100, deadline=None)
def test_every_request_is_followed_by_a_flight_that_began_after_it(
    requests: list[tuple[Key, int]], lengths: list[int], crashes: list[bool], workers: int
) -> None:
    """Flights of any length, failing or not: single flight, bounded workers, no request lost."""
    clock = 0.0
    ticks = 0
    begun: dict[Key, int] = {}
    flying: list[Key] = []

    async def reconcile(key: Key) -> None:
        nonlocal ticks
        assert key not in flying, "never two flights of one key"
        flying.append(key)
        assert len(flying) <= workers
        ticks += 1
        begun[key] = ticks
        number = ticks
        for _ in range(lengths[number % len(lengths)]):
            await asyncio.sleep(0)
        flying.remove(key)
        if crashes[number % len(crashes)] and number < 50:
            raise RuntimeError("a crash that the test wants")

    async def scenario() -> None:
        nonlocal ticks, clock
        queue = Queue(reconcile, workers=workers, resync=no_objects, resync_seconds=1e6, clock=lambda: clock)
        queue.start()
        asked: dict[Key, int] = {}
        for key, pause in requests:
            ticks += 1
            asked[key] = ticks
            queue.enqueue(key)
            for _ in range(pause):
                await asyncio.sleep(0)
        await until(lambda: all(begun.get(key, 0) > when for key, when in asked.items()))
        await queue.stop()

    asyncio.run(scenario())


def test_an_object_enqueued_many_times_during_its_flight_is_looked_at_once_more() -> None:
    flights = 0
    landing = asyncio.Event()

    async def reconcile(key: Key) -> None:
        nonlocal flights
        flights += 1
        await landing.wait()

    async def scenario() -> None:
        queue = Queue(reconcile, workers=4, resync=no_objects, resync_seconds=1e6)
        queue.start()
        queue.enqueue(A)
        await until(lambda: flights == 1)
        for _ in range(100):
            queue.enqueue(A)
        landing.set()
        await until(lambda: flights == 2)
        for _ in range(100):
            await asyncio.sleep(0)
        assert flights == 2
        assert queue.backlog() == 0
        await queue.stop()

    asyncio.run(scenario())


def test_the_resync_reaches_every_object_and_spreads_them_over_the_period() -> None:
    async def reconcile(key: Key) -> None:
        return None

    async def objects() -> Collection[Key]:
        return [Key("llm", str(number)) for number in range(10)]

    async def scenario() -> None:
        queue = Queue(reconcile, workers=1, resync=objects, resync_seconds=0.01, clock=lambda: -1.0)
        queue.enqueue = lambda key, after=0.0: planned.append((key, after))  # type: ignore[method-assign]
        queue.start()
        await asyncio.wait_for(enough(), timeout=10)
        await queue.stop()

    async def enough() -> None:
        while len(planned) < 10:
            await asyncio.sleep(0)

    planned: list[tuple[Key, float]] = []
    asyncio.run(scenario())
    assert [key.name for key, _ in planned[:10]] == [str(number) for number in range(10)]
    assert [after for _, after in planned[:10]] == pytest.approx([0.001 * number for number in range(10)])


def test_objects_that_cannot_be_listed_do_not_end_the_resync() -> None:
    tries = 0

    async def reconcile(key: Key) -> None:
        return None

    async def objects_that_fail_at_first() -> Collection[Key]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError("away")
        return ()

    async def scenario() -> None:
        queue = Queue(reconcile, workers=1, resync=objects_that_fail_at_first, resync_seconds=0.001)
        queue.start()
        await asyncio.wait_for(third_try(), timeout=10)
        await queue.stop()

    async def third_try() -> None:
        while tries < 3:
            await asyncio.sleep(0.001)

    asyncio.run(scenario())


def test_stopping_waits_for_flights_under_way_but_not_for_ever() -> None:
    ended = []

    async def reconcile(key: Key) -> None:
        if key == B:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        ended.append(key)

    async def scenario() -> None:
        queue = Queue(reconcile, workers=2, resync=no_objects, resync_seconds=1e6)
        queue.start()
        queue.enqueue(A)
        queue.enqueue(B)
        await until(lambda: queue.backlog() == 0)
        await queue.stop(patience=0.05)

    asyncio.run(scenario())
    assert ended == [A]


def test_what_happens_together_is_looked_at_once_a_moment_later_whoever_tells_it() -> None:
    flights: list[float] = []

    async def reconcile(key: Key) -> None:
        flights.append(time.monotonic())

    async def scenario() -> None:
        queue = Queue(reconcile, workers=4, resync=no_objects, resync_seconds=1e6)
        queue.start()
        begin = time.monotonic()
        tellers = [threading.Thread(target=queue.wake, args=(A,)) for _ in range(5)]
        for teller in tellers:
            teller.start()
        async with asyncio.timeout(10):
            while not flights:
                await asyncio.sleep(0.01)
        assert flights[0] - begin >= GATHER_SECONDS
        assert queue.backlog() == 0
        await queue.stop()

    asyncio.run(scenario())
    assert len(flights) == 1


def test_a_queue_that_has_ended_is_told_in_vain() -> None:
    async def reconcile(key: Key) -> None:
        raise AssertionError("nothing is looked at any more")

    async def scenario() -> Queue:
        queue = Queue(reconcile, workers=1, resync=no_objects, resync_seconds=1e6)
        queue.wake(A)
        queue.start()
        await queue.stop()
        return queue

    asyncio.run(scenario()).wake(A)
