"""The bounds that the ring's figures are held against, and which of them a run has met.

*reach* is a promise, *try* is what the physics or the best peer would allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def _for_readers(
    kind: Kind, name: str, size: str, peer: str, ratios: tuple[float, float, float], *, is_floor: bool = False
) -> Iterator[Bound]:
    for readers, ratio in zip(("1 reader", "2 readers", "4 readers"), ratios, strict=True):
        yield Bound(kind, name, f"{size}, {readers}", peer, ratio, is_floor)


BOUNDS = [
    *_for_readers("reach", "put", "4.7 MiB", "vLLM", (0.60, 0.55, 0.40)),
    *_for_readers("try", "put", "4.7 MiB", "iceoryx2", (1.25, 1.25, 1.25)),
    *_for_readers("reach", "put", "64 MiB", "vLLM", (0.22, 0.18, 0.12)),
    *_for_readers("try", "put", "64 MiB", "memcpy", (1.1, 1.1, 1.1)),
    *_for_readers("reach", "put", "64 KiB", "vLLM", (0.50, 0.55, 0.50)),
    *_for_readers("try", "put", "64 KiB", "vLLM", (0.40, 0.40, 0.40)),
    *_for_readers("reach", "hit", "4.7 MiB", "vLLM", (0.30, 0.35, 0.25)),
    *_for_readers("reach", "hit", "64 MiB", "ours, 64 KiB", (1.4, 1.4, 1.4)),
    *_for_readers("try", "hit", "4.7 MiB", "hand-off", (1.0, 1.0, 1.0)),
    Bound("reach", "copied for a hit", "64 MiB, 4 readers", "vLLM", 0),
    *_for_readers("reach", "hit", "64 MiB", "vLLM", (0.01, 0.01, 0.01)),
    *_for_readers("reach", "throughput", "4.7 MiB", "vLLM", (1.2, 2.0, 2.8), is_floor=True),
    *_for_readers("try", "throughput", "4.7 MiB", "memcpy", (0.85, 0.85, 0.85), is_floor=True),
    *_for_readers("reach", "first lap", "4.7 MiB", "vLLM", (0.15, 0.15, 0.15)),
    *_for_readers("reach", "put, private copies", "4.7 MiB", "vLLM", (1.0, 1.0, 1.0)),
    Bound("reach", "put, ring or inline", "4 KiB, 2 readers", "inline", 1.05),
]


def print_reach(rows: Iterable[Row]) -> None:
    """Print each bound that a row of this run is about."""
    table = Table(title="bounds", title_justify="left")
    for column in ("row", "against", "ratio", "bound", ""):
        table.add_column(column, justify="right" if column in ("ratio", "bound") else "left")
    found = list(rows)
    for bound in BOUNDS:
        for row in filter(bound.concerns, found):
            limit = f"{bound.kind} {'≥' if bound.is_floor else '≤'} {bound.ratio:.2f}"
            verdict = "met" if bound.is_met(row) else "MISSED" if bound.kind == "reach" else "not yet"
            table.add_row(f"{row.name}, {row.params}", row.peer, f"{row.ratio:.3f}", limit, verdict)
    if table.row_count:
        Console(width=120).print(table)
