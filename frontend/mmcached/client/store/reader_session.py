"""A client's reader entry in one ring of the store: attached, announced to the service, given up or shared at a fork.

    ring ──attach──> entry and mapping ──announced──> attached by the service: leases may be taken
      └── failed: `why_inline`, records come inline         └── closed: entry and mapping go with the last view

A process that forks while it has leases out takes no more leases through this session: see `lease_returns`.

Any thread may call any method; leases are counted by one thread at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import cycle
from typing import TypeVar

from mmcached.client.links import forks
from mmcached.client.store.lease_returns import Lease, LeaseReturns
from mmcached.shm import ObjectStoreReader, ReaderEntry, RingReader
from mmcached.wire.errors import LocalProtocolError, MmcachedError
from mmcached.wire.handle import RingAnnouncement

T = TypeVar("T")
MEASURED_ONE_IN = 64
"""One in this number of lookups is measured: measuring takes half as long as a hit."""


class ReaderSession:
    """A session with one ring, or without a ring.

    Args:
        ring: None if the service keeps no records.
        counts_hits: False if hits must not keep records longer.

    Attributes:
        why_inline: Why this session is not a reader; empty if it is a reader, or if there is no ring.
        is_attached: Whether the service has confirmed the entry.
        seen_epoch: Store epoch at the last look.
    """

    def __init__(self, ring: RingAnnouncement | None, *, counts_hits: bool = True) -> None:
        self.ring = ring
        self._counts_hits = counts_hits
        self.is_attached = self._is_announced = self._is_counting = self._is_blind = False
        self._blind_until = -float("inf")
        self.why_inline = ""
        self.seen_epoch = 0
        self._turns = cycle([False])
        self._lock = threading.RLock()
        self._reader: ReaderEntry | None = None
        self._over: deque[Lease | None] = deque()
        if ring is not None:
            try:
                self._become_reader(ring)
            except (MmcachedError, OSError) as error:  # no place, another user's ring, no shared /dev/shm, …
                self.why_inline = str(error)

    def take_announcement(self) -> ReaderEntry | None:
        """Return the reader to announce; None without a reader, or if another call announces it or has done so."""
        with self._lock:
            if self._is_announced:
                return None
            self._is_announced = self._reader is not None
            return self._reader

    def is_announced(self, ring: RingAnnouncement | None) -> bool:
        return self._is_announced and self.ring == ring and not self._returns.is_shared

    @property
    def incarnation(self) -> int:
        """The incarnation that reads the ring by itself; 0 without one, and while it cannot map a nursery."""
        reader = self._reader
        is_reading = self.is_attached and time.monotonic() >= self._blind_until
        return reader.incarnation if reader is not None and is_reading else 0

    @property
    def is_shared(self) -> bool:
        """Whether a forked child may read under its leases; this session takes no more leases then, another session
        does.
        """
        return self.ring is not None and not self.why_inline and self._returns.is_shared

    def lost_contact(self) -> None:
        """Require a new announcement: the frontend may be another one by now. Visible records are still found."""
        self._is_announced = False

    def close(self) -> None:
        """Take no more leases; leases of living views stay. A second call changes nothing."""
        with self._lock:
            if self._reader is None:
                return
            self._reader = None
            self._store.close()  # with the last view the mapping goes, and with it the reader

    def abandon(self) -> None:
        """In a forked child: release the ring without returning leases; the parent's leases stay its own."""
        self._lock = threading.RLock()  # the thread that held it may not exist here
        self._is_counting = False
        if self._reader is not None:
            self._reader = None
            self._returns.abandon()
            self._store.close()

    # ---- for calls on records

    _new_returns: Callable[[ReaderEntry], LeaseReturns] = LeaseReturns

    def _become_reader(self, ring: RingAnnouncement) -> None:
        reader = ReaderEntry.attach(ring)
        try:
            mapping = RingReader.open(ring)
        except BaseException:
            reader.close()
            raise
        self._reader = reader
        # Starts at an arbitrary lookup: else each client's first lookup, its slowest, would always be measured.
        turn = reader.incarnation % MEASURED_ONE_IN
        self._turns = cycle([index == turn for index in range(MEASURED_ONE_IN)])
        self._returns = self._new_returns(reader)
        self._over = self._returns.over
        self._store = ObjectStoreReader(mapping)
        mapping.when_unmapped(self._returns.close_reader)
        forks.in_parent(self._after_fork)  # runs after the callback of `LeaseReturns`

    def _alone(self, count: Callable[[ReaderEntry | None], T]) -> T:
        """Count leases in one thread at a time: two threads that raise one count at once could lose an increment."""
        # No context manager of our own: an interrupt between its steps would keep the lock for ever.
        with self._lock:
            if self._is_counting:
                raise LocalProtocolError("a signal handler or finalizer called the client in the middle of a call")
            try:
                self._is_counting = True
                if self._over:  # left by an interrupt
                    self._returns.work_off()
                return count(self._reader)
            finally:
                self._is_counting = False

    def _may_take(self, reader: ReaderEntry) -> bool:
        if not self.is_attached or self._returns.is_shared:
            return False
        if not self._store.reader.look.is_attached(reader.reader_id, reader.incarnation):
            self.is_attached = self._is_announced = False  # the ring has ended, or the entry is another reader's
            return False
        return True

    def _count_latency(self, duration_ns: int) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.count_latency(duration_ns)

    def _after_fork(self) -> None:
        """Release an entry shared with a child once its views have died, even if no further call comes."""
        # Without waiting for the lock: a call in progress may be further down this very stack.
        if self._reader is not None and self._returns.is_shared and self._lock.acquire(blocking=False):
            try:
                if not self._is_counting:
                    self.close()
            finally:
                self._lock.release()
