"""What the features of an object will take: bytes, tokens, hours."""

import argparse
import math
import sys
from pathlib import Path

from eagle3_api.estimate import Shape, known_target
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_operator.cli.files import no_config, read_config, read_document, spec_of
from eagle3_operator.cli.table import estimate_table
from eagle3_operator.cli.usage import UsageError

#: Of one pod, where nothing better is known: a large target on one node in bf16.
TOKENS_PER_SECOND = 10_000.0
ANSWER_TOKENS_PER_SECOND = 2_000.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("-f", "--file", required=True, help="the object's YAML; - reads standard input")
    parser.add_argument(
        "--target-config", type=Path, help="the target's config.json, where its model is not one of the known ones"
    )
    parser.add_argument(
        "--tokens-per-second",
        type=_rate,
        default=TOKENS_PER_SECOND,
        help="what one pod extracts; a finished extraction says it in its report (default %(default).0f)",
    )
    parser.add_argument(
        "--answer-tokens-per-second",
        type=_rate,
        default=ANSWER_TOKENS_PER_SECOND,
        help="what one pod generates, all requests together, where the target answers itself (default %(default).0f)",
    )


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    spec = spec_of(read_document(given.file), given.file)
    shape = _shape(spec, given.target_config)
    sys.stdout.write(estimate_table(spec, shape, given.tokens_per_second, given.answer_tokens_per_second) + "\n")
    return 0


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of tokens per second")
    return rate


def _shape(spec: Eagle3DraftSpec, config: Path | None) -> Shape:
    path = config or Path(spec.target.model) / "config.json"  # of a hub's repository there is none here
    try:
        _, language = read_config(path)
        return Shape(int(language["hidden_size"]), int(language["num_hidden_layers"]))
    except FileNotFoundError:
        known = known_target(spec.target.model) if config is None else None
        if known is None:
            raise UsageError(
                f"{path} is not here and {spec.target.model} is no known model; give its config.json as --target-config"
            ) from None
        return known
    except (ValueError, KeyError, TypeError) as error:
        raise no_config(path, error) from None
