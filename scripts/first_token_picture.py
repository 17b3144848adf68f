"""Draws docs/pictures/first-token-{light,dark}.svg, the bars at the top of the README.

    python -m scripts.first_token_picture

The figures are medians of `scripts.bench.adapters` (docs/benchmarks.md): vLLM 0.32 on two cores of an EPYC, one image
of 448 x 448, a vision tower of 124 M parameters in float32.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
TITLE = "vLLM, milliseconds to the first token of a request with one image"
BARS = (
    ("a new image, without mmcached", 1_127, False),
    ("a new image, with mmcached", 1_117, True),
    ("another replica has encoded it, without mmcached", 1_127, False),
    ("another replica has encoded it, with mmcached", 31, True),
    ("the same number of text tokens, no image", 19, False),
)
"""Label, milliseconds, and whether mmcached is there."""
THEMES = {"light": ("#1f2328", "#afb8c1", "#0969da"), "dark": ("#e6edf3", "#57606a", "#58a6ff")}
"""Colours of text, of bars without and of bars with mmcached."""
WIDTH, LEFT, ROW, TOP, LONGEST = 800, 370, 30, 44, 360


def svg(text: str, without: str, with_: str) -> str:
    """Return the picture in three colours."""
    height = TOP + ROW * len(BARS) + 8
    scale = LONGEST / max(value for _, value, _ in BARS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{TITLE}" font-family="system-ui, sans-serif" font-size="13" fill="{text}">',
        f'<text x="8" y="22" font-size="15" font-weight="600">{TITLE}</text>',
    ]
    for index, (label, value, has_cache) in enumerate(BARS):
        y = TOP + ROW * index
        length = max(2.0, value * scale)
        lines += [
            f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{label}</text>',
            f'<rect x="{LEFT}" y="{y + 3}" width="{length:.0f}" height="18" rx="2" '
            f'fill="{with_ if has_cache else without}"/>',
            f'<text x="{LEFT + length + 6:.0f}" y="{y + 17}">{value:,}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Write both pictures."""
    for theme, colours in THEMES.items():
        (FOLDER / f"first-token-{theme}.svg").write_text(svg(*colours))


if __name__ == "__main__":
    main()
