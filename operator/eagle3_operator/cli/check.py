"""Whether a draft from anywhere can serve: its configuration, its headers and its vocabulary, against its target's."""

import argparse

from eagle3_api.checkpoints import command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.epilog = command.EXIT_CODES
    command.add_arguments(parser)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return command.run(given)
