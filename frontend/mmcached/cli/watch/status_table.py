"""Prints a `ServiceStatus` for people: a line that says whether it works, one row per process, one per cache."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from mmcached.cli.watch.latencies import LatencyStatus, in_words
from mmcached.cli.watch.service_status import RoleStatus, ServiceStatus
from mmcached.wire.figures import samples
from mmcached.wire.stats import SecondLevelStats, ServiceStats

CACHES = {
    "processor": "processor (items)",
    "store": "store (records)",
    "second_level": "second level (records)",
    "encoder": "encoder (items)",
    "kv_prefix": "KV prefix (tokens)",
    "tensor_prefix": "tensor prefix (rows)",
}
"""By the label of the metrics page: what people call it, and what its queries ask for."""
WORK = {
    "hit": "hit (one in 64)",
    "put": "put",
    "queue": "request, until scheduled",
    "step": "step",
    "encode": "encoding of a step",
    "l2_get": "second level, fetch",
    "l2_put": "second level, save",
    "l2_claim": "second level, claim",
}
"""By the name in `ServiceStatus.latency`: what people call it."""


def show_status(status: ServiceStatus, console: Console) -> None:
    """Print all of it."""
    word = "[green]ready[/]" if status.ready else "[red]not ready[/]"
    console.print(f"mmcached {status.version} in {status.run_dir}: {word}", highlight=False)
    console.print(status.reason, markup=False, highlight=False)
    if status.http:
        console.print(f"health and metrics: {status.http}", markup=False, highlight=False)
    if note := note_of(status.stats):
        console.print(note, style="red", markup=False, highlight=False)
    console.print(_roles(status.roles))
    console.print(_caches(status.stats))
    if status.latency:
        console.print(_latencies(status.latency))
    stats = status.stats
    console.print(
        f"requests: {stats.requests_open} open, {stats.requests_done} done, {stats.requests_failed} failed; "
        f"clients: {stats.clients}; resends: {stats.resends}; desyncs: {stats.desyncs}",
        highlight=False,
    )
    if len(stats.by_client) > 1:
        for name, client in sorted(stats.by_client.items()):
            console.print(
                f"store, {name}: {client.hits:,} hits, {client.misses:,} misses, {client.puts:,} puts", highlight=False
            )
    for name, ring in (("ring", stats.ring), ("store", stats.store.ring)):
        if not ring.data_bytes:
            continue
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
    queries, hits = queries_and_hits(stats)
    for cache in caches_of(stats):
        rate = f"{hits[cache] / queries[cache]:.0%}" if queries[cache] else ""
        table.add_row(CACHES[cache], f"{queries[cache]:,}", f"{hits[cache]:,}", rate)
    return table


def _latencies(latency: dict[str, LatencyStatus]) -> Table:
    table = Table("latency", "measured", "p50", "p99")
    for name, found in latency.items():
        table.add_row(WORK[name], f"{found.num:,}", in_words(found.p50_s), in_words(found.p99_s))
    return table


def caches_of(stats: ServiceStats) -> list[str]:
    """Return the names of the caches to show: a second level, and what engines have, only where there is one."""
    queries, _ = queries_and_hits(stats)
    has = {"store": True, "second_level": stats.second_level != SecondLevelStats()}
    return [cache for cache in CACHES if has.get(cache, bool(stats.engines or queries[cache]))]


def note_of(stats: ServiceStats) -> str:
    """Return what is wrong though the service is ready; empty if nothing is."""
    return (
        "the second level has failed too often, and is not asked for a while" if stats.second_level.circuit_open else ""
    )


def queries_and_hits(stats: ServiceStats) -> tuple[Counter[str], Counter[str]]:
    """Return how often each cache was asked and how often it had what was asked for, all roles together."""
    workers = [worker for engine in stats.engines for worker in engine.workers]
    sums: dict[str, Counter[str]] = {"cache_queries": Counter(), "cache_hits": Counter()}
    for record in (stats, *stats.engines, *workers):
        for metric, _, value in samples(record):
            if metric.name in sums:
                sums[metric.name][metric.labels["cache"]] += value
    return sums["cache_queries"], sums["cache_hits"]
