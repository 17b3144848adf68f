"""Curves over a logarithmic axis, as SVG: one panel below the other, each with the same curves.

    title
    % |            ___----        name
      |     __-----               name
      +------------------
        1k   10k    100k

Knows nothing of what the curves say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#9a9a9a", "#1b1b1b", "#5b8fd6", "#2f9e5f", "#d1495b", "#8d5bd6")
WIDTH, PANEL_HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 50, 150, 34, 44
Y_STEP = 10


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves to be compared.

    Attributes:
        xs: positive, ascending.
        curves: by name, a value of at least 0 for each x.
    """

    title: str
    xs: Sequence[int]
    curves: Mapping[str, Sequence[float]]


def svg(panels: Sequence[Panel], *, x_label: str, y_label: str) -> str:
    """Return a whole SVG document."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{PANEL_HEIGHT * len(panels)}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, panel in enumerate(panels):
        lines += [f'<g transform="translate(0 {index * PANEL_HEIGHT})">', *_panel(panel, x_label, y_label), "</g>"]
    return "\n".join([*lines, "</svg>\n"])


def _panel(panel: Panel, x_label: str, y_label: str) -> Iterator[str]:
    top = max(max(values) for values in panel.curves.values())
    num_steps = max(1, math.ceil(top / Y_STEP))
    first, last = math.log(panel.xs[0]), math.log(panel.xs[-1])

    def x_of(value: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log(value) - first) / ((last - first) or 1)

    def y_of(value: float) -> float:
        return PANEL_HEIGHT - BOTTOM - (PANEL_HEIGHT - TOP - BOTTOM) * value / (num_steps * Y_STEP)

    yield f'<text x="{LEFT}" y="20" font-weight="bold">{escape(panel.title)}</text>'
    for step in range(num_steps + 1):
        y = y_of(step * Y_STEP)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{step * Y_STEP}</text>'
    for x in panel.xs:
        yield f'<text x="{x_of(x):.1f}" y="{PANEL_HEIGHT - BOTTOM + 16}" text-anchor="middle">{_short(x)}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{PANEL_HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
    yield f'<text x="{LEFT - 6}" y="20" text-anchor="end">{escape(y_label)}</text>'
    for index, (name, values) in enumerate(panel.curves.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(panel.xs, values, strict=True))
        width = 2 + 1.5 * (len(panel.curves) - 1 - index)  # so that a curve below another can be seen
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        legend = TOP + 18 * index
        yield f'<path d="M{WIDTH - RIGHT + 12} {legend}h20" stroke="{colour}" stroke-width="{width}"/>'
        yield f'<text x="{WIDTH - RIGHT + 38}" y="{legend + 4}">{escape(name)}</text>'


def _short(number: int) -> str:
    return f"{number / 1000:.3g}k" if number >= 1000 else str(number)
