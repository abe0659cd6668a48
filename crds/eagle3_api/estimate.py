"""What the work will take, before it starts: bytes of features, seconds until a server is up."""

#: Bytes of one stored element.
DTYPE_BYTES = {"bf16": 2, "fp32": 4}

#: A server may take so long before its weights are read: imports, graph capture, warm-up.
STARTUP_BASE_SECONDS = 600.0

#: Slowest plausible reading of weights from a cold disk, bytes/s.
STARTUP_READ_RATE = 500e6


def bytes_per_token(hidden_size: int, layers: int, dtype: str) -> int:
    """Bytes that one token's features take: the auxiliary states and the last one, and 9 for its id and its mask.

    Args:
        hidden_size: of the target.
        layers: how many auxiliary layers.
        dtype: ``bf16`` or ``fp32``.
    """
    return (layers + 1) * hidden_size * DTYPE_BYTES[dtype] + 9


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
