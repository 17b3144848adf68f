"""Gives leases back from any thread, and from the middle of a garbage collection.

A view may die anywhere, also in a thread that is just giving another lease back, between the load and the store of the
cell. So nobody gives back directly: a lease is queued, and whoever finds nobody at work works the queue off. Nobody
waits.

    holder dies ──> queue ──(one at a time)──> reader.end
    mapping dies ──> queue ──> reader.close     its locks outlast every view, and every return

A lease is bound to the array through which its chunk is read, the holder, before it is counted. So it is given back
whatever interrupts the call that takes it, once: when the holder dies. A signal handler cannot prevent that: the
interpreter itself queues the lease, and what an exception has left in the queue the next one, or the next call, ends.

A forked child inherits the views, and has no lease of its own. So what was out at a fork is given back by neither:

    fork ──any lease out?──> parent: gives nothing of this reader back any more, and takes no more with it
                        ├──> child: gives nothing back, writes nothing
                        └──> whose last view has died lets go of the locks; both have, or are dead: the leases are void

Knows nothing of sockets. Invariant: the reader is never touched by two at a time, and not at all after it is closed.
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
    """A lease of a chunk, bound to its holder; see `mmcached.shm.ring.self_lease.Lease`."""

    __slots__ = ("_wake", "handle", "is_counted", "num_returned")
    handle: Handle
    is_counted: bool
    num_returned: int
    _wake: weakref.ref[Bytes1D]


class LeaseReturns:
    """The leases of one reader, and their way back; owns the reader, which `close_reader` closes.

    Attributes:
        is_shared: a forked child may read under the leases; no other may be taken.
        over: leases that are to be given back.
    """

    def __init__(self, reader: ReaderEntry) -> None:
        self.is_shared = False
        self._reader: ReaderEntry | None = reader
        self._out: dict[int, Lease] = {}  # by id: a reference to what died calls nobody
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
        # The newest is called first: when the queue is looked at, the lease is in it.
        wake = weakref.ref(holder, self.work_off)
        lease = Lease(holder, self.over.append)
        lease._wake, lease.handle, lease.is_counted, lease.num_returned = wake, handle, False, 0
        self._out[id(lease)] = lease
        return lease

    def end(self, lease: Lease) -> None:
        """Give a lease back before its holder dies: nobody reads any more. A second time changes nothing."""
        self.over.append(lease)
        self.work_off()

    def close_reader(self) -> None:
        """End the incarnation, once everything queued is given back; a shared one ends with the last who shares it."""
        self.over.append(None)
        self.work_off()

    def work_off(self, _: object = None) -> None:
        """Give back what is queued, unless another thread is just doing so and takes it along."""
        # Whoever finds the turn taken leaves its entry to the holder, who looks once more after letting go. `with` is
        # the one way to take a lock that no signal handler's exception gets between.
        while self.over and not self._is_forking and not self._turn.locked():
            with self._turn:
                while self.over and not self._is_forking:
                    if (lease := self.over[0]) is None:
                        self._end_reader()
                    else:
                        if not self.is_shared and self._reader is not None:
                            self._reader.end(lease)
                        self._out.pop(id(lease), None)
                    del self.over[0]  # last: what is interrupted is done again

    def abandon(self) -> None:
        """In a forked child: give nothing back, for the leases are the parent's; they stay while a view lives here."""
        self._turn = threading.Lock()  # the thread that held it may not exist here
        self._is_forking = False
        self.is_shared = True
        if self._reader is not None:
            self._reader.stop()
        self.work_off()
        if not self._out:
            self._end_reader()

    def _before_fork(self) -> None:
        self.work_off()
        self._is_forking = True  # what dies between the fork and the look that follows it may live in the child

    def _after_fork(self) -> None:
        self.is_shared = self.is_shared or bool(self._out)
        self._is_forking = False
        self.work_off()

    def _end_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.abandon() if self.is_shared else reader.close()
