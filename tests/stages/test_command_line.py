"""The command line, as a container runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from eagle3_api.conditions import Reason
from eagle3_api.jobs import Report

INSPECT = {
    "stage": "inspect",
    "owner": {"namespace": "llm", "name": "kimi", "uid": "u"},
    "key": "k1",
    "target": "/nowhere/target",
    "sglangVersion": "0.5.21",
}


def run_stage(folder: Path, stage: str, config: object, **environment: str) -> tuple[int, Report | None]:
    (folder / "config.json").write_text(json.dumps({"config": config}))
    files = {"EAGLE3_CONFIG": str(folder / "config.json"), "EAGLE3_TERMINATION_LOG": str(folder / "message")}
    process = subprocess.run(
        [sys.executable, "-m", "eagle3_draft", stage],
        env=os.environ | files | environment,
        check=False,
        timeout=60,
        capture_output=True,
    )
    return process.returncode, Report.parse((folder / "message").read_text())


def test_a_target_that_is_not_there_is_named(tmp_path: Path) -> None:
    code, report = run_stage(tmp_path, "inspect", INSPECT)
    assert code == 11
    assert report is not None
    assert (report.key, report.reason) == ("k1", Reason.TARGET_UNREADABLE)
    assert "/nowhere/target" in report.message


def test_the_configuration_of_another_stage_is_refused(tmp_path: Path) -> None:
    code, report = run_stage(tmp_path, "train", INSPECT)
    assert code == 10
    assert report is not None
    assert "that of inspect, not of train" in report.message


def test_a_report_that_cannot_be_left_keeps_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "message").mkdir()
    (tmp_path / "config.json").write_text(json.dumps({"config": INSPECT}))
    process = subprocess.run(
        [sys.executable, "-m", "eagle3_draft", "inspect"],
        env=os.environ
        | {"EAGLE3_CONFIG": str(tmp_path / "config.json"), "EAGLE3_TERMINATION_LOG": str(tmp_path / "message")},
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 11
    assert "cannot be left" in process.stderr


def test_the_library_runs_from_where_it_was_copied(tmp_path: Path) -> None:
    for _ in range(2):  # an init container may run again
        subprocess.run(
            [sys.executable, "-m", "eagle3_draft", "copy-lib", str(tmp_path / "lib")], check=True, timeout=60
        )
    # obstore too, where it is installed: images of SGLang have no client for object stores
    assert sorted(path.name for path in (tmp_path / "lib").iterdir()) == ["eagle3_api", "eagle3_draft", "obstore"]
    assert not list(tmp_path.rglob("__pycache__"))
    where = subprocess.run(
        [
            sys.executable,
            "-c",
            "import eagle3_draft.runtime.entry, eagle3_api; print(eagle3_draft.__file__, eagle3_api.__file__)",
        ],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "lib"), "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert all(path.startswith(str(tmp_path / "lib")) for path in where.stdout.split())


def test_the_supervisor_and_inspect_load_without_torch() -> None:
    code = (
        "import sys; import eagle3_draft.runtime.entry, eagle3_draft.inspect\n"
        "heavy = {'torch', 'transformers', 'safetensors', 'numpy', 'sglang'} & set(sys.modules)\n"
        "raise SystemExit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
