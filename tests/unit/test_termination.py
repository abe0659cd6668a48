"""What a process of a stage does about SIGTERM and SIGINT."""

import os
import signal
import subprocess

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.runtime.termination import Termination, interrupting

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS)
def test_what_is_noted_is_told_where_the_stage_asks(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Termination() as termination:
        termination.check()
        os.kill(os.getpid(), number)
        assert termination.received
        with pytest.raises(StageError, match="the next try goes on from what was finished") as ended:
            termination.check()
    assert (ended.value.code, ended.value.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("early", [True, False], ids=["it came before", "it comes meanwhile"])
def test_a_process_group_of_its_own_is_sent_what_comes_and_what_came(number: signal.Signals, early: bool) -> None:
    with Termination() as termination, subprocess.Popen(["sleep", "600"], process_group=0) as process:
        if early:
            os.kill(os.getpid(), number)
        with termination.passed_on_to(process.pid):
            if not early:
                os.kill(os.getpid(), number)
            assert process.wait(60) == -number


def test_who_waits_for_somebody_else_is_interrupted_there() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interrupting():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) == before
