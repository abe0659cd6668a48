"""Drafts by hand, on a laptop, without a cluster. A Job's own command is ``python3 -m eagle3_draft`` (``entry``).

eagle3-draft check FOLDER          check a draft of any family, its values too where torch is there
eagle3-draft convert FOLDER OUT    write what SGLang loads
eagle3-draft export FOLDER OUT     write what speculators and vLLM load
"""

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from eagle3_api.checkpoints import command
from eagle3_api.exit_codes import ExitCode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = _parser().parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        if given.command == "check":
            return command.run(given)
        sys.stderr.write(f"{given.command} needs torch: pip install '.[draft]' in the operator's repository\n")
        return ExitCode.BAD_CONFIGURATION
    # torch takes seconds to import, and whoever asks for help must not wait for it
    from eagle3_draft.convert import by_hand

    if given.command == "check":
        return command.run(given, by_hand.look_at_values)
    return by_hand.convert(given) if given.command == "convert" else by_hand.export(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eagle3-draft", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="check | convert | export")
    check = commands.add_parser("check", help="check a draft's checkpoint", epilog=command.EXIT_CODES)
    command.add_arguments(check)
    convert = commands.add_parser("convert", help="write what SGLang loads", epilog=command.EXIT_CODES)
    command.add_arguments(convert)
    convert.add_argument("out", type=Path, help="folder that receives it")
    convert.add_argument("--ask", action="store_true", help="run the target, and the draft on what it says")
    export = commands.add_parser("export", help="write a draft in another layout", epilog=command.EXIT_CODES)
    command.add_arguments(export)
    export.add_argument("out", type=Path, help="folder that receives it")
    export.add_argument(
        "--to", choices=["speculators"], default="speculators", help="whose layout (default %(default)s)"
    )
    export.add_argument("--verifier", help="the target as others call it (org/name); --target by default")
    export.add_argument("--steps", type=int, default=3, help="proposals of a step (default %(default)s)", metavar="N")
    return parser
