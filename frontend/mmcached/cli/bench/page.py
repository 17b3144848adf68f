"""Writes the figures as one self-contained HTML page, in the reader's light or dark mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from mmcached.cli.bench.figures import MEANINGS, Figure, Kind, find, size_text, time_text
from mmcached.cli.bench.plot import chart
from mmcached.cli.bench.table import clients_text, kinds_of, rows, verdict

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --faint: #d7dade; --soft: #5b6169;
  --c0: #0b63c5; --c1: #2f9dd6; --c2: #b34700; --c3: #8a5fbf; --c4: #6b7280; --c5: #b3261e; --c6: #d97b74; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #16181c; --faint: #343a41; --soft: #a3abb5;
  --c0: #6cb2ff; --c1: #7fd4f5; --c2: #ffab66; --c3: #c7a8f0; --c4: #a3abb5; --c5: #ff8a80; --c6: #f2b8b5; } }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } .soft { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--faint); white-space: nowrap; }
th { font-weight: 600; } dt { font-weight: 600; } dd { margin: 0 0 .5rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft); } .grid { stroke: var(--faint); }
.line { fill: none; stroke-width: 2; } .dot { stroke: var(--paper); } svg .name { font-weight: 600; }
"""


def page(figures: Sequence[Figure], host: str, made: str) -> str:
    """Return the page; `host` describes the measured host, `made` gives date and version, in a line each."""
    kinds = kinds_of(figures)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>mmcached bench</title>',
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}{colours(len(kinds))}</style></head><body>',
        f'<h1>mmcached bench</h1><p>{escape(verdict(figures))}</p><p class="soft">{escape(host)}<br>{escape(made)}</p>',
    ]
    for num_clients in sorted({each.num_clients for each in figures}):
        name = clients_text(num_clients)
        parts += [f"<h2>{name}: median time of a call</h2>", _chart(name, figures, num_clients, _p50_us, time_text)]
        parts += [
            f"<h2>{name}: bytes received or stored per second</h2>",
            _chart(name, figures, num_clients, _mb_per_s, _rate_text),
        ]
        parts += [f"<h2>{name}: median / 99th percentile</h2>", _table(kinds, rows(figures, num_clients))]
    parts.append("<h2>Kinds of calls</h2><dl>")
    parts += [f"<dt>{escape(kind)}</dt><dd>{_with_code(MEANINGS[kind])}</dd>" for kind in kinds]
    parts.append("</dl><p>Times are of single calls of all clients; kinds took turns. A store and a Redis of its own")
    parts.append("were started for this, and ended with it.</p></body></html>\n")
    return "\n".join(parts)


def colours(num_series: int) -> str:
    """Return the CSS rules for the series of a chart, at most seven."""
    rules = (
        f".line.s{n} {{ stroke: var(--c{n}) }} .dot.s{n}, svg .name.s{n} {{ fill: var(--c{n}) }}"
        for n in range(num_series)
    )
    return "\n".join(rules)


def _chart(
    name: str,
    figures: Sequence[Figure],
    num_clients: int,
    value: Callable[[Figure], float],
    text: Callable[[float], str],
) -> str:
    sizes = sorted({each.num_bytes for each in figures})
    series: dict[str, list[tuple[float, float]]] = {}
    for kind in kinds_of(figures):
        found = [find(figures, kind, num_clients, num_bytes) for num_bytes in sizes]
        series[kind] = [(float(each.num_bytes), value(each)) for each in found if each is not None]
    return chart(name, series, x_ticks=sizes, x_text=lambda x: size_text(int(x)), y_text=text)


def _p50_us(figure: Figure) -> float:
    return figure.p50_us


def _mb_per_s(figure: Figure) -> float:
    return figure.calls_per_s * figure.num_bytes / 1e6


def _rate_text(mb_per_s: float) -> str:
    amount, unit = (mb_per_s / 1000, "GB/s") if mb_per_s >= 1000 else (mb_per_s, "MB/s")
    return f"{amount:,.{1 if amount < 10 else 0}f} {unit}"


def _table(kinds: Sequence[Kind], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("record", *kinds))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _with_code(text: str) -> str:
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))
