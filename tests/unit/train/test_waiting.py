"""A device is said to wait for data only while it stands still for want of it."""

import pytest

from eagle3_draft.train.waiting import Waiting

#: Seconds that the host takes to launch a step.
LAUNCH = 0.5


class Device:
    """One on which work is launched, and its clock. Time goes on where somebody says so."""

    def __init__(self, *, ahead: bool) -> None:
        self.ahead = ahead  # whether the host goes on while it works
        self.host = self.free = 0.0

    def work(self, seconds: float) -> None:
        self.host += LAUNCH
        self.free = max(self.free, self.host) + seconds
        if not self.ahead:
            self.host = self.free

    def now(self) -> float:
        return max(self.host, self.free)

    def passed(self, moment: float) -> bool:
        return moment <= self.host

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


def waited(device: Device, *, reading: float, computing: float, steps: int = 10, between: float = 0.0) -> float:
    """What a training says of a reader that takes so long for a batch, each begun when the one before was taken."""
    waiting = Waiting(device)
    told, ready = 0.0, reading
    for _ in range(steps):
        device.host = max(device.host, ready)
        waiting.came()
        ready = device.host + reading
        device.work(computing)
        told += waiting.take()
        device.host += between
        waiting.begin()
    device.host = device.now()
    return told + waiting.take()


@pytest.mark.parametrize("ahead", [True, False], ids=["GPU", "CPU"])
def test_a_reader_that_is_slower_than_the_steps_is_waited_for_by_the_difference(ahead: bool) -> None:
    assert waited(Device(ahead=ahead), reading=7, computing=5) == pytest.approx(7 + 9 * (7 - 5 - LAUNCH))


def test_a_host_that_waits_for_a_batch_while_the_gpu_works_costs_nothing() -> None:
    assert waited(Device(ahead=True), reading=5, computing=5) == pytest.approx(5)  # for the first


def test_what_a_checkpoint_or_a_measure_takes_between_two_steps_is_no_waiting_for_data() -> None:
    assert waited(Device(ahead=True), reading=1, computing=5, between=30) == pytest.approx(1)
    assert waited(Device(ahead=False), reading=1, computing=5, between=30) == pytest.approx(1)


def test_a_gap_is_told_once_and_not_before_the_gpu_has_it_behind_itself() -> None:
    device = Device(ahead=True)
    waiting = Waiting(device)
    device.host = 3
    waiting.came()
    device.work(5)
    waiting.begin()
    assert waiting.take() == 3
    assert waiting.take() == 0
    waiting.came()  # at once: the GPU still works
    assert waiting.take() == 0
    device.host = device.free
    assert waiting.take() == 0
