"""What the work will take, before it starts: bytes and hours of features, seconds until a server is up."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import get_args

from eagle3_api.draft_size import DraftSize
from eagle3_api.features import TOP_K, FeatureDtype, TeacherKind
from eagle3_api.rates import Size

#: Bytes of one stored element.
DTYPE_BYTES: dict[FeatureDtype, int] = {"fp8": 1, "bf16": 2, "fp32": 4}

#: Of a row of FP8, which is scaled as a whole.
_SCALE_BYTES = 4

#: Of a token in ``TopK``: its id in 4, its probability in 2.
_TOP_BYTES = 6

#: Of a process of Convert before it begins: torch, Transformers and the libraries of a GPU that it does not have.
CONVERT_PROCESS_BYTES = 2**30

#: A server may take so long before its weights are read: imports, graph capture, warm-up.
STARTUP_BASE_SECONDS = 600.0

#: Slowest plausible reading of weights from a cold disk, bytes/s.
STARTUP_READ_RATE = 500e6


def bytes_per_token(hidden_size: int, layers: int, dtype: FeatureDtype, teacher: TeacherKind) -> int:
    """Bytes that one token's features take: its states, what the target says after it, its id and its mask.

    Args:
        hidden_size: of the target.
        layers: how many auxiliary layers.
        dtype: of the states.
        teacher: ``LastState``: one more state, the most likely token and the log-normaliser. ``TopK``: ids and probabilities.
    """
    state = hidden_size * DTYPE_BYTES[dtype] + (_SCALE_BYTES if dtype == "fp8" else 0)
    said = TOP_K * _TOP_BYTES if teacher == "TopK" else state + 8
    return layers * state + said + 5


def conversion_memory(hidden_size: int, target_dtype: str) -> int:
    """Bytes that the stage Convert holds at most of a draft that was trained here: its weights stay in their files.

    Held are the process itself, the matrices of a layer that are multiplied side by side, and what is computed of a thousand
    tokens. Both by measurement of a draft whose feed-forward network is four times as wide as its states
    (docs/benchmarks/conversion.md); its vocabulary does not count.

    Args:
        hidden_size: of the target, and so of the draft.
        target_dtype: that the target is served in, as torch says it, which is the one that is computed in.
    """
    numbers = 16 * hidden_size**2 + 64 * 1024 * hidden_size
    return CONVERT_PROCESS_BYTES + numbers * (4 if target_dtype == "float32" else 2)


@dataclass(frozen=True)
class Storing:
    """A way of storing features.

    Attributes:
        dtype: of the states.
        teacher: in which form the target's answers are.
        change: what to set for it, in words; empty where nothing is.
    """

    dtype: FeatureDtype
    teacher: TeacherKind
    change: str


def ways_to_store(dtype: FeatureDtype, teacher: TeacherKind) -> list[Storing]:
    """All ways of storing features, each told by what it changes; the most exact first.

    Args:
        dtype, teacher: as they are set.
    """
    return [
        Storing(
            other,
            kind,
            " and ".join(
                ([f"extract.dtype {other}"] if other != dtype else [])
                + ([f"extract.teacher {kind}"] if kind != teacher else [])
            ),
        )
        for kind in get_args(TeacherKind)
        for other in sorted(DTYPE_BYTES, key=DTYPE_BYTES.__getitem__, reverse=True)
    ]


@dataclass(frozen=True)
class Shape:
    """What of a target decides the size of its features, and how long they and the draft take.

    Attributes:
        hidden_size: of the target.
        layers: its decoder layers.
        size: its parameters, where they are known.
        draft: the sizes of its draft, where they are.
    """

    hidden_size: int
    layers: int
    size: Size | None = None
    draft: DraftSize | None = None


_DEEPSEEK = DraftSize(7168, 18432)
_GPT_OSS = DraftSize(2880, 4 * 2880, heads=64, head_dim=64)

#: Targets whose configuration need not be at hand for an estimate, by the last part of their path. Shapes from their config.json,
#: parameters from their model cards (of Qwen3-30B-A3B without the embedding, a tenth of its 3.3e9), bytes by the type that the weights are published in.
KNOWN_MODELS = {
    "Kimi-K2.5": Shape(7168, 61, Size(32e9, 0.6e12), _DEEPSEEK),
    "Kimi-K2-Instruct": Shape(7168, 61, Size(32e9, 1.03e12), _DEEPSEEK),
    "DeepSeek-V3": Shape(7168, 61, Size(37e9, 0.69e12), _DEEPSEEK),
    "DeepSeek-R1": Shape(7168, 61, Size(37e9, 0.69e12), _DEEPSEEK),
    "Llama-3.1-8B-Instruct": Shape(4096, 32, Size(8.0e9, 16.1e9), DraftSize(4096, 14336, heads=32)),
    "Llama-3.3-70B-Instruct": Shape(8192, 80, Size(70.6e9, 141e9), DraftSize(8192, 28672, heads=64)),
    "gpt-oss-20b": Shape(2880, 24, Size(3.6e9, 13.8e9), _GPT_OSS),
    "gpt-oss-120b": Shape(2880, 36, Size(5.1e9, 65.2e9), _GPT_OSS),
    "Qwen3-30B-A3B": Shape(2048, 48, Size(3.0e9, 61e9), DraftSize(2048, 6144, heads=32, kv_heads=4)),
    "Qwen3-235B-A22B": Shape(4096, 94, Size(22e9, 470e9), DraftSize(4096, 12288, heads=64, kv_heads=4)),
    "Qwen3-8B": Shape(4096, 36, Size(8.2e9, 16.4e9), DraftSize(4096, 12288, heads=32)),
    "Qwen3-32B": Shape(5120, 64, Size(32.8e9, 65.5e9), DraftSize(5120, 25600, heads=64)),
}


def known_target(path: str) -> Shape | None:
    """The shape of a target whose folder has the name of a known model."""
    return KNOWN_MODELS.get(PurePosixPath(path).name)


@dataclass(frozen=True)
class Estimate:
    """What an extraction takes.

    Attributes:
        tokens: of all conversations.
        source: where that number comes from, in words.
        per_token: bytes of one token's features.
    """

    tokens: int
    source: str
    per_token: int

    @property
    def bytes(self) -> int:
        return self.tokens * self.per_token

    def seconds(self, tokens_per_second: float, pods: int) -> float:
        """Seconds of so many pods that each extract at this rate."""
        return self.tokens / (tokens_per_second * pods)


def estimate(
    *,
    hidden_size: int,
    layers: int,
    dtype: FeatureDtype,
    teacher: TeacherKind,
    expected_tokens: int | None,
    max_samples: int | None,
    max_length: int,
) -> Estimate | None:
    """The estimate of an extraction whose data is not at hand, or None where nothing bounds it.

    Args:
        hidden_size: of the target.
        layers: how many auxiliary layers.
        dtype: of the stored states.
        teacher: in which form the target's answers are stored.
        expected_tokens: as somebody counted them; without, the upper bound ``max_samples`` x ``max_length``.
        max_samples, max_length: of the data.
    """
    per_token = bytes_per_token(hidden_size, layers, dtype, teacher)
    if expected_tokens is not None:
        return Estimate(expected_tokens, "data.expectedTokens", per_token)
    if max_samples is not None:
        bound = f"upper bound: data.maxSamples {max_samples:,} x data.maxLength {max_length:,}"
        return Estimate(max_samples * max_length, bound, per_token)
    return None


def startup_seconds(weight_bytes: int) -> float:
    """Budget for a server's start, generous on purpose: a start that is slow must not be called failed."""
    return STARTUP_BASE_SECONDS + weight_bytes / STARTUP_READ_RATE


def readable_bytes(count: float) -> str:
    """1536 -> '1.50 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"


def count_of(number: int, what: str) -> str:
    """1, 'GPU' -> '1 GPU'; 2, 'GPU' -> '2 GPUs'."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def readable_count(count: float) -> str:
    """87_800_000 -> '87.8 M'; below a million every digit, in groups."""
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count:,.0f}"
