"""The command ``check``, as the kubectl plugin and the data plane's own command line have it."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from eagle3_api.checkpoints import report
from eagle3_api.checkpoints.files import UnreadableError, read_folder
from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.readers import read_form
from eagle3_api.checkpoints.rules import Finding, Served, check, resolve_layers
from eagle3_api.checkpoints.target import read_target
from eagle3_api.exit_codes import ExitCode
from eagle3_api.sglang import NEWEST, Version

EXIT_CODES = "Exit code: 0 the draft can be converted, 1 it can, with warnings, 11 it cannot be read, 13 it is refused."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is checked, and against what."""
    parser.add_argument("folder", type=Path, help="the draft's checkpoint, of whatever family")
    parser.add_argument("--target", type=Path, help="the target's folder; without it only the draft itself is checked")
    parser.add_argument(
        "--sglang-version",
        type=_version,
        default=NEWEST,
        help="the SGLang version that will serve the draft (default %(default)s)",
        metavar="V",
    )
    parser.add_argument(
        "--layers",
        type=_layers,
        help="decoder layers whose outputs the draft was trained on, as 1,15,28 (--layers=-1,2,30: -1 is the embedding)",
    )
    parser.add_argument("--context-length", type=int, help="the longest served context (default: the target's)")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def run(given: argparse.Namespace, values: Callable[[Form], list[Finding]] | None = None) -> int:
    """Check a draft and print what was found; returns the exit code.

    Args:
        given: the parsed arguments.
        values: a look at the weights' values, where there is something that can read them.
    """
    try:
        form = read_form(read_folder(given.folder))
        served = served_by(given)
    except UnreadableError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT
    findings = check(form, served)
    if values is not None and report.refusal(findings) is None:
        findings += values(form)
    layers = resolve_layers(form, served)
    if given.json:
        whole = {
            "folder": str(given.folder),
            "family": form.family,
            "layers": list(layers) if layers is not None else None,
            "exitCode": int(report.exit_code(findings)),
            "findings": report.to_json(findings),
        }
        sys.stdout.write(json.dumps(whole, indent=1) + "\n")
    else:
        sys.stdout.write(f"{given.folder}: {form.family}\n\n{report.table(findings)}\n")
    return report.exit_code(findings)


def served_by(given: argparse.Namespace) -> Served:
    """What the draft is to serve, by the arguments.

    Raises:
        UnreadableError: the target cannot be read.
    """
    target = read_target(given.target) if given.target is not None else None
    context = given.context_length or (target.context_length if target is not None else None)
    return Served(given.sglang_version, target, given.layers, context)


def _version(text: str) -> Version:
    try:
        return Version.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _layers(text: str) -> tuple[int, ...]:
    try:
        layers = tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError:
        layers = ()
    if not layers:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layers such as 1,15,28")
    return layers
