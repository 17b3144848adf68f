"""The command line of a benchmark that consists of sections, each a function of how often everything is measured."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from benchmark import Row, print_rows
from bounds import Bound, print_bounds

Section = Callable[[int], list[Row]]


def run_sections(
    title: str,
    names: Sequence[str],
    make_sections: Callable[[], Mapping[str, Section]],
    bounds: Sequence[Bound],
    *,
    rounds: tuple[int, int],
) -> None:
    """Measure what the command line asks for; print the rows and, without `--json`, how they stand to the bounds.

    Args:
        names: of all sections, in order.
        make_sections: returns them by name; asked once the command line has been accepted.
        rounds: usually, and with `--quick`.
    """
    usual, quick = rounds
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of a table")
    parser.add_argument("--quick", action="store_true", help=f"{quick} rounds instead of {usual}")
    parser.add_argument("--only", nargs="+", choices=names, default=list(names), help="some sections")
    arguments = parser.parse_args()
    sections = make_sections()
    rows: list[Row] = []
    for name in arguments.only:
        started = time.monotonic()
        rows += sections[name](quick if arguments.quick else usual)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    print_rows(title, rows, as_json=arguments.json)
    if not arguments.json:
        print_bounds(rows, bounds)
