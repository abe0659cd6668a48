"""Progress lines are few, and the operator can read them."""

import io

from eagle3_api import jobs
from eagle3_draft.runtime.progress import ProgressReporter


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_operator_reads_the_last_line() -> None:
    clock, out = Clock(), io.StringIO()
    progress = ProgressReporter(200, "tokens", clock=clock, out=out)
    progress.update(0)
    clock.now += 10
    progress.update(50)
    out.write("something else\n")
    assert jobs.Progress.last(out.getvalue()) == jobs.Progress(
        done=0.25, seconds_left=30.0, message="50 of 200 tokens", time=1010.0
    )


def test_a_line_every_two_seconds_at_most_and_one_at_the_end() -> None:
    clock, out = Clock(), io.StringIO()
    progress = ProgressReporter(1000, "samples", clock=clock, out=out)
    for done in range(1001):
        progress.update(done, f"sample {done}")
        clock.now += 0.01
    progress.update(1000)
    lines = out.getvalue().splitlines()
    assert len(lines) == 1 + 4 + 1
    last = jobs.Progress.last(out.getvalue())
    assert last is not None
    assert (last.done, last.seconds_left, last.message) == (1.0, 0.0, "sample 1000")


def test_a_clock_that_is_set_back_has_nobody_take_the_work_for_hung() -> None:
    clock, out = Clock(), io.StringIO()
    progress = ProgressReporter(100, "steps", clock=clock, out=out)
    progress.update(1)
    clock.now -= 3600
    for done in range(2, 5):
        clock.now += 2
        progress.update(done)
    assert len(out.getvalue().splitlines()) == 4


def test_the_time_left_after_a_resume_is_reckoned_from_this_run_alone() -> None:
    clock, out = Clock(), io.StringIO()
    progress = ProgressReporter(100, "steps", clock=clock, out=out)
    progress.update(90)
    clock.now += 5
    progress.update(95)
    last = jobs.Progress.last(out.getvalue())
    assert last is not None
    assert last.seconds_left == 5.0


def test_no_work_at_all_is_done() -> None:
    out = io.StringIO()
    ProgressReporter(0, "tokens", out=out).update(0)
    last = jobs.Progress.last(out.getvalue())
    assert last is not None
    assert last.done == 1.0
