"""Runs a benchmark area: one command line, one clock, one view of memory, one table, one way to state a bound.

An area is a list of sections; a section is a function of how often everything is measured, and yields rows. What a
section needs of a peer that is not installed raises `Unavailable`: its further rows are left out, and a line says so.
An area that can measure nothing here, because what it measures is not installed, ends with status `NOT_HERE`.
Absolute times of a busy machine mean little, so every row is a ratio within one run. Memory is what the kernel's tables
in /proc say, so that no transport can claim to be zero-copy and be believed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from rich.console import Console
from rich.table import Table

from mmcached.wire.extras import how_to_install

Name = TypeVar("Name", bound=Hashable)
Made = TypeVar("Made")
Kind = Literal["reach", "try"]


NOT_HERE = 3
"""Exit status of an area that can measure nothing here: `make bench` goes on with the next one."""


class Unavailable(Exception):
    """What is to be measured, or a peer, is not installed here."""


def require_extras(**extras: str) -> None:
    """Look for packages without importing them.

    Args:
        extras: extra of mmcached that brings each package, by the name of its module.

    Raises:
        Unavailable: one is missing; names the extra to install.
    """
    for module, extra in extras.items():
        if find_spec(module) is None:
            raise Unavailable(f"{module} is not installed: {how_to_install(extra)}")


# ---- rows and bounds


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


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on a row's ratio: *reach* is a promise, *try* is what the physics or the best peer would allow."""

    kind: Kind
    name: str
    params: str
    peer: str
    ratio: float
    is_floor: bool = False

    def is_met(self, row: Row) -> bool:
        return row.ratio >= self.ratio if self.is_floor else row.ratio <= self.ratio

    def concerns(self, row: Row) -> bool:
        return (self.name, self.params, self.peer) == (row.name, row.params, row.peer)

    def __str__(self) -> str:
        ratio = f"{self.ratio:.2f}" if self.ratio >= 0.1 or self.ratio == 0 else f"{self.ratio:.2g}"
        return f"{self.kind} {'≥' if self.is_floor else '≤'} {ratio}"


def row(name: str, params: str, ours: float, unit: str, *, peer: str, peer_value: float) -> Row:
    return Row(name, params, ours, unit, peer, peer_value, ours / peer_value if peer_value else math.inf)


def against_first(name: str, unit: str, figures: Mapping[str, float]) -> list[Row]:
    """Return the rows of a family that grows: each figure, by its params, against the first one."""
    first, *others = figures
    return [row(name, params, figures[params], unit, peer=first, peer_value=figures[first]) for params in others]


STEPS = "with commit"
WITHOUT_STEPS = "ours, without steps"


def beside_peer(name: str, params: str, unit: str, figures: Mapping[str, float], peer: str) -> list[Row]:
    """Return the rows of `figures["ours"]` and, if it is there, `figures[STEPS]`: against the peer, if that is there
    (it has no steps, so its figure is the same in both rows), and what steps add to ours.
    """
    names = {"ours": name, STEPS: f"{name}, {STEPS}"}
    rows = [
        row(names[mine], params, figures[mine], unit, peer=peer, peer_value=figures[peer])
        for mine in names
        if {mine, peer} <= figures.keys()
    ]
    if STEPS in figures:
        rows.append(row(names[STEPS], params, figures[STEPS], unit, peer=WITHOUT_STEPS, peer_value=figures["ours"]))
    return rows


# ---- the clock

Sampler = Callable[[], float]
"""Prepares untimed, runs, and returns the time per unit of what it has run."""
Call = Callable[[], object]


def cpu_ns(run: Call) -> int:
    """Return the CPU time of a call in this thread; what the call returns lives until the clock has been read.

    A busy neighbour takes the processor away, but its time is not ours.
    """
    started = time.thread_time_ns()
    result = run()
    taken = time.thread_time_ns() - started
    del result
    return taken


def wall_us(run: Call, num_calls: int = 1) -> float:
    """Return the time from the first of `num_calls` calls to the end of the last, per call."""
    started = time.perf_counter_ns()
    for _ in range(num_calls):
        run()
    return (time.perf_counter_ns() - started) / num_calls / 1000


def compare(samplers: Mapping[Name, Sampler], num_rounds: int, *, num_unmeasured: int = 1) -> dict[Name, float]:
    """Return each sampler's median over interleaved rounds, each of which begins with another one.

    What lives already is no matter for the garbage collector meanwhile, as in an engine that has started up; what a
    sampler makes is.

    Args:
        num_unmeasured: rounds before those that count.
    """
    samples: dict[Name, list[float]] = defaultdict(list)
    names = list(samplers)
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        for number in range(num_rounds + num_unmeasured):
            for shift in range(len(names)):
                name = names[(number + shift) % len(names)]
                value = samplers[name]()
                if number >= num_unmeasured:
                    samples[name].append(value)
    finally:
        if not was_frozen:
            gc.unfreeze()
    return {name: statistics.median(samples[name]) for name in names}


def calls_row(name: str, params: str, ours: Call, *, peer: str, peer_call: Call, calls: int, repeats: int) -> Row:
    """Return the wall time of one short call, from the median of `repeats` batches of `calls` each.

    Either may take items from an iterator of its own, if it does not end before `calls * (repeats + 1)`.
    """
    batches = {"ours": lambda: wall_us(ours, calls), peer: lambda: wall_us(peer_call, calls)}
    figures = compare(batches, repeats)
    return row(name, params, figures["ours"], "us", peer=peer, peer_value=figures[peer])


# ---- memory


def private_bytes(address: int, nbytes: int) -> int:
    """Return how many of the bytes at an address lie in mappings that no other process can share."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, permissions, *_ = line.split(maxsplit=2)
        begin, end = (int(bound, 16) for bound in bounds.split("-"))
        if permissions.endswith("p"):
            total += max(0, min(end, address + nbytes) - max(begin, address))
    return total


def anonymous_bytes() -> int:
    """Return the size of this process's resident private memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


# ---- the command line

Section = Callable[[int], Iterable[Row]]


def begin_with(variables: Mapping[str, str]) -> None:
    """Start this program anew with variables at which its libraries look as they are loaded; those set already stay."""
    if not variables.keys() <= os.environ.keys():
        os.execve(sys.executable, sys.orig_argv, {**variables, **os.environ})


def main(
    title: str,
    names: Iterable[str],
    open_sections: Callable[[contextlib.ExitStack], Mapping[str, Section]],
    *,
    rounds: tuple[int, int],
    bounds: Sequence[Bound] = (),
    options: argparse.ArgumentParser | None = None,
) -> None:
    """Measure what the command line asks for; print the rows and, without `--json`, how they stand to the bounds.

    Args:
        names: of all sections, in order.
        open_sections: returns them by name; asked once the command line has been accepted. What it opens is closed
            when all is measured.
        rounds: usually, and with `--quick`.
        options: of the area's own, which it has read.
    """
    usual, quick = rounds
    sections = list(names)
    parser = argparse.ArgumentParser(description=title, parents=[] if options is None else [options])
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of a table")
    parser.add_argument("--quick", action="store_true", help=f"{quick} rounds instead of {usual}")
    parser.add_argument(
        "--only", nargs="+", choices=sections, default=sections, metavar="SECTION", help=f"of {', '.join(sections)}"
    )
    arguments = parser.parse_args()
    rows: list[Row] = []
    with contextlib.ExitStack() as undo:
        try:
            opened = open_sections(undo)
        except Unavailable as error:
            _end_without_rows(title, str(error))
        left_out: list[Unavailable] = []
        for name in arguments.only:
            started = time.monotonic()
            rows += _rows_of(name, opened[name], quick if arguments.quick else usual, left_out)
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    if left_out and not rows:
        _end_without_rows(title, str(left_out[0]))
    print_rows(title, rows, as_json=arguments.json)
    if not arguments.json:
        print_bounds(rows, bounds)


def _end_without_rows(title: str, reason: str) -> NoReturn:
    print(f"{title}: nothing can be measured here: {reason}", file=sys.stderr)
    sys.exit(NOT_HERE)


def _rows_of(name: str, section: Section, num_rounds: int, left_out: list[Unavailable]) -> Iterator[Row]:
    try:
        yield from section(num_rounds)
    except Unavailable as error:
        left_out.append(error)
        tell_once(f"{name}: rows are left out: {error}")


def installed(open_peer: Callable[[], Made]) -> Made | None:
    """Return a peer; None, and say so, if it is not installed."""
    try:
        return open_peer()
    except Unavailable as error:
        tell_once(f"rows are left out: {error}")
        return None


@cache
def tell_once(text: str) -> None:
    """Print a line to the error stream, unless it was printed before."""
    print(text, file=sys.stderr)


def print_rows(title: str, rows: Sequence[Row], *, as_json: bool) -> None:
    """Print the table or, `as_json`, the rows."""
    if as_json:
        print(json.dumps([asdict(each) for each in rows], indent=1))
        return
    figures = [
        (
            each.name,
            each.params,
            f"{each.ours:,.1f}",
            each.unit,
            each.peer,
            f"{each.peer_value:,.1f}",
            f"{each.ratio:.2f}",
        )
        for each in rows
    ]
    print_table(title, ("name", "params", "ours>", "unit", "peer", "its value>", "ratio>"), figures)


def print_bounds(rows: Sequence[Row], bounds: Sequence[Bound]) -> None:
    """Print each bound that a row of this run is about; nothing if there is none."""
    found = []
    for bound in bounds:
        for each in filter(bound.concerns, rows):
            verdict = "met" if bound.is_met(each) else "MISSED" if bound.kind == "reach" else "not yet"
            found.append((f"{each.name}, {each.params}", each.peer, f"{each.ratio:.3f}", str(bound), verdict))
    if found:
        print_table("bounds", ("row", "against", "ratio>", "bound>", ""), found)


def print_table(title: str, columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Print a table; a column whose name ends in `>` is set to the right."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column.removesuffix(">"), justify="right" if column.endswith(">") else "left")
    for line in lines:
        table.add_row(*line)
    Console(width=120).print(table)
