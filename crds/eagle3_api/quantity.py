"""Kubernetes' way of writing sizes."""

_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | {
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def quantity(text: str) -> int:
    """A Kubernetes quantity (``1.5Ti``, ``500G``, ``1e12``, ``1500m``) as a whole number, rounded down."""
    number = text.rstrip("".join({c for suffix in _FACTORS for c in suffix} | {"i"}))
    suffix = text[len(number) :]
    if number.endswith("m") and not suffix:
        return int(float(number[:-1]) / 1000)
    return int(float(number) * _FACTORS[suffix])
