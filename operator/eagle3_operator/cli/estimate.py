"""What an object will take, before anything is applied: bytes, tokens, hours of GPUs, a server's start, a rollback."""

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from eagle3_api.draft_size import DraftSize
from eagle3_api.estimate import Shape, known_target
from eagle3_api.rates import H200, Gpu, size_of
from eagle3_api.spec import Eagle3DraftSpec
from eagle3_operator.cli.files import no_config, read_config, read_document, spec_of
from eagle3_operator.cli.table import Said, estimate_table
from eagle3_operator.cli.usage import UsageError

_T = TypeVar("_T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("-f", "--file", required=True, help="the object's YAML; - reads standard input")
    parser.add_argument(
        "--target-config", type=Path, help="the target's config.json, if its model is not one of the known ones"
    )
    parser.add_argument(
        "--tokens-per-second",
        type=_rate,
        help="tokens/s that one pod extracts, as a finished extraction's Event and report say (default: estimated "
        "from the target's parameters)",
    )
    parser.add_argument(
        "--answer-tokens-per-second",
        type=_rate,
        help="tokens/s that one pod generates, over all requests, if the target answers itself (default: estimated "
        "likewise)",
    )
    parser.add_argument(
        "--train-tokens-per-second",
        type=_rate,
        help="tokens/s that a training processes, over all its GPUs, as a running one says (default: estimated from "
        "the draft's size)",
    )
    parser.add_argument(
        "--gpu-teraflops",
        type=float,
        default=H200.operations / 1e12,
        help="dense bf16 TFLOP/s of one GPU, from its data sheet (default %(default).0f: an H200)",
    )
    parser.add_argument(
        "--gpu-terabytes-per-second",
        type=float,
        default=H200.read / 1e12,
        help="memory bandwidth of one GPU in TB/s, from its data sheet (default %(default).1f: an H200)",
    )


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    spec = spec_of(read_document(given.file), given.file)
    shape = _shape(spec, given.target_config)
    gpu = Gpu(given.gpu_teraflops * 1e12, given.gpu_terabytes_per_second * 1e12)
    said = Said(given.tokens_per_second, given.answer_tokens_per_second, given.train_tokens_per_second)
    sys.stdout.write(estimate_table(spec, shape, gpu, said) + "\n")
    return 0


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of tokens per second")
    return rate


def _if_told(read: Callable[[Mapping[str, Any]], _T], language: Mapping[str, Any]) -> _T | None:
    """What is read of a configuration; None where it does not tell, as one of a few sizes does not."""
    try:
        return read(language)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _shape(spec: Eagle3DraftSpec, config: Path | None) -> Shape:
    path = config or Path(spec.target.model) / "config.json"  # of a hub's repository there is none here
    try:
        _, language = read_config(path)
        width, layers = int(language["hidden_size"]), int(language["num_hidden_layers"])
        return Shape(width, layers, _if_told(size_of, language), _if_told(DraftSize.for_target, language))
    except FileNotFoundError:
        known = known_target(spec.target.model) if config is None else None
        if known is None:
            raise UsageError(
                f"{path} is not here and {spec.target.model} is no known model; give its config.json as --target-config"
            ) from None
        return known
    except (ValueError, KeyError, TypeError) as error:
        raise no_config(path, error) from None
