"""Draws lines over an axis as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 60, 20, 34, 44
COLOURS = ("#1f6fb4", "#c8501e", "#3a8f3a", "#7a4fa3")
NUM_TICKS = 5


def chart(
    title: str,
    x_label: str,
    xs: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *,
    y_label: str = "%",
    mark: float | None = None,
) -> str:
    """Return a picture of lines over common `xs`.

    Args:
        lines: Values by the name of the line, as many as `xs`.
        mark: Where on the axis a vertical line is drawn.
    """
    left, right = min(xs), max(xs)
    top = max((value for values in lines.values() for value in values), default=0.0) or 1.0

    def x_of(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((value - left) / (right - left) if right > left else 0.5)

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13">{escape(title)}</text>',
        f'<text x="{WIDTH // 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="8" y="{TOP - 6}">{escape(y_label)}</text>',
    ]
    for tick in range(NUM_TICKS):
        x, y = left + (right - left) * tick / (NUM_TICKS - 1), top * tick / (NUM_TICKS - 1)
        parts.append(f'<text x="{x_of(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:.3g}</text>')
        parts.append(f'<text x="{LEFT - 6}" y="{y_of(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>')
        parts.append(f'<path d="M{LEFT} {y_of(y):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
    if mark is not None:
        parts.append(f'<path d="M{x_of(mark):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#888" stroke-dasharray="4 3"/>')
    for number, (name, values) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(xs, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 140 * number}" y="{TOP - 6}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
