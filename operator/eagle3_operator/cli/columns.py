"""Columns, as kubectl prints them."""

from collections.abc import Sequence


def grid(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under titles. An empty cell is one of spaces; the last column is as wide as it wants."""
    lines = [titles, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "\n".join(
        "   ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
