"""Prints a `ServiceStatus` as tables: whether it works, one row per process, one per cache."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcached.cli.terminal_text import shown
from mmcached.cli.watch.latencies import LatencyStatus, in_words
from mmcached.cli.watch.service_status import RoleStatus, ServiceStatus
from mmcached.cli.watch.shown_figures import (
    CACHES,
    WORK,
    ModalityLine,
    caches_of,
    clients_in_words,
    kept_in_words,
    modalities_of,
    note_of,
    other_clients,
    queries_and_hits,
    saved_in_words,
    time_in_words,
)
from mmcached.wire.figures import tables
from mmcached.wire.stats import ServiceStats


def show_status(status: ServiceStatus, console: Console) -> None:
    word = ("ready", "green") if status.ready else ("not ready", "red")
    uptime = "" if status.uptime_s is None else f", up {time_in_words(status.uptime_s)}"
    console.print(Text.assemble(f"mmcached {status.version} in {shown(str(status.run_dir))}: ", word, uptime))
    console.print(shown(status.reason), markup=False, highlight=False)
    if status.http:
        console.print(f"health and metrics: {status.http}", markup=False, highlight=False)
    if note := note_of(status.stats):
        console.print(note, style="red", markup=False, highlight=False)
    console.print(_roles(status.roles))
    console.print(_caches(status.stats))
    if lines := modalities_of(status.stats):
        console.print(_modalities(lines))
    if status.latency:
        console.print(_latencies(status.latency))
    stats = status.stats
    clients = clients_in_words(other_clients(status), status.own_clients)
    console.print(
        f"requests: {stats.requests_open} open, {stats.requests_done} done, {stats.requests_failed} failed; "
        f"clients: {clients}; resends: {stats.resends}; desyncs: {stats.desyncs}",
        highlight=False,
    )
    if saved := saved_in_words(stats):
        console.print(saved, highlight=False)
    for table in tables(type(stats)):
        by_key: dict[str, msgspec.Struct] = getattr(stats, table.field)
        for key, record in sorted(by_key.items()) if len(by_key) > 1 else ():
            counts = ", ".join(f"{value:,} {name}" for name, value in msgspec.structs.asdict(record).items())
            console.print(shown(f"{table.by.title or table.by.label} {key}: {counts}"), markup=False, highlight=False)
    if (ring := stats.store.ring).data_bytes:
        used = f"{ring.used_bytes:,} of {ring.data_bytes:,} B, {ring.chunks:,} records, {ring.leases:,} leases"
        console.print(f"store: {used}, {ring.evictions:,} evictions", highlight=False)
    if kept := kept_in_words(stats):
        console.print(f"  {kept}", highlight=False)
    if (items := stats.items).capacity_bytes:
        used = f"{items.used_bytes:,} of {items.capacity_bytes:,} B, {items.entries:,} items"
        console.print(f"  of these: {used}, {items.evictions:,} evictions", highlight=False)


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
    queries, hits = queries_and_hits(stats)
    for cache in caches_of(stats):
        rate = f"{hits[cache] / queries[cache]:.0%}" if queries[cache] else ""
        table.add_row(CACHES[cache], f"{queries[cache]:,}", f"{hits[cache]:,}", rate)
    return table


def _modalities(lines: list[ModalityLine]) -> Table:
    table = Table("items", "queries", "hits", "processed", "encoded", "loaded", "embeddings computed")
    for line in lines:
        numbers = (line.queries, line.hits, line.processed, line.encoded, line.loaded, line.embeds_encoded)
        table.add_row(line.name, *(f"{number:,}" for number in numbers))
    return table


def _latencies(latency: dict[str, LatencyStatus]) -> Table:
    table = Table("latency", "measured", "p50", "p99")
    for name, found in latency.items():
        table.add_row(WORK[name], f"{found.num:,}", in_words(found.p50_s), in_words(found.p99_s))
    return table
