"""Returns leases from any thread, also during a garbage collection.

A view may die anywhere, also in a thread that is returning another lease, between the load and the store of the
reader's count. So a lease is never returned directly: it is queued, and a thread that finds no other thread at work
drains the queue. No thread waits.

    holder dies ──> queue ──(one thread at a time)──> reader.end
    mapping dies ──> queue ──> reader.close     its locks outlast every view, and every return

A lease is bound to its holder, the array through which its chunk is read, before it is counted. So it is returned
exactly once, when the holder dies, whatever interrupts the call that takes it. An exception of a signal handler cannot
prevent that: the interpreter itself queues the lease, and entries that an exception has left in the queue are drained
by the next return or the next call.

A forked child inherits the views, but has no lease of its own. So neither process returns leases that were out at a
fork:

    fork ──any lease out?──> parent: returns no lease of this reader any more, and takes no more with it
                        ├──> child: returns no lease, writes nothing
                        └──> each releases the reader's locks with its last view; when both have, or have died, the
                             leases are void

Does not use sockets. Invariant: at most one thread uses the reader at a time, and none after it is closed.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque

from mmcached.client.links import forks
from mmcached.shm import ReaderEntry
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.handle import Handle


class Lease(weakref.ref[Bytes1D]):
    """A lease of a chunk, bound to its holder; see `mmcached.shm.ring.self_lease.SelfLease`."""

    __slots__ = ("_wake", "handle", "is_counted", "num_returned")
    handle: Handle
    is_counted: bool
    num_returned: int
    _wake: weakref.ref[Bytes1D]


class LeaseReturns:
    """The leases of one reader until they are returned; owns the reader, which `close_reader` closes.

    Attributes:
        is_shared: Whether a forked child may read under the leases; no further lease may be taken then.
        over: Queue of leases to return; None closes the reader.
    """

    def __init__(self, reader: ReaderEntry) -> None:
        self.is_shared = False
        self._reader: ReaderEntry | None = reader
        # By id. Keeps each weak reference alive: a dropped one never calls its callback.
        self._out: dict[int, Lease] = {}
        self.over: deque[Lease | None] = deque()
        self._turn = threading.Lock()
        self._is_forking = False
        forks.before(self._before_fork)
        forks.in_parent(self._after_fork)
        forks.in_child(self.abandon)

    def __len__(self) -> int:
        return len(self._out)

    def bind(self, holder: Bytes1D, handle: Handle) -> Lease:
        """Return a lease that ends with its holder; it is not taken yet."""
        # The newest callback runs first: the lease is in the queue before `work_off` looks there.
        wake = weakref.ref(holder, self.work_off)
        lease = Lease(holder, self.over.append)
        lease._wake, lease.handle, lease.is_counted, lease.num_returned = wake, handle, False, 0
        self._out[id(lease)] = lease
        return lease

    def end(self, lease: Lease) -> None:
        """Return a lease before its holder dies, once the chunk is no longer read. A second call changes nothing."""
        self.over.append(lease)
        self.work_off()

    def close_reader(self) -> None:
        """End the incarnation once all queued leases are returned; a shared one ends when both processes have released
        it.
        """
        self.over.append(None)
        self.work_off()

    def work_off(self, _: object = None) -> None:
        """Return the queued leases, unless another thread is doing so: that thread also returns the entries of this
        one.
        """
        # A thread that finds the lock taken leaves its entry to the holder, which checks the queue again after it has
        # released the lock. Only `with` takes a lock so that no signal handler's exception can come in between.
        while self.over and not self._is_forking and not self._turn.locked():
            with self._turn:
                while self.over and not self._is_forking:
                    if (lease := self.over[0]) is None:
                        self._end_reader()
                    else:
                        if not self.is_shared and self._reader is not None:
                            self._reader.end(lease)
                        self._out.pop(id(lease), None)
                    del self.over[0]  # last: an interrupted return is repeated

    def abandon(self) -> None:
        """Stop returning leases in a forked child: they are the parent's, and stay while a view lives here."""
        self._turn = threading.Lock()  # the thread that held it may not exist here
        self._is_forking = False
        self.is_shared = True
        if self._reader is not None:
            self._reader.stop()
        self.work_off()
        if not len(self):
            self._end_reader()

    def _before_fork(self) -> None:
        self.work_off()
        self._is_forking = True  # a view that dies between the fork and `_after_fork` may live in the child

    def _after_fork(self) -> None:
        self.is_shared = self.is_shared or len(self) > 0
        self._is_forking = False
        self.work_off()

    def _end_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.abandon() if self.is_shared else reader.close()
