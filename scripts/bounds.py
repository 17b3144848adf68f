"""The bounds that a benchmark's figures are held against, and which of them a run has met.

*reach* is a promise, *try* is what the physics or the best peer would allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmark import Row

Kind = Literal["reach", "try"]


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on a row's ratio."""

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


def print_bounds(rows: Iterable[Row], bounds: Sequence[Bound]) -> None:
    """Print each bound that a row of this run is about."""
    table = Table(title="bounds", title_justify="left")
    for column in ("row", "against", "ratio", "bound", ""):
        table.add_column(column, justify="right" if column in ("ratio", "bound") else "left")
    found = list(rows)
    for bound in bounds:
        for row in filter(bound.concerns, found):
            verdict = "met" if bound.is_met(row) else "MISSED" if bound.kind == "reach" else "not yet"
            table.add_row(f"{row.name}, {row.params}", row.peer, f"{row.ratio:.3f}", str(bound), verdict)
    if table.row_count:
        Console(width=120).print(table)
