"""The command line of the data plane.

eagle3-draft STAGE                   run a stage as a container's first process: a supervisor and its child
eagle3-draft run STAGE --result F    the child: the stage itself
eagle3-draft copy-lib DIR            copy this library to DIR, for a container that does not have it

By hand, on a laptop too:

eagle3-draft check FOLDER            check a draft of any family, its values too where torch is there
eagle3-draft adopt FOLDER OUT        write what SGLang loads
eagle3-draft export FOLDER OUT       write what speculators and vLLM load
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
from eagle3_api.checkpoints import command
from eagle3_api.jobs import CONFIG_FILE, RESULTS, TERMINATION_LOG, ExitCode, StageName
from eagle3_draft import child, supervisor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = _parser().parse_args(arguments)
    config = Path(os.environ.get("EAGLE3_CONFIG", CONFIG_FILE))
    if given.command == "copy-lib":
        copy_library(given.folder)
        return 0
    if given.command in ("check", "adopt", "export"):
        return _by_hand(given)
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

    That is one file for every Python.
    """
    store = importlib.util.find_spec("obstore")
    found = [*eagle3_api.__path__, *eagle3_draft.__path__, *((store.submodule_search_locations or ()) if store else ())]
    for source in map(Path, found):
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def _by_hand(given: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        if given.command == "check":
            return command.run(given)
        sys.stderr.write(f"{given.command} needs torch: pip install 'eagle3-operator[draft]'\n")
        return ExitCode.BAD_CONFIGURATION
    # torch takes seconds to import, and a stage's supervisor must not
    from eagle3_draft.convert import by_hand

    if given.command == "check":
        return command.run(given, by_hand.look_at_values)
    return by_hand.adopt(given) if given.command == "adopt" else by_hand.export(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eagle3-draft", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="STAGE | run | copy-lib | check | adopt | export"
    )
    for stage in RESULTS:
        commands.add_parser(stage, help=f"run the stage {stage}")
    run = commands.add_parser("run", help="run a stage in this process")
    run.add_argument("stage", choices=list(RESULTS))
    run.add_argument("--result", type=Path, required=True, help="file that receives the exit code and the report")
    copy = commands.add_parser("copy-lib", help="copy this library")
    copy.add_argument("folder", type=Path)
    check = commands.add_parser("check", help="check a draft's checkpoint", epilog=command.EXIT_CODES)
    command.add_arguments(check)
    adopt = commands.add_parser("adopt", help="convert a draft's checkpoint", epilog=command.EXIT_CODES)
    command.add_arguments(adopt)
    adopt.add_argument("out", type=Path, help="folder that receives what SGLang loads")
    adopt.add_argument("--ask", action="store_true", help="run the target, and the draft on what it says")
    export = commands.add_parser("export", help="write a draft in another layout", epilog=command.EXIT_CODES)
    command.add_arguments(export)
    export.add_argument("out", type=Path, help="folder that receives it")
    export.add_argument(
        "--to", choices=["speculators"], default="speculators", help="whose layout (default %(default)s)"
    )
    export.add_argument("--verifier", help="the target as others call it (org/name); --target by default")
    export.add_argument("--steps", type=int, default=3, help="proposals of a step (default %(default)s)", metavar="N")
    return parser
