"""Gives leases back from any thread, and from the middle of a garbage collection.

A view may die anywhere, also in a thread that is just giving another lease back, between the load and the store of the
cell. So nobody gives back directly: an entry is queued, and whoever finds nobody at work works the queue off. Nobody
waits.

    view dies ──> queue ──(one at a time)──> row.give_back
    mapping dies ──> queue ──> row.close         its locks outlast every view, and every return

Knows nothing of sockets. Invariant: the row is never touched by two at a time, and not at all after it is closed.
"""

from __future__ import annotations

import threading
from collections import deque

from mmcached.shm import ReaderRow
from mmcached.wire.handle import Handle


class LeaseReturns:
    """The way back to one row, which is owned from here on and closed by `close_row`."""

    def __init__(self, row: ReaderRow) -> None:
        self._row: ReaderRow | None = row
        self._queue: deque[Handle | None] = deque()
        self._turn = threading.Lock()

    def give_back(self, handle: Handle) -> None:
        """Return one lease; at once, unless another thread is just doing so and takes it along."""
        self._queue.append(handle)
        self._work_off()

    def close_row(self) -> None:
        """End the incarnation, once everything queued is given back."""
        self._queue.append(None)
        self._work_off()

    def abandon(self) -> None:
        """In a forked child: give nothing back from now on, for the leases are the parent's."""
        row, self._row = self._row, None
        self._queue.clear()
        self._turn = threading.Lock()  # the thread that held it may not exist here
        if row is not None:
            row.abandon()

    def _work_off(self) -> None:
        # Whoever finds the turn taken leaves its entry to the holder, who looks once more after letting go.
        while self._queue and self._turn.acquire(blocking=False):
            try:
                while self._queue:
                    self._return(self._queue.popleft())
            finally:
                self._turn.release()

    def _return(self, handle: Handle | None) -> None:
        if self._row is None:
            return
        if handle is None:
            row, self._row = self._row, None
            row.close()
        else:
            self._row.give_back(handle)
