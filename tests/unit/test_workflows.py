"""What runs by itself, and when."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from image import refusal

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))


def workflow(path: Path) -> dict[str, Any]:
    """As YAML 1.2 reads it, in which ``on`` is a word."""
    read: dict[Any, Any] = yaml.safe_load(path.read_text())
    return {("on" if key is True else key): value for key, value in read.items()}


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in workflow(path)["jobs"].values() for step in job["steps"]]


def targets(path: Path) -> set[str]:
    """Of make, by whatever the workflow's commands run."""
    commands = " ".join(step.get("run", "") for step in steps(path))
    if ".ci/run" in commands:
        commands += (ROOT / ".ci" / "run").read_text()
    return set(re.findall(r"make ([a-z0-9-]+)", commands))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_runs_is_there(path: Path) -> None:
    asked = targets(path)
    assert asked
    assert asked <= set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    actions = [step["uses"] for step in steps(path) if step.get("uses", "").startswith("./")]
    assert all((ROOT / action / "action.yml").is_file() for action in actions)


def test_every_change_is_tested_and_what_takes_long_is_tested_every_week() -> None:
    when = {target: workflow(path)["on"] for path in WORKFLOWS for target in targets(path)}
    assert {"push", "pull_request"} <= when["test"].keys()
    assert len(when["test-long"]["schedule"]) == 1


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_was_built_is_kept_where_pods_see_it_and_where_the_next_run_finds_it(path: Path) -> None:
    (cache,) = {found for step in steps(path) for found in re.findall(r'EAGLE3_CACHE="?([^ "]+)', step.get("run", ""))}
    assert refusal(Path(cache.replace("$HOME", "/home/runner")), Path("/usr")) is None
    machine = yaml.safe_load((ROOT / ".github" / "actions" / "machine" / "action.yml").read_text())
    kept = [step["with"]["path"] for step in machine["runs"]["steps"] if "actions/cache" in step["uses"]]
    assert kept == [cache.replace("$HOME", "~")]
