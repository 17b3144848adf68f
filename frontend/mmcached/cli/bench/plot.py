"""Draws a chart with two logarithmic axes as SVG; colours are the page's, by CSS variables and classes.

Each series is a line of class `s0`, `s1`, … and ends with its name, so that the chart needs no legend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 90, 160, 16, 40
LINE_HEIGHT = 14
"""Pixels between two names at the ends of lines."""

Point = tuple[float, float]
Text = Callable[[float], str]


def chart(
    title: str, series: Mapping[str, Sequence[Point]], *, x_ticks: Sequence[float], x_text: Text, y_text: Text
) -> str:
    """Return an `<svg>` element.

    Args:
        series: Points by name, with x and y above 0; at least one point in all.
        x_ticks: Positions of the marks of the x axis.
    """
    points = [point for line in series.values() for point in line]
    x_of = _scale([x for x, _ in points] + list(x_ticks), LEFT, WIDTH - RIGHT)
    decades = _decades([y for _, y in points])
    y_of = _scale(decades, HEIGHT - BOTTOM, TOP)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for y in decades:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y_of(y) + 4:.1f}" text-anchor="end">{escape(y_text(y))}</text>')
    below = HEIGHT - BOTTOM + 20
    parts += [f'<text x="{x_of(x):.1f}" y="{below}" text-anchor="middle">{escape(x_text(x))}</text>' for x in x_ticks]
    ends = _apart({name: y_of(line[-1][1]) for name, line in series.items() if line})
    for number, (name, line) in enumerate(series.items()):
        if not line:
            continue
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        parts.append(f'<polyline class="line s{number}" points="{path}"/>')
        for x, y in line:
            told = escape(f"{name}, {x_text(x)}: {y_text(y)}")
            place = f'cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="4"'
            parts.append(f'<circle class="dot s{number}" {place}><title>{told}</title></circle>')
        end = x_of(line[-1][0]) + 10
        parts.append(f'<text class="name s{number}" x="{end:.1f}" y="{ends[name] + 4:.1f}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"])


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Return a function from a value to a coordinate between `start` and `end`, by its logarithm."""
    low, high = math.log(min(values)), math.log(max(values))
    span = high - low or 1.0
    return lambda value: start + (math.log(value) - low) / span * (end - start)


def _decades(values: Sequence[float]) -> list[float]:
    """Return the powers of ten from below the smallest value to above the largest."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _apart(places: Mapping[str, float]) -> dict[str, float]:
    """Move names down until no two of them overlap, then all up again if the last has left the chart."""
    moved: dict[str, float] = {}
    lowest = -math.inf
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        lowest = max(place, lowest + LINE_HEIGHT)
        moved[name] = lowest
    excess = max(0.0, lowest - (HEIGHT - BOTTOM))
    return {name: place - excess for name, place in moved.items()}
