"""A stage as its container runs it in the environment of SGLang."""

import json
import os
import subprocess
from pathlib import Path

import environment
from image import recipe

from eagle3_api.jobs import JobConfig, Report

ROOT = Path(__file__).resolve().parents[2]


def run_stage(config: JobConfig, folder: Path, *, seconds: float = 240) -> Report:
    """Run one to its end; its report. What it printed lies in ``folder/log``.

    Args:
        config: of the stage.
        folder: for the configuration, the termination message and the log.
        seconds: that it may take.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"config": config.to_json()}))
    image = recipe()
    variables = {
        "PATH": f"{image.path[0]}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'crds'}:{ROOT / 'images' / 'draft'}",
        "EAGLE3_CONFIG": str(folder / "config.json"),
        "EAGLE3_TERMINATION_LOG": str(folder / "message"),
        **image.env,
    }
    command = [str(environment.ensure() / "bin" / "python3"), "-m", "eagle3_draft", config.stage]
    with (folder / "log").open("wb") as log:
        subprocess.run(command, env=os.environ | variables, stdout=log, stderr=log, timeout=seconds, check=False)
    report = Report.parse((folder / "message").read_text())
    assert report is not None, (folder / "log").read_text(errors="replace")
    return report
