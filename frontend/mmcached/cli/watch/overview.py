"""Computes one screen of a service: processes, hit rates, memory, leases, latencies, engines.

    ServiceStatus + /proc ── Look ──┐
    a few seconds before  ─ Sample ─┴─► Overview ─► `mmcached top`, the web page

A `Look` has totals; with an earlier `Sample` there are also rates and recent latencies. Sends no message to a role, so
it works while the data path does not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from mmcached.cli.admin.records import Reader
from mmcached.cli.watch.latencies import LatencyStatus, histograms_of, latencies_of
from mmcached.cli.watch.service_status import RoleStatus, ServiceStatus
from mmcached.cli.watch.shown_figures import (
    WORK,
    ModalityLine,
    caches_of,
    kept_in_words,
    modalities_of,
    note_of,
    other_clients,
    queries_and_hits,
    saved_in_words,
)
from mmcached.wire.figures import samples
from mmcached.wire.slow_log import SlowCall, SlowLog
from mmcached.wire.stats import RingStats, ServiceStats

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """CPU time and memory of one process.

    Attributes:
        cpu_s: CPU time of all its threads, since its start.
        memory_bytes: Its anonymous memory, without shared memory, files and code.
    """

    cpu_s: float
    memory_bytes: int


class Sample(NamedTuple):
    """The figures of a service at one moment, and its processes' usage by pid."""

    at_s: float
    stats: ServiceStats
    usage: Mapping[int, Usage]


class Look(NamedTuple):
    at_s: float
    status: ServiceStatus
    usage: Mapping[int, Usage]

    @property
    def sample(self) -> Sample:
        return Sample(self.at_s, self.status.stats, self.usage)


class RoleLine(msgspec.Struct, frozen=True, kw_only=True):
    """One process; `cpu` in hundredths of a core, None: not known yet."""

    name: str
    pid: int | None
    state: str
    restarts: int
    complaint: str
    cpu: float | None
    memory_bytes: int | None


class CacheLine(msgspec.Struct, frozen=True, kw_only=True):
    """One cache; `rate` in total and `rate_now` are hits divided by queries, None without queries."""

    name: str
    queries: int
    hits: int
    rate: float | None
    rate_now: float | None
    hits_per_s: float | None


class RingLine(msgspec.Struct, frozen=True, kw_only=True):
    """One ring of shared memory; leased bytes cannot be evicted."""

    name: str
    used_bytes: int
    capacity_bytes: int
    leased_bytes: int
    entries: int
    leases: int
    evictions: int
    evictions_per_s: float | None


class NurseriesLine(msgspec.Struct, frozen=True, kw_only=True):
    """All nurseries of the store: `puts` were published where their clients had laid them, `promotions` were copied
    from there into the ring, `refusals` travelled inline for want of room.
    """

    num: int
    used_bytes: int
    budget_bytes: int
    puts: int
    puts_per_s: float | None
    promotions: int
    refusals: int


class LatencyLine(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of one kind of work; `now` covers the time between two looks, None without measurements."""

    name: str
    total: LatencyStatus
    now: LatencyStatus | None


class EngineLine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine; KV in blocks, `leases` of items and outputs that its requests hold."""

    index: int
    running: int
    waiting: int
    finished: int
    steps_per_s: float | None
    kv_used: int
    kv_total: int
    leases: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """One frame.

    Attributes:
        interval_s: Length of the interval for rates and "now", None after a single look.
        note: A problem of a service that is ready.
        clients: Clients without `own_clients`, the service's engines and workers.
        history: The store's hits per second, the oldest first.
        nurseries: None for a store without nurseries.
        saved: The seconds that hits of the store have saved, as text; "" if no cost is known.
        kept: Pinned records, and the state of the warm-up, as text; "" without both.
    """

    run_dir: str
    version: str
    ready: bool
    reason: str
    note: str
    draining: bool
    interval_s: float | None
    requests_open: int
    requests_done: int
    requests_failed: int
    clients: int
    own_clients: int
    uptime_s: float | None
    roles: list[RoleLine]
    caches: list[CacheLine]
    modalities: list[ModalityLine]
    rings: list[RingLine]
    nurseries: NurseriesLine | None
    readers: list[Reader]
    latencies: list[LatencyLine]
    engines: list[EngineLine]
    slow: list[SlowCall]
    history: list[float] = []
    saved: str = ""
    kept: str = ""


def look_closely(status: ServiceStatus, *, clock: Callable[[], float] = time.monotonic) -> Look:
    return Look(clock(), status, usage_by_pid(status.roles))


def usage_by_pid(roles: Sequence[RoleStatus]) -> dict[int, Usage]:
    pids = [role.pid for role in roles if role.pid is not None]
    return {pid: found for pid in pids if (found := usage_of(pid)) is not None}


def usage_of(pid: int, proc: Path = Path("/proc")) -> Usage | None:
    """Return a process's usage; None if it has ended, or cannot be read."""
    try:
        stat = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        lines = (proc / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    own_kib = next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)
    return Usage((int(stat[11]) + int(stat[12])) / _CLOCK_TICKS, 1024 * own_kib)


def overview_of(
    now: Look, before: Sample | None, readers: Sequence[Reader] = (), history: Sequence[float] = ()
) -> Overview:
    """Return one frame."""
    passed_s = None if before is None else now.at_s - before.at_s
    rate = _Rate(passed_s or None)
    status, stats = now.status, now.status.stats
    former = ServiceStats() if before is None else before.stats
    return Overview(
        run_dir=status.run_dir,
        version=status.version,
        ready=status.ready,
        reason=status.reason,
        note=note_of(stats),
        draining=status.draining,
        interval_s=passed_s,
        requests_open=stats.requests_open,
        requests_done=stats.requests_done,
        requests_failed=stats.requests_failed,
        clients=other_clients(status),
        own_clients=status.own_clients,
        uptime_s=status.uptime_s,
        roles=[_role(role, now, before) for role in status.roles],
        caches=_caches(stats, former, rate),
        modalities=modalities_of(stats),
        rings=[
            _ring(name, ring, then, rate)
            for name, ring, then in (("store", stats.store.ring, former.store.ring),)
            if ring.data_bytes
        ],
        nurseries=_nurseries(status, former, rate),
        readers=sorted((line for line in readers if line.leases), key=lambda line: -line.leases),
        latencies=_latencies(stats, None if before is None else former),
        engines=_engines(stats, former, rate),
        history=list(history),
        saved=saved_in_words(stats),
        kept=kept_in_words(stats),
        slow=list(SlowLog.of([*stats.slow_log.last, *(call for e in stats.engines for call in e.slow_log.last)]).last),
    )


class _Rate(NamedTuple):
    """The rate between two counts; None after a counter was reset."""

    passed_s: float | None

    def __call__(self, now: int, before: int) -> float | None:
        return None if self.passed_s is None or now < before else (now - before) / self.passed_s


def _role(role: RoleStatus, now: Look, before: Sample | None) -> RoleLine:
    usage = now.usage.get(role.pid or 0)
    former = None if before is None else before.usage.get(role.pid or 0)
    cpu = None
    if usage is not None and former is not None and before is not None and now.at_s > before.at_s:
        cpu = 100 * max(0.0, usage.cpu_s - former.cpu_s) / (now.at_s - before.at_s)
    return RoleLine(
        name=role.name,
        pid=role.pid,
        state=_state(role),
        restarts=role.restarts,
        complaint=role.complaint,
        cpu=cpu,
        memory_bytes=None if usage is None else usage.memory_bytes,
    )


def _state(role: RoleStatus) -> str:
    """Return a role's state, with the length of its silence if it runs without heartbeats."""
    if role.state == "running" and role.complaint and role.heartbeat_age_s is not None:
        return f"silent for {role.heartbeat_age_s:.0f} s"
    return role.state


def _caches(stats: ServiceStats, former: ServiceStats, rate: _Rate) -> list[CacheLine]:
    queries, hits = queries_and_hits(stats)
    former_queries, former_hits = queries_and_hits(former)
    lines = []
    for name in caches_of(stats):
        asked, found = queries[name] - former_queries[name], hits[name] - former_hits[name]
        lines.append(
            CacheLine(
                name=name,
                queries=queries[name],
                hits=hits[name],
                rate=hits[name] / queries[name] if queries[name] else None,
                rate_now=found / asked if rate.passed_s is not None and asked > 0 and found >= 0 else None,
                hits_per_s=rate(hits[name], former_hits[name]),
            )
        )
    return lines


def _ring(name: str, ring: RingStats, former: RingStats, rate: _Rate) -> RingLine:
    return RingLine(
        name=name,
        used_bytes=ring.used_bytes,
        capacity_bytes=ring.data_bytes,
        leased_bytes=ring.pinned_bytes,
        entries=ring.chunks,
        leases=ring.leases,
        evictions=ring.evictions,
        evictions_per_s=rate(ring.evictions, former.evictions),
    )


def _nurseries(status: ServiceStatus, former: ServiceStats, rate: _Rate) -> NurseriesLine | None:
    store = status.stats.store
    if not status.nursery_budget_bytes:
        return None
    return NurseriesLine(
        num=store.nurseries,
        used_bytes=store.nursery_bytes,
        budget_bytes=status.nursery_budget_bytes,
        puts=store.nursery_puts,
        puts_per_s=rate(store.nursery_puts, former.store.nursery_puts),
        promotions=store.promotions,
        refusals=store.nursery_refusals,
    )


def _latencies(stats: ServiceStats, former: ServiceStats | None) -> list[LatencyLine]:
    histograms = histograms_of(stats)
    before = {} if former is None else histograms_of(former)
    new = {name: histograms[name].since(then) for name, then in before.items() if name in histograms}
    total, now = latencies_of(histograms), latencies_of(new)
    return [LatencyLine(name=name, total=total[name], now=now.get(name)) for name in WORK if name in total]


def _engines(stats: ServiceStats, former: ServiceStats, rate: _Rate) -> list[EngineLine]:
    steps_before = {index: engine.steps for index, engine in enumerate(former.engines)}
    lines = []
    for index, engine in enumerate(stats.engines):
        values = {(metric.name, metric.labels.get("state")): value for metric, _, value in samples(engine)}
        lines.append(
            EngineLine(
                index=index,
                running=values["engine_requests", "running"],
                waiting=values["engine_requests", "waiting"],
                finished=values["engine_requests_finished", None],
                steps_per_s=rate(engine.steps, steps_before[index]) if index in steps_before else None,
                kv_used=values["kv_blocks", "used"],
                kv_total=values["kv_blocks", "total"],
                leases=values["leases", None],
            )
        )
    return lines
