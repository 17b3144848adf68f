"""Gives leases back from any thread, and from the middle of a garbage collection.

A view may die anywhere, also in a thread that is just giving another lease back, between the load and the store of the
cell. So nobody gives back directly: an entry is queued, and whoever finds nobody at work works the queue off. Nobody
waits.

    view dies ──> queue ──(one at a time)──> reader.give_back
    mapping dies ──> queue ──> reader.close      its locks outlast every view, and every return

Knows nothing of sockets. Invariant: the reader is never touched by two at a time, and not at all after it is closed.
"""

from __future__ import annotations

import threading
from collections import deque

from mmcached.shm import ReaderEntry
from mmcached.wire.handle import Handle


class LeaseReturns:
    """The way back of one reader's leases; owns the reader, which `close_reader` closes."""

    def __init__(self, reader: ReaderEntry) -> None:
        self._reader: ReaderEntry | None = reader
        self._queue: deque[Handle | None] = deque()
        self._turn = threading.Lock()

    def give_back(self, handle: Handle | None) -> None:
        """Return one lease, or None: the reader; at once, unless another thread is just doing so and takes it along."""
        self._queue.append(handle)
        # Whoever finds the turn taken leaves its entry to the holder, who looks once more after letting go. `with` is
        # the one way to take a lock that no signal handler's exception gets between.
        while self._queue and not self._turn.locked():
            with self._turn:
                while self._queue:
                    self._return(self._queue.popleft())

    def close_reader(self) -> None:
        """End the incarnation, once everything queued is given back."""
        self.give_back(None)

    def abandon(self) -> None:
        """In a forked child: give nothing back from now on, for the leases are the parent's."""
        reader, self._reader = self._reader, None
        self._queue.clear()
        self._turn = threading.Lock()  # the thread that held it may not exist here
        if reader is not None:
            reader.abandon()

    def _return(self, handle: Handle | None) -> None:
        if self._reader is None:
            return
        if handle is None:
            reader, self._reader = self._reader, None
            reader.close()
        else:
            self._reader.give_back(handle)
