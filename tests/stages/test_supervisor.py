"""However a stage ends, the operator is told: real processes, really killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, Report, StageName
from stages.supervised import has_ended
from testcluster import wait_for

KEY = "5e" * 32

EXTRACT = {
    "stage": "extract",
    "owner": {"namespace": "llm", "name": "kimi", "uid": "u"},
    "key": KEY,
    "folder": "/nowhere/features",
    "target": "/nowhere/target",
    "targetDigest": "t",
    "data": {"conversations": "/nowhere/data.jsonl", "maxLength": 64, "holdout": 0.1},
    "dataDigest": "d",
    "layers": [0, 1],
    "dtype": "bf16",
    "sglangVersion": "0.5.21",
}


class Container:
    """A supervisor as a container's first process, whose child runs a stage written for the test."""

    def __init__(self, folder: Path, stage: str = "") -> None:
        self.folder = folder
        self.config = folder / "config.json"
        self.config.write_text(json.dumps({"config": EXTRACT}))
        self.message = folder / "termination-log"
        self.result = folder / "result.json"
        self.script = folder / "stage.py"
        self.script.write_text(
            "import os, signal, subprocess, sys, time, types\n"
            "from pathlib import Path\n"
            "from eagle3_api.conditions import Reason\n"
            "from eagle3_api.jobs import ExitCode, ExtractResult, StageName\n"
            "from eagle3_draft.runtime import child\n"
            "from eagle3_draft.errors import StageError\n"
            f"folder = Path({str(folder)!r})\n"
            "done = ExtractResult(conversations=1, held_out=1, tokens=1, supervised_tokens=1, bytes=1, tokens_per_second=1)\n"
            f"def run(config):\n{''.join(f'    {line}{chr(10)}' for line in stage.splitlines()) or '    return done'}\n"
            "sys.modules['eagle3_draft.extract'] = types.SimpleNamespace(run=run)\n"
            f"sys.exit(child.run(StageName.EXTRACT, Path({str(self.config)!r}), Path({str(self.result)!r})))\n"
        )
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        code = (
            "import ctypes, sys\n"
            "assert ctypes.CDLL(None).prctl(36, 1) == 0\n"  # PR_SET_CHILD_SUBREAPER: it inherits orphans, like process 1
            "from pathlib import Path\n"
            "from eagle3_api.jobs import StageName\n"
            "from eagle3_draft.runtime import supervisor\n"
            "assert 'torch' not in sys.modules\n"
            "a = [Path(p) for p in sys.argv[1:]]\n"
            "sys.exit(supervisor.supervise(StageName.EXTRACT, [sys.executable, str(a[0])],\n"
            "    config=a[1], result=a[2], termination_log=a[3]))\n"
        )
        files = [self.script, self.config, self.result, self.message]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, files)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self.process

    def finish(self) -> tuple[int, Report, str]:
        """Exit code, report and standard error."""
        process = self.process or self.start()
        _, error = process.communicate(timeout=60)
        report = Report.parse(self.message.read_text())
        assert report is not None
        return process.returncode, report, error

    def wait_for(self, name: str) -> str:
        path = self.folder / name
        return wait_for(f"{name} of the stage", 30, lambda: path.read_text() if path.exists() else "")


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Callable[[str], Container]]:
    started: list[Container] = []

    def make(stage: str) -> Container:
        started.append(Container(tmp_path, stage))
        return started[-1]

    yield make
    for one in started:
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def test_a_stage_that_is_done_leaves_its_result(container: Callable[[str], Container]) -> None:
    code, report, _ = container("return done").finish()
    assert code == ExitCode.DONE
    assert (report.ok, report.stage, report.key) == (True, StageName.EXTRACT, KEY)
    assert report.result is not None
    assert report.result["supervisedTokens"] == 1


@pytest.mark.parametrize(
    ("stage", "code", "reason", "words"),
    [
        ("raise StageError(ExitCode.NON_FINITE, Reason.NON_FINITE, 'half of it')", 12, Reason.NON_FINITE, "half of it"),
        ("{}['layer']", 19, Reason.INTERNAL_ERROR, "KeyError: 'layer' (stage.py:"),
        ("bytearray(1 << 62)", 14, Reason.OUT_OF_MEMORY, "out of memory"),
        ("open('/dev/full', 'w', buffering=1).write('x\\n')", 14, Reason.STORAGE_TOO_SMALL, "No space left on device"),
        ("raise PermissionError(13, 'Permission denied', '/data/x')", 11, Reason.STORAGE_UNAVAILABLE, "'/data/x'"),
        ("sys.exit(0)", 19, Reason.INTERNAL_ERROR, "SystemExit: 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 21, Reason.JOB_FAILED, "was ended by SIGKILL (out of memory?)"),
        ("os.abort()", 21, Reason.JOB_FAILED, "was ended by SIGABRT"),
        ("os._exit(0)", 21, Reason.JOB_FAILED, "ended with exit code 0 and left no result"),
        ("os._exit(3)", 21, Reason.JOB_FAILED, "ended with exit code 3 and left no result. It said nothing"),
    ],
)
def test_however_a_stage_ends_its_code_and_reason_say_so(
    container: Callable[[str], Container], stage: str, code: int, reason: Reason, words: str
) -> None:
    found, report, error = container(stage).finish()
    assert (found, report.ok, report.reason) == (code, False, reason)
    assert words in report.message
    assert words in error


def test_an_error_that_was_caused_by_a_full_volume_is_one_of_space(container: Callable[[str], Container]) -> None:
    stage = (
        "try:\n    open('/dev/full', 'w', buffering=1).write('x\\n')\n"
        "except OSError as error:\n    raise RuntimeError('cannot save') from error"
    )
    code, report, _ = container(stage).finish()
    assert (code, report.reason) == (14, Reason.STORAGE_TOO_SMALL)


def test_the_last_words_of_a_crash_are_in_the_report(container: Callable[[str], Container]) -> None:
    stage = (
        "for i in range(10000):\n    print('line', i, file=sys.stderr)\n"
        "print('\\x1b[31mNCCL error: unhandled system error\\x1b[0m', file=sys.stderr, flush=True)\nos._exit(1)"
    )
    code, report, error = container(stage).finish()
    assert code == ExitCode.ENGINE_CRASHED
    assert report.message.endswith("line 9999\nNCCL error: unhandled system error")
    assert "line 0\n" in error


def test_a_result_counts_even_if_the_process_then_crashes(container: Callable[[str], Container]) -> None:
    made = container("return done")
    made.script.write_text(made.script.read_text().replace("sys.exit(child.run(", "(child.run(") + "os.abort()\n")
    code, report, _ = made.finish()
    assert (code, report.ok) == (0, True)


def test_a_broken_result_is_a_crash(container: Callable[[str], Container]) -> None:
    made = container("Path(folder / 'result.json').write_text('{\"code\":')\nos._exit(0)")
    code, report, _ = made.finish()
    assert code == ExitCode.ENGINE_CRASHED
    assert "cannot be read" in report.message


def test_a_result_that_does_not_fit_a_termination_message_is_an_error(container: Callable[[str], Container]) -> None:
    stage = "return done.model_copy(update={'dropped': {'x' * 5000: 1}})"
    code, report, _ = container(stage).finish()
    assert (code, report.reason) == (19, Reason.INTERNAL_ERROR)


READY = "(folder / 'ready').write_text(str(os.getpid()))\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stage_ended_by_a_signal_that_the_container_got_is_interrupted(
    container: Callable[[str], Container], number: signal.Signals
) -> None:
    made = container(READY + "signal.pause()")
    process = made.start()
    made.wait_for("ready")
    process.send_signal(number)
    code, report, _ = made.finish()
    assert (code, report.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)


def test_a_stage_that_saves_its_work_on_sigterm_is_waited_for(container: Callable[[str], Container]) -> None:
    stage = (
        "def save(*_):\n    raise StageError(ExitCode.INTERRUPTED, Reason.INTERRUPTED, 'saved at step 7')\n"
        "signal.signal(signal.SIGTERM, save)\n" + READY + "signal.pause()"
    )
    made = container(stage)
    process = made.start()
    made.wait_for("ready")
    process.send_signal(signal.SIGTERM)
    code, report, _ = made.finish()
    assert (code, report.message) == (ExitCode.INTERRUPTED, "saved at step 7")


def test_a_child_that_was_killed_from_outside_has_crashed(container: Callable[[str], Container]) -> None:
    made = container(READY + "signal.pause()")
    made.start()
    os.kill(int(made.wait_for("ready")), signal.SIGKILL)
    code, report, _ = made.finish()
    assert (code, report.reason) == (ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED)


def test_the_signal_of_a_crashed_engine_ends_the_stage_though_whoever_began_it_ignores_that(
    container: Callable[[str], Container],
) -> None:
    made = container("os.kill(os.getpid(), signal.SIGQUIT)\nos._exit(0)")
    former = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        made.start()
    finally:
        signal.signal(signal.SIGQUIT, former)
    code, report, _ = made.finish()
    assert (code, report.reason) == (ExitCode.ENGINE_CRASHED, Reason.JOB_FAILED)
    assert "SIGQUIT" in report.message


def test_a_signal_reaches_every_process_of_the_stage(container: Callable[[str], Container]) -> None:
    stage = "engine = subprocess.Popen(['sleep', '1000'])\n(folder / 'ready').write_text(str(engine.pid))\nengine.wait()\nos._exit(1)"
    made = container(stage)
    process = made.start()
    engine = int(made.wait_for("ready"))
    process.send_signal(signal.SIGTERM)
    code, _, _ = made.finish()
    assert code == ExitCode.INTERRUPTED
    wait_for("the end of the engine", 30, lambda: has_ended(engine))


def test_processes_that_an_engine_left_behind_do_not_outlive_the_stage(container: Callable[[str], Container]) -> None:
    made = container("(folder / 'ready').write_text(str(subprocess.Popen(['sleep', '1000']).pid))\nreturn done")
    code, report, _ = made.finish()
    assert (code, report.ok) == (0, True)
    engine = int(made.wait_for("ready"))
    wait_for("the end of the engine", 30, lambda: has_ended(engine))


def test_orphans_that_end_while_the_stage_runs_are_reaped(container: Callable[[str], Container]) -> None:
    stage = (
        "orphan = subprocess.check_output(['sh', '-c', 'sleep 0.1 >/dev/null & echo $!'], text=True).strip()\n"
        "(folder / 'ready').write_text(orphan)\n"
        "while Path('/proc', orphan).exists():\n    time.sleep(0.01)\n"
        "return done"
    )
    code, report, _ = container(stage).finish()
    assert (code, report.ok) == (0, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("", "Invalid JSON"),
        ("{}", "config: Field required"),
        ('{"config": {"stage": "extract"}}', "config.extract.owner: Field required"),
        ('{"config": {"stage": "serve"}}', "config"),
    ],
)
def test_a_bad_configuration_starts_nothing(tmp_path: Path, text: str | None, words: str) -> None:
    made = Container(tmp_path, "(folder / 'ready').write_text('started')\nreturn done")
    made.config.unlink()
    if text is not None:
        made.config.write_text(text)
    code, report, _ = made.finish()
    assert (code, report.reason) == (ExitCode.BAD_CONFIGURATION, Reason.INVALID_CONFIGURATION)
    assert words in report.message
    assert not (tmp_path / "ready").exists()
