"""What containers run, ``python3 -m eagle3_draft``; people have ``eagle3-draft`` (``cli``).

python3 -m eagle3_draft STAGE                 run a stage as a container's first process: a supervisor and its child
python3 -m eagle3_draft run STAGE --result F  the child: the stage itself
python3 -m eagle3_draft copy-lib DIR          copy this library to DIR, for a container that does not have it
"""

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import eagle3_api
import eagle3_draft
from eagle3_api.jobs import CONFIG_FILE, RESULTS, TERMINATION_LOG, StageName
from eagle3_draft.runtime import child, supervisor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = _parser().parse_args(arguments)
    config = Path(os.environ.get("EAGLE3_CONFIG", CONFIG_FILE))
    if given.command == "copy-lib":
        copy_library(given.folder)
        return 0
    if given.command == "run":
        code = child.run(StageName(given.stage), config, given.result)
        sys.stdout.flush()
        sys.stderr.flush()
        # The result is written. Whatever an engine left behind (threads, communicators) must not hold up the end.
        os._exit(code)
    stage = StageName(given.command)
    with tempfile.TemporaryDirectory(prefix="eagle3-") as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-X", "faulthandler", "-m", "eagle3_draft", "run", stage, "--result", str(result)]
        return supervisor.supervise(
            stage,
            command,
            config=config,
            result=result,
            termination_log=Path(os.environ.get("EAGLE3_TERMINATION_LOG", TERMINATION_LOG)),
        )


def copy_library(folder: Path) -> None:
    """Copy our packages to a folder that another container has on PYTHONPATH, and what speaks to object stores, if it is here.

    That is one file for every Python, and fsspec, through which it speaks, is wherever torch is.
    """
    store = importlib.util.find_spec("obstore")
    found = [*eagle3_api.__path__, *eagle3_draft.__path__, *((store.submodule_search_locations or ()) if store else ())]
    for source in map(Path, found):
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m eagle3_draft", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="STAGE | run | copy-lib")
    for stage in RESULTS:
        commands.add_parser(stage, help=f"run the stage {stage}")
    run = commands.add_parser("run", help="run a stage in this process")
    run.add_argument("stage", choices=list(RESULTS))
    run.add_argument("--result", type=Path, required=True, help="file that receives the exit code and the report")
    copy = commands.add_parser("copy-lib", help="copy this library")
    copy.add_argument("folder", type=Path)
    return parser
