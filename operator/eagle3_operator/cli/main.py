"""The command line of the kubectl plugin: one module a command.

Exit codes: 0 done; 1 what was asked for cannot be told, for a reason that one line says; 2 the command line is wrong. ``check`` has
further ones.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from eagle3_operator.cli.usage import UsageError

#: Each is a module beside this one, with add_arguments(parser) and run(given) -> exit code, which raises UsageError where the
#: user is to be told what is wrong. It is imported when it is asked for.
COMMANDS = {
    "status": "where an object stands: stages, revisions, accept length over time",
    "estimate": "what an object will take: bytes, hours, a start, a rollback",
    "check": "whether a draft's checkpoint can serve, without loading it",
    "render": "the servers' command lines, and why each flag is there",
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line. argparse puts the whole usage before it, under which it is hardly found."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    parser = _Parser(prog="kubectl eagle3", description="Tools for Eagle3Draft objects.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name in words[:1]:
            module = import_module(f"eagle3_operator.cli.{name}")
            command.description = module.__doc__
            command.set_defaults(run=module.run)
            module.add_arguments(command)
    given = parser.parse_args(words)
    try:
        code: int = given.run(given)
        sys.stdout.flush()
    except UsageError as error:
        sys.stderr.write(f"kubectl eagle3: {error}\n")
        return 1
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
