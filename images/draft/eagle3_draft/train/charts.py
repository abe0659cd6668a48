"""Line charts as SVG: no script, no font, no file besides. Their colours are CSS variables of the page around them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 150, 14, 40

#: Between the labels at the lines' ends, so that each can be read.
_LABEL_PITCH = 14

#: About so many lines of the grid.
_TICKS = 5


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: written at its end.
        points: x and y, ascending in x; what is not finite is left out.
        colour: a CSS colour.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: str


def line_chart(lines: Sequence[Line], *, x_title: str, y_title: str, mark: tuple[float, str] | None = None) -> str:
    """An SVG element with these lines.

    Args:
        lines: those without a finite point are left out.
        x_title, y_title: of the axes.
        mark: an x that a dashed line marks, and what it is.
    """
    drawn = [Line(line.name, finite, line.colour) for line in lines if (finite := _finite(line.points))]
    xs = [x for line in drawn for x, _ in line.points] + ([mark[0]] if mark else [])
    ys = [y for line in drawn for _, y in line.points]
    x_axis, y_axis = _Axis(xs, _LEFT, WIDTH - _RIGHT), _Axis(ys, HEIGHT - _BOTTOM, _TOP, nice=True)
    parts = [_grid(x_axis, y_axis), _titles(x_title, y_title)]
    if mark:
        parts.append(_mark(x_axis.at(mark[0]), mark[1]))
    parts += [_drawn(line, x_axis, y_axis) for line in drawn]
    parts += _labels(drawn, y_axis)
    about = escape(f"{y_title} over {x_title}: {', '.join(line.name for line in drawn)}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{about}">{"".join(parts)}</svg>'


class _Axis:
    """Numbers to pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, nice: bool = False) -> None:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if low == high:
            low, high = low - 0.5, high + 0.5
        step = _nice((high - low) / _TICKS)
        if nice:
            low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        self._low, self._span = low, high - low
        self._start, self._length = start, end - start
        first = math.ceil(low / step - 1e-9)
        self.ticks = [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]
        self._digits = max(0, -math.floor(math.log10(step)))

    def at(self, value: float) -> float:
        return self._start + (value - self._low) / self._span * self._length

    def text(self, value: float) -> str:
        return f"{value:,.{self._digits}f}"


def _nice(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _grid(x_axis: _Axis, y_axis: _Axis) -> str:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    rows = [
        f'<path class="grid" d="M{_LEFT} {y_axis.at(tick):.1f}H{right}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{y_axis.at(tick) + 4:.1f}" text-anchor="end">{y_axis.text(tick)}</text>'
        for tick in y_axis.ticks
    ]
    columns = [
        f'<text class="tick" x="{x_axis.at(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{x_axis.text(tick)}</text>'
        for tick in x_axis.ticks
    ]
    return "".join([*rows, *columns])


def _titles(x_title: str, y_title: str) -> str:
    return (
        f'<text class="axis" x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_title)}</text>'
        f'<text class="axis" x="12" y="{_TOP}" text-anchor="end" transform="rotate(-90 12 {_TOP})">{escape(y_title)}</text>'
    )


def _mark(x: float, text: str) -> str:
    return (
        f'<path class="mark" d="M{x:.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>'
        f'<text class="tick" x="{x - 4:.1f}" y="{_TOP + 10}" text-anchor="end">{escape(text)}</text>'
    )


def _drawn(line: Line, x_axis: _Axis, y_axis: _Axis) -> str:
    places = [f"{x_axis.at(x):.1f} {y_axis.at(y):.1f}" for x, y in line.points]
    x, y = places[-1].split()
    return (
        f'<path class="line" stroke="{line.colour}" d="M{"L".join(places)}"/>'
        f'<circle cx="{x}" cy="{y}" r="3" fill="{line.colour}"/>'
    )


def _labels(lines: Sequence[Line], y_axis: _Axis) -> list[str]:
    """The names at the right, each beside its line's end or, where two would meet, as near as can be."""
    ordered = sorted(lines, key=lambda line: y_axis.at(line.points[-1][1]))
    heights = [y_axis.at(line.points[-1][1]) for line in ordered]
    for above, below in pairwise(range(len(heights))):
        heights[below] = max(heights[below], heights[above] + _LABEL_PITCH)
    if heights and (excess := heights[-1] - (HEIGHT - 6)) > 0:
        heights = [height - excess for height in heights]
    return [
        f'<text class="label" x="{WIDTH - _RIGHT + 10}" y="{height + 4:.1f}" fill="{line.colour}">'
        f"{escape(line.name)}</text>"
        for line, height in zip(ordered, heights, strict=True)
    ]
