"""However another trainer ends, the stage ends as the contract says."""

import os
import signal
import sys
from pathlib import Path

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, Progress, TrainConfig
from eagle3_draft.errors import StageError
from eagle3_draft.train import foreign
from stages.supervised import has_ended
from testcluster.wait import wait_for
from unit.train.test_telemetry import config


def ran(folder: Path, script: str) -> TrainConfig:
    return foreign.train(config(folder, scratch=str(folder)), [sys.executable, "-c", f"import os, sys\n{script}"])


@pytest.mark.parametrize(
    ("code", "expected", "reason"),
    [
        (12, ExitCode.NON_FINITE, Reason.NON_FINITE),
        (10, ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION),
        (14, ExitCode.DOES_NOT_FIT, Reason.OUT_OF_MEMORY),
        (15, ExitCode.REFUSED, Reason.JOB_FAILED),  # one that means nothing yet, and still forbids another try
        (1, ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED),  # a traceback: it is tried again
        (20, ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED),
    ],
)
def test_its_exit_code_says_whether_another_try_can_help(
    code: int, expected: ExitCode, reason: Reason, tmp_path: Path
) -> None:
    with pytest.raises(StageError, match=f"(?s)ended with code {code}.*the loss is not a number") as failed:
        ran(tmp_path, f"print('the loss is not a number'); sys.exit({code})")
    assert (failed.value.code, failed.value.reason) == (expected, reason)


def test_one_that_leaves_nothing_is_told_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"what train.trainer left in \$EAGLE3_OUTPUT") as failed:
        ran(tmp_path, "pass")
    assert failed.value.reason == Reason.CHECKPOINT_UNREADABLE


def test_a_command_that_is_not_in_the_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="'specforge' cannot be started in its image: No such file") as failed:
        foreign.train(config(tmp_path, scratch=str(tmp_path)), ["specforge", "train"])
    assert failed.value.code == ExitCode.BAD_CONFIGURATION


def test_any_line_shows_that_it_is_alive_and_its_own_progress_counts_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StageError):
        ran(tmp_path, "print('epoch 1', flush=True)")
    said = Progress.last(capsys.readouterr().out)
    assert said is not None
    assert (said.done, said.message) == (0, "epoch 1")
    line = Progress(done=0.5, message="half", time=1.0).dump()
    with pytest.raises(StageError):
        ran(tmp_path, f"print({line!r}); print('and words')")
    said = Progress.last(capsys.readouterr().out)
    assert said is not None
    assert (said.done, said.message) == (0.5, "half")


def test_it_finds_a_place_that_is_kept_between_tries(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="code 1"):
        ran(tmp_path, "open(os.environ['EAGLE3_WORK'] + '/step', 'w').write('7'); sys.exit(1)")
    with pytest.raises(StageError, match="step 7"):
        ran(tmp_path, "print('step', open(os.environ['EAGLE3_WORK'] + '/step').read()); sys.exit(1)")


LEFT = "import subprocess; left = subprocess.Popen(['sleep', '120'], start_new_session={}); print(left.pid, flush=True)"


@pytest.mark.stages
@pytest.mark.timeout(60)
@pytest.mark.parametrize("session", [False, True])
def test_a_process_that_it_leaves_behind_is_ended_or_no_longer_waited_for(session: bool, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="code 1") as failed:
        ran(tmp_path, f"{LEFT.format(session)}; sys.exit(1)")
    left = int(failed.value.message.splitlines()[-1])
    if session:
        os.kill(left, signal.SIGKILL)
    else:
        wait_for("its end", 10, lambda: has_ended(left))


@pytest.mark.timeout(60)
def test_it_is_told_that_the_pod_is_to_end(tmp_path: Path) -> None:
    tell = "import signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    with pytest.raises(StageError) as failed:
        ran(tmp_path, tell)
    assert failed.value.code == ExitCode.INTERRUPTED


@pytest.mark.timeout(60)
def test_one_that_saves_and_ends_well_when_it_is_told_to_end_is_not_taken_for_finished(tmp_path: Path) -> None:
    save = "lambda *_: (open(os.environ['EAGLE3_OUTPUT'] + '/model.safetensors', 'w').close(), sys.exit(0))"
    tell = (
        f"import signal; signal.signal(signal.SIGTERM, {save}); os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    )
    with pytest.raises(StageError) as failed:
        ran(tmp_path, tell)
    assert failed.value.code == ExitCode.INTERRUPTED
    with pytest.raises(StageError, match="goes on"):
        ran(tmp_path, "print('it goes on'); sys.exit(1)")
