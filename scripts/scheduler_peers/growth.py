"""Ours alone: the cost of a cycle for encoder caches of 100 to 100,000 entries, held against the smallest."""

from __future__ import annotations

from benchmark import Row, row
from kv_peers.timing import compare
from scheduler_peers.encoder import PATHS, UNIT
from scheduler_peers.sides import Ours

NUM_ENTRIES = (100, 1_000, 10_000, 100_000)


def growth(num_rounds: int) -> list[Row]:
    rows = []
    for path in PATHS.values():
        figures = compare({number: path.sampler(Ours(), number) for number in NUM_ENTRIES}, num_rounds)
        smallest, *larger = NUM_ENTRIES
        for number in larger:
            ours, peer = figures[number] / 1_000, figures[smallest] / 1_000
            rows.append(
                row(f"cost of {path.name}", _params(number), ours, UNIT, peer=_params(smallest), peer_value=peer)
            )
    return rows


def _params(num_entries: int) -> str:
    return f"{num_entries:,} entries"
