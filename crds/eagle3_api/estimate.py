"""What the work will take, before it starts: bytes and hours of features, seconds until a server is up."""

from dataclasses import dataclass
from pathlib import PurePosixPath

#: Bytes of one stored element.
DTYPE_BYTES = {"fp8": 1, "bf16": 2, "fp32": 4}

#: Of a row of FP8, which is scaled as a whole.
_SCALE_BYTES = 4

#: A server may take so long before its weights are read: imports, graph capture, warm-up.
STARTUP_BASE_SECONDS = 600.0

#: Slowest plausible reading of weights from a cold disk, bytes/s.
STARTUP_READ_RATE = 500e6


def bytes_per_token(hidden_size: int, layers: int, dtype: str) -> int:
    """Bytes that one token's features take: the auxiliary states and the last one, and 9 for its id and its mask.

    Args:
        hidden_size: of the target.
        layers: how many auxiliary layers.
        dtype: ``fp8``, ``bf16`` or ``fp32``.
    """
    scale = _SCALE_BYTES if dtype == "fp8" else 0
    return (layers + 1) * (hidden_size * DTYPE_BYTES[dtype] + scale) + 9


@dataclass(frozen=True)
class Shape:
    """What of a target decides the size of its features.

    Attributes:
        hidden_size: of the target.
        layers: its decoder layers.
    """

    hidden_size: int
    layers: int


#: Targets whose configuration need not be at hand for an estimate, by the last part of their path. From their config.json.
KNOWN_TARGETS = {
    "Kimi-K2.5": Shape(7168, 61),
    "Kimi-K2-Instruct": Shape(7168, 61),
    "DeepSeek-V3": Shape(7168, 61),
    "DeepSeek-R1": Shape(7168, 61),
    "Llama-3.1-8B-Instruct": Shape(4096, 32),
    "Llama-3.3-70B-Instruct": Shape(8192, 80),
    "Qwen3-8B": Shape(4096, 36),
    "Qwen3-32B": Shape(5120, 64),
}


def known_target(path: str) -> Shape | None:
    """The shape of a target whose folder has the name of a known model."""
    return KNOWN_TARGETS.get(PurePosixPath(path).name)


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

    def hours(self, tokens_per_second: float, pods: int) -> float:
        """Hours of so many pods that each extract at this rate."""
        return self.tokens / (tokens_per_second * pods) / 3600


def estimate(
    *,
    hidden_size: int,
    layers: int,
    dtype: str,
    expected_tokens: int | None,
    max_samples: int | None,
    max_length: int,
) -> Estimate | None:
    """The estimate of an extraction whose data is not at hand, or None where nothing bounds it.

    Args:
        hidden_size: of the target.
        layers: how many auxiliary layers.
        dtype: of the stored states.
        expected_tokens: as somebody counted them; without, the upper bound ``max_samples`` x ``max_length``.
        max_samples, max_length: of the data.
    """
    per_token = bytes_per_token(hidden_size, layers, dtype)
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
