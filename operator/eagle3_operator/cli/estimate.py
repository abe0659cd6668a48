"""What an object will take, before anything is applied: bytes, tokens, hours of GPUs, a server's start, a rollback."""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from eagle3_api.draft_size import DEFAULT_VOCABULARY, DraftSize
from eagle3_api.estimate import (
    Estimate,
    Shape,
    bytes_per_token,
    count_of,
    estimate,
    known_target,
    readable_bytes,
    startup_seconds,
    ways_to_store,
)
from eagle3_api.features import TOP_K, FeatureDtype, TeacherKind
from eagle3_api.quantity import quantity
from eagle3_api.rates import (
    COMPUTED_SHARE,
    FP8_GAIN,
    H200,
    READ_SHARE,
    TOGETHER,
    TRAINED_SHARE,
    Gpu,
    Size,
    answer_rate,
    prefill_rate,
    size_of,
    training_rate,
)
from eagle3_api.sglang import default_layers
from eagle3_api.spec import Data, Eagle3DraftSpec, seconds
from eagle3_api.times import duration
from eagle3_operator.cli.files import no_config, read_config, read_document, spec_of
from eagle3_operator.cli.usage import UsageError

_TEACHERS: dict[TeacherKind, str] = {
    "LastState": "LastState: every probability that the draft can learn",
    "TopK": f"TopK: the {TOP_K} most likely tokens",
}


_MILLION = 1_000_000

#: The label of nodes by which NVIDIA's operator says their GPUs.
_GPU_PRODUCT = "nvidia.com/gpu.product"

#: Instead of a number of tokens, where the object says nothing of them: all else is then told of a million.
_UNBOUNDED = (
    "unknown: nothing limits the data, so the figures below are for a million tokens. For a total set data.expectedTokens "
    "or data.maxSamples. Inspect counts the tokens in any case, before a GPU is taken"
)

_T = TypeVar("_T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("-f", "--file", required=True, help="the object's YAML; - reads standard input")
    parser.add_argument(
        "--target-config", type=Path, help="the target's config.json, if its model is not one of the known ones"
    )
    parser.add_argument(
        "--tokens-per-second",
        type=_tokens_per_second,
        help="tokens/s that one pod extracts, as a finished extraction's Event and report say (default: estimated "
        "from the target's parameters)",
    )
    parser.add_argument(
        "--answer-tokens-per-second",
        type=_tokens_per_second,
        help="tokens/s that one pod generates, over all requests, if the target answers itself (default: estimated "
        "likewise)",
    )
    parser.add_argument(
        "--train-tokens-per-second",
        type=_tokens_per_second,
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
    said = Rates(given.tokens_per_second, given.answer_tokens_per_second, given.train_tokens_per_second)
    sys.stdout.write(_table(spec, shape, gpu, said) + "\n")
    return 0


def _tokens_per_second(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of tokens per second")
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
                f"{path} is not here and {spec.target.model} is not a known model; give its config.json as --target-config"
            ) from None
        return known
    except (ValueError, KeyError, TypeError) as error:
        raise no_config(path, error) from None


@dataclass(frozen=True)
class Rates:
    """Rates that somebody measured, of one pod; None where they are to be estimated.

    Attributes:
        extracting: tokens/s.
        answering: tokens/s, all requests together.
        training: tokens/s, all GPUs of all its pods together.
    """

    extracting: float | None = None
    answering: float | None = None
    training: float | None = None


def _table(spec: Eagle3DraftSpec, shape: Shape, gpu: Gpu, said: Rates) -> str:
    """What an object will take, one line a fact: its extraction, its training, a server's start, and a rollback.

    Args:
        spec: of the object.
        shape: of its target.
        gpu: by which rates are estimated that nobody said.
        said: rates.
    """
    data = spec.data
    if spec.draft.checkpoint is not None or data is None:
        rows = [("features", "none: draft.checkpoint adopts a draft that was trained elsewhere")]
    elif (layers := spec.draft.auxiliary_layers or default_layers(shape.layers)) is None:
        return f"there are no defaults for a target of {shape.layers} layers; set draft.auxiliaryLayers"
    else:
        rows = _extraction(spec, data, layers, shape, gpu, said)
    rows += _serving(spec, shape)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _extraction(
    spec: Eagle3DraftSpec, data: Data, layers: Sequence[int], shape: Shape, gpu: Gpu, said: Rates
) -> list[tuple[str, str]]:
    bounded = data.expected_tokens is not None or data.max_samples is not None

    def of(dtype: FeatureDtype, teacher: TeacherKind) -> Estimate:
        bound = estimate(
            hidden_size=shape.hidden_size,
            layers=len(layers),
            dtype=dtype,
            teacher=teacher,
            expected_tokens=data.expected_tokens,
            max_samples=data.max_samples,
            max_length=data.max_length,
        )
        per_token = bytes_per_token(shape.hidden_size, len(layers), dtype, teacher)
        return bound or Estimate(_MILLION, _UNBOUNDED, per_token)

    dtype, teacher = spec.extract.dtype, spec.extract.teacher
    chosen = of(dtype, teacher)
    counted = f"{chosen.tokens / 1e6:,.1f} M ({chosen.source})" if bounded else chosen.source
    return [
        ("target", f"{spec.target.model}: hidden {shape.hidden_size:,}, {shape.layers} layers"),
        ("states", f"layers {', '.join(map(str, layers))}{' and the last' if teacher == 'LastState' else ''}, {dtype}"),
        ("teacher", _TEACHERS[teacher]),
        ("tokens", counted),
        ("per token", f"{chosen.per_token:,} bytes"),
        (
            "features",
            f"{readable_bytes(chosen.bytes)}{_against_claim(spec, chosen) if bounded else ' for each million tokens'}",
        ),
        *(
            (f"or {way.dtype} {way.teacher}", readable_bytes(of(way.dtype, way.teacher).bytes))
            for way in ways_to_store(dtype, teacher)
            if way.change
        ),
        ("time", _time(spec, chosen, _rate(said.extracting, prefill_rate, shape, spec.extract.gpus, gpu))),
        *_answering(
            data, chosen, _rate(said.answering, answer_rate, shape, spec.extract.gpus, gpu), spec.extract.shards
        ),
        *_reckoned(shape, gpu, said, answers=data.regeneration is not None),
        ("kept", "as extract.retain says" if spec.extract.retain else "until the draft is trained"),
        ("training", _training(spec, chosen.tokens, len(layers), shape, gpu, said.training)),
        *_of_another_gpu(spec, gpu),
    ]


def _serving(spec: Eagle3DraftSpec, shape: Shape) -> list[tuple[str, str]]:
    """How long a server may take to start, and what it costs to go back to the revision before."""
    serve, watch = spec.serve, spec.watched
    if serve is None or watch is None:
        return []
    if serve.start_timeout is not None:
        start = f"up to {duration(seconds(serve.start_timeout))} (serve.startTimeout)"
    elif shape.size is not None:
        budget, weights = startup_seconds(int(shape.size.weight_bytes)), shape.size.weight_bytes / 1e9
        start = f"up to {duration(budget)} before it counts as hung: {weights:,.0f} GB of weights"
    else:
        start = "unknown, because the target's parameters or their bits are unknown"
    noticed = duration(watch.failures.of * seconds(watch.window))
    warm = f"a second while the former revision is warm (serve.bakeTime {serve.bake_time}), and later a start"
    if serve.surge == "Never":
        warm = "a start, during which the Service has no pod (serve.surge: Never)"
    return [("start", start), ("rollback", f"a bad draft is noticed after {noticed}; going back then takes {warm}")]


def _rate(
    said: float | None, estimated: Callable[[Size, int, Gpu], float], shape: Shape, gpus: int, gpu: Gpu
) -> float | None:
    """Tokens/s of one pod, as somebody said or as the target's size tells; None where neither does."""
    if said is not None or shape.size is None:
        return said
    return estimated(shape.size, gpus, gpu)


def _time(spec: Eagle3DraftSpec, chosen: Estimate, tokens_per_second: float | None) -> str:
    pods = spec.extract.shards
    if tokens_per_second is None:
        return "unknown, because the target's parameters or their bits are unknown; give --tokens-per-second or the whole config.json"
    gpus = spec.extract.gpus
    each = f"{count_of(gpus, 'GPU')} at {tokens_per_second:,.0f} tokens/s"
    written = readable_bytes(tokens_per_second * chosen.per_token)
    return (
        f"{duration(chosen.seconds(tokens_per_second, pods))} on "
        + (f"{pods} pods, each of {each}" if pods > 1 else f"a pod of {each}")
        + f", if the volume takes {written}/s from each"
    )


def _answering(data: Data, chosen: Estimate, tokens_per_second: float | None, pods: int) -> list[tuple[str, str]]:
    """What comes on top where the target answers itself: nobody knows beforehand how long its answers will be."""
    asked = data.regeneration
    if asked is None:
        return []
    told = f"generated by the target, up to {asked.max_tokens:,} tokens each (the tokens above must include them)"
    if tokens_per_second is not None:
        longest = duration(chosen.seconds(tokens_per_second, pods))
        told += f"; adds up to {longest} at {tokens_per_second:,.0f} tokens/s per pod"
    return [("answers", told)]


def _training(
    spec: Eagle3DraftSpec, tokens: int, states: int, shape: Shape, gpu: Gpu, tokens_per_second: float | None
) -> str:
    """How long all epochs take if every token counts in each of them; what a mask leaves out is not known beforehand."""
    train, draft = spec.train, spec.draft
    gpus, source = train.nodes * train.gpus, ""
    if tokens_per_second is None:
        if train.trainer is not None:
            return "unknown, because train.trainer is not ours; give --train-tokens-per-second"
        if not gpus:
            return "unknown for a CPU; give --train-tokens-per-second"
        if shape.draft is None:
            return "unknown, because the draft's sizes are unknown; give --train-tokens-per-second or the whole config.json"
        operations = shape.draft.operations(
            states=states,
            depth=draft.depth,
            vocabulary=draft.vocabulary_size or DEFAULT_VOCABULARY,
            unroll_steps=train.unroll_steps,
        )
        fp8 = train.precision == "fp8"
        tokens_per_second = training_rate(operations, gpus, fp8=fp8, gpu=gpu)
        source = (
            f"; from {operations / 1e9:,.1f} Gflop per token at {TRAINED_SHARE:.0%} of {gpu.operations / 1e12:,.0f} Tflop/s per GPU"
            f"{f', times {FP8_GAIN} for fp8' if fp8 else ''}, as measured on H200s"
        )
    took = duration(train.epochs * tokens / tokens_per_second)
    on = f" on {count_of(gpus, 'GPU')}" if gpus else ""
    epochs = count_of(train.epochs, "epoch")
    return f"{took}{on} at {tokens_per_second:,.0f} tokens/s, {epochs}, less if not every token counts{source}"


def _reckoned(shape: Shape, gpu: Gpu, said: Rates, *, answers: bool) -> list[tuple[str, str]]:
    """Where the rates come from that nobody said."""
    if shape.size is None:
        return []
    told = []
    if said.extracting is None:
        told.append(
            f"2 x {shape.size.active / 1e9:,.1f} G parameters per token at {COMPUTED_SHARE:.0%} of {gpu.operations / 1e12:,.0f} "
            "Tflop/s per GPU"
        )
    if answers and said.answering is None:
        told.append(
            f"answers: {TOGETHER} tokens for each reading of {shape.size.weight_bytes / 1e9:,.0f} GB of weights at "
            f"{READ_SHARE:.0%} of {gpu.read / 1e12:.1f} TB/s per GPU"
        )
    return [("rates", f"estimated, not measured: {'; '.join(told)}")] if told else []


def _of_another_gpu(spec: Eagle3DraftSpec, gpu: Gpu) -> list[tuple[str, str]]:
    """Of which GPU it is reckoned, where nobody has said and the pods ask for another."""
    product = (spec.placement.node_selector or {}).get(_GPU_PRODUCT, "H200")
    if gpu != H200 or "H200" in product:
        return []
    told = (
        f"these times assume an H200, but placement.nodeSelector asks for {product}. Pass its data-sheet figures: --gpu-teraflops, "
        "--gpu-terabytes-per-second"
    )
    return [("GPU", told)]


def _against_claim(spec: Eagle3DraftSpec, chosen: Estimate) -> str:
    """Whether a claim that the operator is to make is large enough; a user's own is not known here."""
    size, store = spec.storage.features.size, spec.storage.features.object_store
    if store is not None:
        return f"; in {store.url}"
    if size is None:
        return f"; claim {spec.storage.features.claim} must have them free"
    missing = chosen.bytes - quantity(size)
    return f"; storage.features.size {size} " + (
        f"is {readable_bytes(missing)} too small" if missing > 0 else "holds them"
    )
