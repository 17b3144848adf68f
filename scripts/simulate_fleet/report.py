"""Writes what was found: a table for the page, rows for programs, and a page with charts that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from mmcached.cli.bench.page import STYLE, colours
from mmcached.cli.bench.plot import Point, chart
from scripts.simulate_fleet.cases import GIB_A_HOST, SECOND_GIB, Case
from scripts.simulate_fleet.levels import Outcome

COLUMNS = (
    "fleet",
    "first level finds",
    "second level finds",
    "still encoded",
    "encoder time that the second level saves, for each host",
    "the second level carries",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One fleet with one second level; shares in percent of what was asked for, times per hour.

    Attributes:
        saved_first_s: seconds that each host's encoder need not run, thanks to the first level.
        saved_second_s: and thanks to the second.
        saved_fleet_s: thanks to the second, in the whole fleet.
        bytes_per_s: what the second level carries.
    """

    varied: str
    name: str
    hosts: int
    images_per_s: float
    exponent: float
    affinity: float
    own: float
    first_gib: float
    second_gib: float
    seed: int
    asked: int
    first: float
    second: float
    encoded_without: float
    encoded: float
    saved_first_s: float
    saved_second_s: float
    saved_fleet_s: float
    bytes_per_s: float


def rows_of(case: Case, outcomes: Iterable[Outcome], seed: int, encode_s: float) -> Iterator[Row]:
    load = case.load
    for each in outcomes:
        saved = [each.encoder_s_an_hour(count, encode_s) for count in (each.first, each.second)]
        yield Row(
            varied=case.varied,
            name=case.name + (f", {each.second_gib:,.0f} GiB behind" if len(case.second_gib) > 1 else ""),
            hosts=load.hosts,
            images_per_s=load.images_per_s,
            exponent=load.exponent,
            affinity=load.affinity,
            own=load.own,
            first_gib=case.first_gib,
            second_gib=each.second_gib,
            seed=seed,
            asked=each.asked,
            first=each.share(each.first),
            second=each.share(each.second),
            encoded_without=100 - each.share(each.first),
            encoded=each.share(each.encoded),
            saved_first_s=saved[0] / load.hosts,
            saved_second_s=saved[1] / load.hosts,
            saved_fleet_s=saved[1],
            bytes_per_s=each.bytes_per_s,
        )


def table_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of the page's table."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for row in rows:
        cells = (
            row.name,
            f"{row.first:.1f} %",
            f"{row.second:.1f} %",
            f"{row.encoded:.1f} %",
            f"{row.saved_second_s:,.0f} s/h",
            f"{row.bytes_per_s / 1e9:,.2f} GB/s",
        )
        yield f"| {' | '.join(cells)} |"


def rule_lines(pairs: Iterable[tuple[float, Outcome, Outcome]]) -> Iterator[str]:
    """Yield the lines of the table that compares the first level's rules."""
    yield "| first level of each of 10 hosts | LRU: first level finds, second level finds | the store's rule |"
    yield "|---|---|---|"
    for gib, *by_rule in pairs:
        cells = (f"{each.share(each.first):.1f} %, {each.share(each.second):.1f} %" for each in by_rule)
        yield f"| {gib:.0f} GiB | {' | '.join(cells)} |"


def page(rows: Sequence[Row], made: str) -> str:
    """Return an HTML page with three charts and the table.

    Args:
        made: with what, in a line.
    """
    hosts = [row for row in rows if row.varied == "hosts"]
    fixed = [row for row in hosts if row.second_gib == SECOND_GIB]
    growing = [row for row in hosts if row.second_gib == row.hosts * GIB_A_HOST]
    strays = sorted((row for row in rows if row.varied == "affinity"), key=lambda row: -row.affinity)
    fixed_name, growing_name, none = f"{SECOND_GIB:.0f} GiB", f"{GIB_A_HOST} GiB a host", "no second level"
    by_hosts = {
        none: [(float(row.hosts), row.encoded_without) for row in fixed],
        fixed_name: [(float(row.hosts), row.encoded) for row in fixed],
        growing_name: [(float(row.hosts), row.encoded) for row in growing],
    }
    carried = {"any size": [(float(row.hosts), row.bytes_per_s / 1e9) for row in fixed]}
    by_strays = {
        none: [(round(100 - 100 * row.affinity, 6), row.encoded_without) for row in strays],
        fixed_name: [(round(100 - 100 * row.affinity, 6), row.encoded) for row in strays],
    }
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>What a second level is worth</title>',
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}{colours(3)}</style></head><body>',
        f'<h1>What a second level is worth</h1><p class="soft">{escape(made)}</p>',
        *_figure("Encoded of 100 pictures, by hosts", by_hosts, "{:,.0f}", "{:,.0f} %"),
        *_figure("What the second level carries, by hosts", carried, "{:,.0f}", "{:,g} GB/s"),
        *_figure("Encoded of 100 pictures, by later turns that go anywhere", by_strays, "{:g} %", "{:,.0f} %"),
        f'<h2>All figures</h2><div class="wide">{_table(table_lines(rows))}</div></body></html>',
    ]
    return "\n".join(parts)


def _figure(title: str, series: dict[str, list[Point]], x_form: str, y_form: str) -> tuple[str, str]:
    ticks = sorted({x for line in series.values() for x, _ in line})
    drawn = chart(title, series, x_ticks=ticks, x_text=x_form.format, y_text=y_form.format)
    return f"<h2>{escape(title)}</h2>", drawn


def _table(lines: Iterable[str]) -> str:
    head, _, *body = ([escape(cell.strip()) for cell in line.strip("| ").split("|")] for line in lines)
    cells = [f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in body]
    return f"<table><tr><th>{'</th><th>'.join(head)}</th></tr>{''.join(cells)}</table>"
