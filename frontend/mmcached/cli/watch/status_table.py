"""A `ServiceStatus` for people: a line that says whether it works, one row per process, one per cache."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from mmcached.cli.watch.service_status import RoleStatus, ServiceStatus
from mmcached.wire.stats import ServiceStats


def show_status(status: ServiceStatus, console: Console) -> None:
    """Print all of it."""
    word = "[green]ready[/]" if status.ready else "[red]not ready[/]"
    console.print(f"mmcached {status.version} in {status.run_dir}: {word}", highlight=False)
    console.print(status.reason, markup=False, highlight=False)
    if status.http:
        console.print(f"health and metrics: {status.http}", markup=False, highlight=False)
    console.print(_roles(status.roles))
    console.print(_caches(status.stats))
    stats = status.stats
    console.print(
        f"requests: {stats.requests_open} open, {stats.requests_done} done, {stats.requests_failed} failed; "
        f"clients: {stats.clients}; resends: {stats.resends}; desyncs: {stats.desyncs}",
        highlight=False,
    )
    for name, ring in (("ring", stats.ring), ("store", stats.store.ring)):
        used = f"{ring.used_bytes:,} of {ring.data_bytes:,} B, {ring.chunks:,} items, {ring.leases:,} leases"
        console.print(f"{name}: {used}, {ring.evictions:,} evictions", highlight=False)


def _roles(roles: list[RoleStatus]) -> Table:
    table = Table("role", "pid", "state", "restarts", "heartbeat", "up since")
    for role in roles:
        age = "" if role.heartbeat_age_s is None else f"{role.heartbeat_age_s:.1f} s ago"
        style = "red" if role.complaint else None
        table.add_row(
            role.name, str(role.pid or ""), role.state, str(role.restarts), age, role.up_since or "", style=style
        )
    return table


def _caches(stats: ServiceStats) -> Table:
    table = Table("cache", "queries", "hits", "hit rate")
    for name, queries, hits in _queries_and_hits(stats):
        table.add_row(name, f"{queries:,}", f"{hits:,}", f"{hits / queries:.0%}" if queries else "")
    return table


def _queries_and_hits(stats: ServiceStats) -> Iterator[tuple[str, int, int]]:
    engines = stats.engines
    workers = [worker for engine in engines for worker in engine.workers]
    yield "processor (items)", stats.processor.queries, stats.processor.hits
    yield "store (records)", stats.store.queries, stats.store.hits
    yield "encoder (items)", sum(e.encoder.queries for e in engines), sum(e.encoder.hits for e in engines)
    yield "KV prefix (tokens)", sum(e.kv.queries for e in engines), sum(e.kv.hits for e in engines)
    yield "tensor prefix (rows)", sum(w.prefix_row_queries for w in workers), sum(w.prefix_row_hits for w in workers)
