"""The figures as tables of 80 columns, with a row for each kind of call."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from mmcached.cli.bench.figures import CallFigure, CallKind, find, size_text, time_text


def kinds_of(figures: Sequence[CallFigure]) -> list[CallKind]:
    measured = {each.kind for each in figures}
    return [kind for kind in CallKind if kind in measured]


def clients_text(num_clients: int) -> str:
    return f"{num_clients} client{'s' * (num_clients > 1)}"


def tables(figures: Sequence[CallFigure]) -> list[Table]:
    """Return a table for each number of clients: for each kind a row of medians, and one of 99th percentiles."""
    made = []
    sizes = sorted({each.num_bytes for each in figures})
    for num_clients in sorted({each.num_clients for each in figures}):
        table = Table(box=None, pad_edge=False)
        table.add_column(f"{clients_text(num_clients)}, median")
        for num_bytes in sizes:
            table.add_column(size_text(num_bytes), justify="right")
        for kind in kinds_of(figures):
            found = [find(figures, kind, num_clients, num_bytes) for num_bytes in sizes]
            table.add_row(kind, *("-" if each is None else time_text(each.p50_us) for each in found))
            table.add_row("  99th percentile", *("-" if each is None else time_text(each.p99_us) for each in found))
        made.append(table)
    return made


def verdict(figures: Sequence[CallFigure]) -> str:
    """Return a sentence that compares a hit of the largest record with a copy and, if it was measured, Redis.

    It is about the smallest number of clients.
    """
    num_clients = min(each.num_clients for each in figures)
    num_bytes = max(each.num_bytes for each in figures)
    times = {
        kind: find(figures, kind, num_clients, num_bytes)
        for kind in (CallKind.VIEW, CallKind.MEMCPY, CallKind.REDIS_GET)
    }
    hit = times.pop(CallKind.VIEW)
    if hit is None:
        return ""
    peers = [f"{hit.p50_us / each.p50_us:.2g} × {kind}" for kind, each in times.items() if each is not None]
    return f"a hit of {size_text(num_bytes)} in place: {time_text(hit.p50_us)}, {', '.join(peers)}"
