"""Saves records of this host's store in the second level, in the background.

    ordered ──queue, bounded in records and bytes──> leased ──> written, or there already      "kept"
        ├── too many, too old, too large, gone from the store ───────────────────────────────> "dropped"
        └── beyond the quota of its tenant ──────────────────────────────────────────────────> "over_quota"

A record is read in place, under a lease of this process; the end of its save ends its claim. Records of one name are
written one at a time, in the order of their orders: the last one stays. Saves that are queued or under way when the
process dies are lost; the records are recomputed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mmcached.cache.store_keys import store_key
from mmcached.cache.waiting_saves import WaitingSaves
from mmcached.second_level.backend import BackendError, BackendRefused, HostApart
from mmcached.second_level.breaker import CircuitOpen
from mmcached.second_level.claims import HostClaims
from mmcached.second_level.counts import Counts
from mmcached.second_level.first_level import FirstLevel
from mmcached.second_level.records import PART_BYTES, framed_bytes
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.tenant_quota import TenantQuota
from mmcached.second_level.versions import Scope
from mmcached.shm.ring.slot_table import boot_ns
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import MIB
from mmcached.wire.errors import MmcachedError
from mmcached.wire.limits import MAX_SAVE_AGE_S, MAX_WAITING_SAVES, LimitsConfig
from mmcached.wire.messages.second_level import Save

log = logging.getLogger("mmcached.second_level")

Outcome = Literal["kept", "dropped", "over_quota"]
PUT_S = 5.0
"""The longest time that a save may take; its lease lasts no longer."""


@dataclass(frozen=True, slots=True)
class _Task:
    """One save; `scope` is the second level's when it was ordered, `arrived` is in monotonic seconds; `store_epoch` is
    the frontend's, 0 if it is unknown.
    """

    name: str
    order: Save
    arrived: float
    scope: Scope
    life: int
    store_epoch: int


class Waiting(NamedTuple):
    num_records: int
    num_bytes: int


class Saving(Closeable):
    def __init__(
        self,
        first: FirstLevel,
        records: SharedRecords,
        claims: HostClaims,
        counts: Counts,
        limits: LimitsConfig,
        *,
        quota: TenantQuota,
    ) -> None:
        self._first = first
        self._records = records
        self._claims = claims
        self._counts = counts
        self._limits = limits
        self._quota = quota
        self._queue: deque[_Task] = deque()
        self._books = WaitingSaves()
        self._busy: set[str] = set()
        self._changed = threading.Condition()
        self._life = 0
        self._is_closed = False

    @property
    def waiting(self) -> Waiting:
        with self._changed:
            return Waiting(len(self._queue), self._books.num_bytes)

    def begin_life(self) -> None:
        with self._changed:
            self._life += 1
            self._counts.add(puts_dropped=len(self._queue))
            lost = [task.order for task in self._queue]
            self._clear()
        self._end_claims(lost)

    def order(self, saves: Sequence[Save], now: float, *, store_epoch: int = 0) -> None:
        """Add orders that arrived at `now`; beyond the limits the oldest of the tenant that has the most are dropped.

        Args:
            store_epoch: Epoch of the frontend's store when it gave the orders; 0: unknown.
        """
        limits, lost, num_over_quota = self._limits, list[Save](), 0
        with self._changed:
            for each in saves:
                if each.place.nbytes > limits.max_l2_record_mb * MIB:
                    lost.append(each)
                    continue
                if not self._quota.has_room(each.tenant, framed_bytes(each.place.nbytes)):
                    num_over_quota += 1
                    lost.append(each)
                    continue  # queued, it would take the room of other tenants' records
                name = store_key(each.tenant, each.key)
                self._queue.append(_Task(name, each, now, self._records.scope_of(name), self._life, store_epoch))
                self._books.add(each.tenant, each.place.nbytes)
            # The oldest would be the first to become too old.
            bounds = {"max_records": MAX_WAITING_SAVES, "max_bytes": limits.max_l2_waiting_mb * MIB}
            while (tenant := self._books.tenant_to_drop(**bounds)) is not None:
                task = next(task for task in self._queue if task.order.tenant == tenant)
                self._remove(task)
                lost.append(task.order)
            self._changed.notify_all()
        self._counts.add(puts_dropped=len(lost) - num_over_quota, puts_over_quota=num_over_quota)
        self._end_claims(lost)

    def forget(self, name: str) -> None:
        """Save no record of this name that was ordered before it was dropped; waits until none is being written."""
        with self._changed:
            scope = self._records.scope_of(name)
            for task in [task for task in self._queue if task.name == name and task.scope != scope]:
                self._remove(task)
                self._counts.add(puts_dropped=1)
            self._changed.wait_for(lambda: name not in self._busy, PUT_S)

    def run(self) -> None:
        """Save until `close`; the body of a thread."""
        while (task := self._take()) is not None:
            try:
                self._save(task)
            except Exception:
                self._counts.add(faults=1)
                log.exception("a save has failed unexpectedly")
            finally:
                with self._changed:
                    self._busy.discard(task.name)
                    self._changed.notify_all()

    def drain(self, timeout_s: float) -> int:
        """Wait up to `timeout_s` until all is saved; return the number of dropped records."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and not self._busy, timeout_s)
            num_left = len(self._queue) + len(self._busy)
            self._counts.add(puts_dropped=len(self._queue))
            self._clear()
        return num_left

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._clear()
            self._changed.notify_all()

    def _end_claims(self, lost: Sequence[Save]) -> None:
        self._claims.note((store_key(each.tenant, each.key), False) for each in lost)

    def _clear(self) -> None:
        self._queue.clear()
        self._books.clear()

    def _remove(self, task: _Task) -> None:
        self._queue.remove(task)
        self._books.remove(task.order.tenant, task.order.place.nbytes)

    def _take(self) -> _Task | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next() is not None or self._is_closed)
            if (task := self._next()) is None:
                return None
            self._remove(task)
            self._busy.add(task.name)
            return task

    def _next(self) -> _Task | None:
        """Return the oldest save whose name is not being saved now."""
        return next((task for task in self._queue if task.name not in self._busy), None)

    def _save(self, task: _Task) -> None:
        name = task.name
        now = time.monotonic()
        deadline = now + PUT_S
        try:
            is_young = now - task.arrived <= MAX_SAVE_AGE_S
            outcome = self._write(task, name, deadline) if is_young else "dropped"
            self._counts.add(**{f"puts_{outcome}": 1})
        except BackendError as error:
            self._counts.add(puts_failed=1)
            log.debug("a record was not saved: %s", error)
        with contextlib.suppress(BackendError):  # saved or not, this host will not write the record any more
            self._claims.drop(name, deadline=deadline)

    def _write(self, task: _Task, name: str, deadline: float) -> Outcome:
        """Write a record from its place in the store; "kept" if the second level has it now."""
        try:
            lent = self._first.lend(task.order)
        except MmcachedError as error:
            log.info("a record was not saved: %s", error)
            return "dropped"
        if lent is None or task.life != self._life:
            return "dropped"
        if task.store_epoch not in (0, self._first.store_epoch):
            return "dropped"  # flushed since: the record that lies there now is of the next version
        expires_at = task.order.expires_at
        ttl_s = (expires_at - boot_ns()) / 1e9 if expires_at else 0.0
        if expires_at and ttl_s <= 0:
            return "dropped"
        tenant, num_bytes = task.order.tenant, framed_bytes(lent.nbytes)
        if not self._quota.reserve(tenant, num_bytes):
            return "over_quota"
        is_written = True  # a call that fails may have written it
        try:
            with self._counts.timed("put"):
                kept = self._records.save(
                    name, [lent.data], ttl_s=ttl_s, cost_s=task.order.cost_s, as_of=task.scope, deadline=deadline
                )
            is_written = kept == "kept"
        except (BackendRefused, CircuitOpen, HostApart):
            is_written = lent.nbytes > PART_BYTES  # its first parts may have been written
            raise
        finally:
            end = self._quota.commit if is_written else self._quota.release
            end(tenant, num_bytes)
        if kept == "kept":
            self._counts.add(bytes_written=lent.nbytes)
        return "dropped" if kept == "outdated" else "kept"
