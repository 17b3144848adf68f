"""Fetches the records that the frontend orders, from the second level into the store of this host.

    ordered ── found ──> put ──> "hit"
        ├── absent ──> "miss";  if a client would compute it: has another host claimed it?
        │                        ├── no: this host claims it ──> "miss"
        │                        └── yes ──> "elsewhere" ── retries, in growing intervals ──> found, or claimed here
        └── "late", or "failed"

Records due at the same moment are requested together, split among the threads. Prefetches come after them, in one
thread at a time, so that others are free for what clients wait for. No thread waits for another host: an "elsewhere"
record becomes due again. An open circuit counts as "failed". Invariant: each fetch of a living frontend
ends once, with an outcome other than "elsewhere".
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from mmcached.cache.store_keys import store_key
from mmcached.second_level.backend import BackendError, BackendLate
from mmcached.second_level.claims import HostClaims
from mmcached.second_level.counts import Counts
from mmcached.second_level.first_level import CALL_S, FirstLevel
from mmcached.second_level.records import Found, Missed
from mmcached.second_level.shared_records import SharedRecords
from mmcached.shm.store.codec import EncodedRecord, adopt
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import MmcachedError, RemoteProtocolError
from mmcached.wire.messages.second_level import Fetch, FetchEnd

log = logging.getLogger("mmcached.second_level")

MAX_TOGETHER = 8
"""Records per call, which ends as a whole: records that came in time must not wait for late ones."""
AHEAD_CALL_S = 5.0
"""The longest call for prefetches."""
FIRST_LOOK_S, LAST_LOOK_S = 0.005, 0.05
"""First and longest interval between look-ups of a record that another host computes."""
Outcome = Literal["hit", "miss", "late", "failed"]
_FIGURES = {"hit": "gets_hit", "miss": "gets_missed", "late": "gets_late", "failed": "gets_failed"}


@dataclass(slots=True)
class Task:
    """One fetch under way.

    Attributes:
        deadline: Deadline of the current look-up, in monotonic seconds.
        give_up: End of the wait for another host that computes the record.
        life: Number of the frontend that has ordered it; see `Fetching.begin_life`.
        interval_s: Time until the next look-up while another host computes it; 0.0 if none is known to.
        tell_again: When to tell the frontend again that another host computes it.
        is_dropped: The record was dropped since it was asked for: what is found is not put.
    """

    order: Fetch
    name: str
    deadline: float
    give_up: float
    life: int
    interval_s: float = 0.0
    tell_again: float = 0.0
    outcome: Outcome | None = None
    is_dropped: bool = False


class _Due(NamedTuple):
    at: float
    number: int
    task: Task


class Fetching(Closeable):
    """The fetches of one process.

    Args:
        claim_wait_s: Lifetime of a claim that is not renewed. 0.0 claims nothing, and does not wait for other hosts.
        max_wait_s: The longest wait for another host that computes a record.
        num_threads: Number of threads that call `run`.
    """

    def __init__(
        self,
        first: FirstLevel,
        records: SharedRecords,
        claims: HostClaims,
        counts: Counts,
        *,
        claim_wait_s: float,
        max_wait_s: float,
        num_threads: int,
    ) -> None:
        self._first = first
        self._records = records
        self._claims = claims
        self._counts = counts
        self._claim_wait_s = claim_wait_s
        self._max_wait_s = max_wait_s
        self._num_threads = num_threads
        self._numbers = itertools.count()
        self._due: list[_Due] = []
        self._ahead: deque[Task] = deque()
        self._is_fetching_ahead = False
        self._changed = threading.Condition()
        self._life = 0
        self._taken: list[list[Task]] = []
        self._putting: list[str] = []
        self._is_closed = False

    def begin_life(self) -> None:
        """Drop all orders, after a restart of the frontend or a flush; records found meanwhile are not put.

        Waits until no earlier put is under way, which could otherwise reach the frontend after the flush.
        """
        with self._changed:
            self._life += 1
            self._due.clear()
            self._ahead.clear()
            self._changed.wait_for(lambda: not self._putting, CALL_S)

    def forget(self, names: Sequence[str]) -> None:
        """Put no record of these names that was asked for before; waits until none is being put."""
        dropped = set(names)
        with self._changed:
            for task in itertools.chain.from_iterable(self._taken):
                task.is_dropped |= task.name in dropped
            self._changed.wait_for(lambda: dropped.isdisjoint(self._putting), CALL_S)

    def order(self, fetches: Sequence[Fetch], now: float) -> None:
        with self._changed:
            for each in fetches:
                deadline, give_up = now + each.timeout_ms / 1000, now + self._max_wait_s
                task = Task(each, store_key(each.tenant, each.key), deadline, give_up, self._life)
                if each.is_ahead:
                    self._ahead.append(task)
                else:
                    heapq.heappush(self._due, _Due(now, next(self._numbers), task))
            self._changed.notify(min(len(fetches), self._num_threads))

    def run(self) -> None:
        """Fetch until `close`; the body of a thread."""
        while tasks := self._take():
            try:
                self._fetch(tasks)
            except Exception:
                self._counts.add(faults=1)
                log.exception("fetches have failed unexpectedly")
                self._end([task for task in tasks if task.outcome is None], "failed")
            with self._changed:
                self._taken.remove(tasks)
                self._is_fetching_ahead &= not tasks[0].order.is_ahead
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _take(self) -> list[Task]:
        """Wait for due fetches, and return this thread's share; empty after `close`."""
        with self._changed:
            tasks = self._await_due()
            if tasks:
                self._taken.append(tasks)
            return tasks

    def _await_due(self) -> list[Task]:
        """Return as `_take`; the caller holds the lock."""
        while not self._is_closed:
            now = time.monotonic()
            num_due = sum(each.at <= now for each in self._due)
            if num_due:
                share = min(MAX_TOGETHER, -(-num_due // self._num_threads))
                return [heapq.heappop(self._due).task for _ in range(share)]
            if self._ahead and not self._is_fetching_ahead:
                self._is_fetching_ahead = True
                tasks = [self._ahead.popleft() for _ in range(min(MAX_TOGETHER, len(self._ahead)))]
                for task in tasks:
                    task.deadline = min(task.deadline, now + AHEAD_CALL_S)
                return tasks
            self._changed.wait(self._due[0].at - now if self._due else None)
        return []

    def _fetch(self, tasks: list[Task]) -> None:
        names = [task.name for task in tasks]
        try:
            with self._counts.timed("get"):
                found = self._records.get_many(names, deadline=max(task.deadline for task in tasks))
        except BackendError as error:
            self._end(tasks, "late" if isinstance(error, BackendLate) else "failed")
            return
        # Misses first: their answers need not wait for the puts.
        missing = [
            task
            for task, record in zip(tasks, found, strict=True)
            if isinstance(record, Missed) and record.reason not in ("late", "failed")
        ]
        self._end([task for task in missing if not self._is_elsewhere(task)], "miss")
        for task in tasks:
            record = found.pop(0)  # `pop`, so that a record's memory is freed after its put
            if isinstance(record, Found):
                self._end([task], self._put(task, record))
            elif record.reason in ("late", "failed"):
                self._end([task], record.reason)
            elif record.reason not in ("absent", "epoch"):  # after a flush every record is of another epoch
                log.warning("a record of the second level is of no use: %s", record.reason)

    def _put(self, task: Task, found: Found) -> Outcome:
        order = task.order
        self._counts.add(bytes_read=found.nbytes)
        with self._changed:
            if task.life != self._life or task.is_dropped:
                return "miss"
            self._putting.append(task.name)
        try:
            self._first.put(
                order.tenant,
                order.key,
                encoded_of(found),
                order.store_epoch,
                ttl_s=found.ttl_s,
                cost_s=found.cost_s,
            )
        except MmcachedError as error:
            if isinstance(error, RemoteProtocolError):
                log.warning("a record of the second level cannot be read: %s", error)
            return "failed"
        finally:
            with self._changed:
                self._putting.remove(task.name)
                self._changed.notify_all()
        return "hit"

    def _is_elsewhere(self, task: Task) -> bool:
        """Return whether another host computes a missing record; if so, schedule the next look-up."""
        if not task.order.claims or not self._claim_wait_s or task.life != self._life:
            return False
        now = time.monotonic()
        if now >= task.give_up:
            self._end([task], "late")
            return True
        try:
            is_ours = self._claims.take_claim(task.name, deadline=task.deadline)
        except BackendError:
            self._counts.add(claims_failed=1)
            return False
        self._counts.add(**{"claims_taken" if is_ours else "claims_elsewhere": 1})
        if is_ours and not task.interval_s:
            return False
        if is_ours:  # its former owner may have saved the record since the last look-up
            task.order = replace(task.order, claims=False)
            self._look_again(task, now)
            return True
        if now >= task.tell_again:
            task.tell_again = now + self._claim_wait_s / 2
            self._first.ended([FetchEnd(task.order.number, "elsewhere")])
        task.interval_s = min(2 * task.interval_s, LAST_LOOK_S) or FIRST_LOOK_S
        self._look_again(task, now + task.interval_s)
        return True

    def _look_again(self, task: Task, at: float) -> None:
        with self._changed:
            if task.life == self._life:
                task.deadline = at + task.order.timeout_ms / 1000
                heapq.heappush(self._due, _Due(at, next(self._numbers), task))
                self._changed.notify()

    def _end(self, tasks: Sequence[Task], outcome: Outcome) -> None:
        """Report and count the end of fetches; those of a former frontend are only counted."""
        if not tasks:
            return
        for task in tasks:
            task.outcome = outcome
        self._counts.add(queries=len(tasks), **{_FIGURES[outcome]: len(tasks)})
        ends = [FetchEnd(task.order.number, outcome) for task in tasks if task.life == self._life]
        self._first.ended(ends)


def encoded_of(found: Found) -> EncodedRecord:
    """Return a found record, validated and joined from its parts, ready to be put; RemoteProtocolError if invalid."""
    if len(found.pieces) == 1:
        return adopt(np.frombuffer(found.pieces[0], np.uint8))
    whole = np.empty(found.nbytes, np.uint8)
    end = 0
    for piece in found.pieces:
        whole[end : end + piece.nbytes] = np.frombuffer(piece, np.uint8)
        end += piece.nbytes
    return adopt(whole)
