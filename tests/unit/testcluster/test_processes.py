import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testcluster import slots, system, wait_for
from testcluster.build import MODULES
from testcluster.processes import ProcessEndedError, Processes, marked, run, tied_to

FOREVER = ["sleep", "3600"]


def test_ending_a_cluster_finds_the_processes_that_another_run_started(tmp_path: Path) -> None:
    started = Processes(tmp_path, tmp_path, tied=False).start("forever", FOREVER)
    try:
        assert wait_for("the process", 10, lambda: list(marked(tmp_path))) == [started]
    finally:
        Processes(tmp_path, tmp_path, tied=False).end()

    assert not list(marked(tmp_path))
    os.waitpid(started, 0)


def test_another_clusters_processes_are_left_alone(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "ours-too"
    for folder in (ours, others):
        folder.mkdir()
    other = Processes(others, others, tied=False)
    other.start("forever", FOREVER)
    try:
        Processes(ours, ours, tied=False).end()

        other.check()
    finally:
        other.end()


def test_a_process_that_ended_by_itself_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    processes = Processes(tmp_path, tmp_path, tied=False)
    processes.start("quick", ["sh", "-c", "echo no such option >&2; exit 3"])

    def ended() -> bool:
        processes.check()
        return False

    with pytest.raises(ProcessEndedError, match=r"quick ended with status 3; the end of its log:\nno such option"):
        wait_for("the end of the process", 30, ended)


def test_a_tied_process_ends_with_the_run_that_was_killed(tmp_path: Path) -> None:
    running = tmp_path / "running"
    program = f"""
import os, signal
from pathlib import Path
from testcluster import wait_for
from testcluster.processes import Processes
processes = Processes(Path({str(tmp_path)!r}), Path({str(tmp_path)!r}), tied=True)
processes.start("forever", ["sh", "-c", "touch {running}; exec sleep 3600"])
wait_for("the tied process", 30, Path({str(running)!r}).exists)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": str(MODULES.parents[1])}
    killed = subprocess.run([sys.executable, "-c", program], check=False, env=environment)

    assert killed.returncode == -signal.SIGKILL
    wait_for("the end of the tied process", 10, lambda: not list(marked(tmp_path)))


def test_a_tied_process_does_not_begin_when_its_run_was_killed_before_it_could_be_told(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    tied_to_this = tied_to(os.getpid())

    assert subprocess.run([*tied_to_this, "touch", begun], check=False).returncode == 0 and begun.exists()
    begun.unlink()
    orphan = ["sh", "-c", '"$@" & wait', "another parent", *tied_to_this]
    assert subprocess.run([*orphan, "touch", begun], check=False).returncode == 0 and not begun.exists()


def test_a_program_that_fails_tells_what_it_said() -> None:
    with pytest.raises(RuntimeError, match=r"sh -c .*: status 4: it is broken"):
        run("sh", "-c", "echo it is broken >&2; exit 4")


def test_a_slot_has_one_holder_and_is_free_when_that_is_gone() -> None:
    slot, holder = slots.claim_free()
    with holder, pytest.raises(slots.SlotTakenError, match=f"slot {slot} is taken"):
        slots.claim(slot)

    slots.claim(slot).close()


def test_a_missing_command_is_told_as_the_package_that_has_it() -> None:
    assert system.missing({"sh": "dash", "no-such-command": "no-such-package"}) == ["no-such-package"]
