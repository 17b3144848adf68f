"""What the benchmark scripts share: one row per figure, one table, `--json`, and timing that can be trusted a little.

A figure is a ratio against a peer or a physical limit measured in the same run; absolute times of a busy machine mean
little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `ratio` is ours / peer_value: below 1 is better where the unit is a time."""

    name: str
    params: str
    ours: float
    unit: str
    peer: str
    peer_value: float
    ratio: float


def row(name: str, params: str, ours: float, unit: str, *, peer: str, peer_value: float) -> Row:
    return Row(name, params, ours, unit, peer, peer_value, ours / peer_value)


def median_pair_us(ours: Callable[[], object], peer: Callable[[], object], *, repeats: int) -> tuple[float, float]:
    """Run both in turn and return their median times in microseconds; one unmeasured round first."""
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(repeats + 1):
        for which, run in enumerate((ours, peer)):
            started = time.perf_counter_ns()
            run()
            if index:
                times[which].append((time.perf_counter_ns() - started) / 1000)
    return statistics.median(times[0]), statistics.median(times[1])


def report(title: str, measure: Callable[[], Sequence[Row]]) -> None:
    """Parse the command line, measure, print the table or, with `--json`, the rows."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of a table")
    as_json = parser.parse_args().json
    print_rows(title, measure(), as_json=as_json)


def print_rows(title: str, rows: Sequence[Row], *, as_json: bool) -> None:
    """Print the table or, `as_json`, the rows."""
    if as_json:
        print(json.dumps([asdict(each) for each in rows], indent=1))
        return
    table = Table(title=title, title_justify="left")
    for column in ("name", "params", "ours", "unit", "peer", "its value", "ratio"):
        table.add_column(column, justify="right" if column in ("ours", "its value", "ratio") else "left")
    for each in rows:
        figures = (f"{each.ours:,.1f}", each.unit, each.peer, f"{each.peer_value:,.1f}", f"{each.ratio:.2f}")
        table.add_row(each.name, each.params, *figures)
    Console(width=120).print(table)
