"""Runs the second level of one store: takes the frontend's orders, and has threads fetch, save and flush.

    frontend ──orders, by long polls──> orders' thread ──┬──> threads that fetch ──┐
       ▲                                                ├──> threads that save ───┼──> server
       │                                                ├──> thread that drops ───┤
       │                                                ├──> flushes, itself ─────┤
       └── puts, ends of fetches ── same connection <───┴─── thread that probes ──┘

The main thread publishes figures, and waits for signals. One thread probes the server periodically, so that an outage,
and a flush or a drop of another host, are noticed without traffic. Without a frontend or a server, the process waits
for the next. It holds no state that must survive: work under way when it dies is recomputed.

Invariant: results of a former frontend's orders reach no other frontend.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mmcached.second_level.backend import BackendError, HostApart
from mmcached.second_level.claims import HostClaims
from mmcached.second_level.counts import Counts
from mmcached.second_level.dropping import Dropping
from mmcached.second_level.fetching import Fetching
from mmcached.second_level.first_level import FirstLevel
from mmcached.second_level.name_lists import NameLists
from mmcached.second_level.saving import Saving
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.tenant_quota import TenantQuota
from mmcached.second_level.urls import epoch_note, make_backend
from mmcached.shm.stats.publisher import StatsPublisher
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import MmcachedError
from mmcached.wire.messages.second_level import Orders
from mmcached.wire.paths import RunDir
from mmcached.wire.process.signals import StopFlag
from mmcached.wire.process.turns import longest_rest_s
from mmcached.wire.stats import RoleName, SecondLevelStats

log = logging.getLogger("mmcached.second_level")

BUSY_S = 0.2
"""Interval between publications while figures change."""
POLL_S = 30.0
"""Timeout of a long poll for orders."""
GREETING_S = 0.001
"""Timeout of the first poll, whose answer confirms that the frontend accepts this process's messages."""
AGAIN_S = 0.2
"""The pause after a failed connection."""
PREPARE_S = 2.0
"""How long the server is probed before the first orders are taken."""
PROBE_INTERVAL_S = 1.0
"""Interval between probes: drops of other hosts are noticed within it, and the circuit opens after five failures."""
CLAIM_S = 0.5
"""Timeout of renewing or dropping a claim."""
PROBE_S = 1.0
FLUSH_S = 5.0
DRAIN_S = 2.0
"""How long saves may go on during shutdown."""
JOIN_S = 2.0
NUM_FETCHERS = 4
NUM_SAVERS = 2


class SecondLevelProcess(Closeable):
    """The threads between one store and one server; they begin with `start`; `close` closes `records`."""

    def __init__(self, directory: RunDir, config: ServiceConfig, records: SharedRecords) -> None:
        self._records = records
        self._counts = Counts()
        self._shown_url = config.shown().store_l2
        self._first = FirstLevel(directory)
        wait_s = config.limits.l2_claim_wait_ms / 1000
        claims = HostClaims(records, self._counts, ttl_s=wait_s)
        self._fetching = Fetching(
            self._first,
            records,
            claims,
            self._counts,
            claim_wait_s=wait_s,
            max_wait_s=config.limits.claim_timeout_s,
            num_threads=NUM_FETCHERS,
        )
        self._claims = claims
        quota = TenantQuota(config.store_l2_tenant_quota_bytes, config.store_l2_ttl_s)
        self._saving = Saving(self._first, records, claims, self._counts, config.limits, quota=quota)
        self._dropping = Dropping(self._first, records, self._fetching, self._saving, self._counts)
        host = f"{socket.gethostname()} {directory.path}"
        self._names = NameLists(self._first, records, self._counts, host=host)
        self._are_drops_new = False
        self._is_over = threading.Event()
        self._circuit = "closed"
        self._epoch_changes = threading.Lock()
        self._is_apart_told = False
        self._is_known = False
        self._has_news = threading.Event()
        records.on_apart = claims.on_news = self._has_news.set
        records.on_drops = self._note_drops
        works: list[tuple[str, Callable[[], None]]] = [("orders", self._take_orders), ("watch", self._watch)]
        works.append(("drop", self._dropping.run))
        works += [("names", self._names.run)] if config.store_warm_up else []
        works += [(f"fetch {number}", self._fetching.run) for number in range(NUM_FETCHERS)]
        works += [(f"save {number}", self._saving.run) for number in range(NUM_SAVERS)]
        self._threads = [threading.Thread(target=work, name=name, daemon=True) for name, work in works]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether all threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def tell_of_circuit(self) -> None:
        """Log once that the circuit has opened, with the reason; and that it has closed."""
        circuit = "closed" if self._records.breaker.state == "closed" else "open"
        if circuit != self._circuit:
            self._circuit = circuit
            reason = f", the server fails repeatedly: {self._records.breaker.reason}" if circuit == "open" else ""
            log.warning("circuit %s%s", circuit, reason)

    def stats(self) -> SecondLevelStats:
        waiting = self._saving.waiting
        return self._counts.stats(
            circuit_open=self._records.breaker.state != "closed",
            waiting_saves=waiting.num_records,
            waiting_bytes=waiting.num_bytes,
            trouble=self._records.trouble,
            is_apart=self._records.is_apart,
            has_other_version=self._records.has_other_version,
        )

    def drain(self, timeout_s: float) -> None:
        """Take no more orders, and wait up to `timeout_s` for saves; log the number of dropped ones."""
        self._end()
        self._fetching.close()
        if num_dropped := self._saving.drain(timeout_s):
            log.warning("%d records were not saved in the second level, because the service has stopped", num_dropped)

    def close(self) -> None:
        self._end()
        self._fetching.close()
        self._saving.close()
        self._dropping.close()
        self._names.close()
        self._first.close()
        self._records.close()
        give_up = time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, give_up - time.monotonic()))

    def _end(self) -> None:
        self._is_over.set()
        self._has_news.set()

    def _prepare(self) -> None:
        """Probe the server once, so that the first request need not wait for a connection and an epoch."""
        try:
            self._records.probe(deadline=time.monotonic() + PREPARE_S)
        except BackendError as error:
            log.warning("the second level is not reachable: %s", error)

    def _watch(self) -> None:
        """Probe the server, renew and drop claims, report other hosts' flushes and drops; the body of a thread."""
        next_probe = time.monotonic() + PROBE_INTERVAL_S
        while not self._is_over.is_set():
            if self._has_news.wait(max(0.0, next_probe - time.monotonic())):
                self._has_news.clear()
                self._tell_of_flush()
                self._claims.settle(CLAIM_S)
            with contextlib.suppress(BackendError):  # the breaker has its reason
                self._follow_drops()
                if time.monotonic() >= next_probe:
                    next_probe = time.monotonic() + PROBE_INTERVAL_S
                    self._records.probe(deadline=time.monotonic() + PROBE_S)

    def _note_drops(self) -> None:
        self._are_drops_new = True
        self._has_news.set()

    def _follow_drops(self) -> None:
        """Tell a frontend that is there which records other hosts have dropped."""
        if self._are_drops_new and self._is_known:
            self._are_drops_new = False
            names, are_all = self._records.take_drops(deadline=time.monotonic() + PROBE_S)
            self._fetching.forget(names)
            self._first.records_dropped(names, are_all=are_all)

    def _tell_of_flush(self) -> None:
        """Tell the frontend once that another host was flushed: records fetched before are not served any more."""
        with self._epoch_changes:
            if self._records.is_apart and self._is_known and not self._is_apart_told:
                error = str(HostApart())
                log.warning("the second level is not used: %s", error)
                self._fetching.begin_life()
                self._first.another_host_flushed(error)
                self._is_apart_told = True

    def _take_orders(self) -> None:
        self._prepare()
        was_there = True
        while not self._is_over.is_set():
            try:
                orders = self._first.take_orders(POLL_S if self._is_known else GREETING_S)
            except MmcachedError as error:
                self._is_known = self._is_apart_told = False
                self._records.drops.read_again()
                self._begin_life()
                if was_there and not self._is_over.is_set():
                    log.info("no orders: %s", error)
                was_there = False
                self._is_over.wait(AGAIN_S)
                continue
            was_there = True
            if not self._is_known:
                self._is_known = True
                self._tell_of_flush()
            self._begin(orders)

    def _begin(self, orders: Orders) -> None:
        now = time.monotonic()
        if orders.flush:
            with self._epoch_changes:
                self._begin_life()
                error = self._flush(orders.version, now + FLUSH_S)
                self._is_apart_told &= bool(error)
                self._first.flushed(orders.flush, error)
        self._dropping.order(orders.drops)
        self._names.order(orders.recent_names, asks=orders.asks_names)
        self._claims.note((each.name, each.is_held) for each in orders.claims)
        self._fetching.order(orders.fetches, now)
        self._saving.order(orders.saves, now, store_epoch=orders.store_epoch)

    def _flush(self, version: str, deadline: float) -> str:
        """Begin a new epoch on the server, or go to a version; return the error message, or "" on success."""
        try:
            self._records.flush(version, deadline=deadline)
        except BackendError as error:
            self._counts.add(flushes_failed=1)
            log.warning("the second level was not flushed: %s", error)
            return f"{self._shown_url}: {error}"
        self._counts.add(flushes_done=1)
        return ""

    def _begin_life(self) -> None:
        self._fetching.begin_life()
        self._saving.begin_life()
        self._dropping.begin_life()
        self._names.begin_life()


def main(run_dir: Path) -> int:
    """Run the second level of a run directory until SIGTERM; return the exit status."""
    directory = RunDir(run_dir)
    config = ServiceConfig.load(directory.config)
    max_bytes = config.limits.max_l2_record_mb * MIB
    stop = StopFlag()
    page = StatsPublisher(directory.stats_page, RoleName("second_level"))
    note = epoch_note(config.store_l2, directory.second_level_epoch)
    backend = make_backend(config.store_l2)
    records = SharedRecords(backend, max_bytes=max_bytes, ttl_s=config.store_l2_ttl_s, note=note)
    with stop, page, SecondLevelProcess(directory, config, records) as level:
        level.start()
        poller = select.poll()
        poller.register(stop.fileno(), select.POLLIN)
        rest_s = longest_rest_s(config.limits)
        last = level.stats()
        while not stop.is_set and level.is_alive:
            page.publish(level.stats)
            level.tell_of_circuit()
            former, last = last, level.stats()
            poller.poll(1000 * (rest_s if last == former else BUSY_S))
        if not stop.is_set:
            log.error("a thread has ended unexpectedly; the supervisor starts the next process")
            return 1
        level.drain(DRAIN_S)
        page.publish(level.stats)
    return 0
