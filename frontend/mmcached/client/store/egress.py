"""Lays large records that this client puts into a ring of its own, out of which the frontend copies them once.

    no ring ──a large put──> new, to be registered ──> open ──lay──> a place; the answer to the put frees it
       ▲                          └── refused, no room: none for a while        │
       └── the connection is lost, the frontend has lost the ring, a record is larger than it ──┘

A place is the first room that is free: what was freed last is in the caches still, of both processes.

What has no place travels inline: a small record, a ring that is full or just being registered. Nobody waits. The ring's
names are removed as soon as the frontend has mapped it, so the kernel takes it back whoever dies; of a client that dies
before, the frontend removes them.

The frontend takes no lease: it answers each put once, after it has copied the record, and a chunk whose answer has not
come is not used again, whatever became of the call; with the connection, over which no answer can come any more, the
ring goes too. Knows nothing of sockets; any thread may call anything.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from functools import partial

import numpy as np

from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.shm import EncodedRecord, Host
from mmcached.shm.segment.layout import Layout, chunk_bytes
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.segment import WriterSegment, unlink
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import MmcachedError
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages.parts import EgressPlace

MIN_BYTES = 64 << 10
"""Of a record that is laid into the ring; smaller ones cost less inline. Measured: see DECISIONS.md."""
MIN_RING_BYTES = 4 << 20
RETRY_S = 30.0
"""How long a client goes without a ring after it could not have one."""


class EgressRing(Closeable):
    """One ring with the places that are taken. Dropped without `close` it goes too, at the latest with the process.

    Args:
        client_id: names the ring.
    Attributes:
        is_over: nothing is laid into it any more.
    Raises:
        SegmentError: there is no room for it.
    """

    def __init__(self, client_id: str, ring_bytes: int) -> None:
        # Under the client's own name, so that the frontend knows whose it is when it finds the client dead.
        segment = WriterSegment.create(
            Layout(ring_bytes, num_slots=1, max_readers=1),
            epoch=time.time_ns(),
            host=Host(),
            new_ring_id=lambda: client_id,
        )
        self.announcement: RingAnnouncement = segment.announcement
        self.is_over = False
        self._data: Bytes1D | None = np.frombuffer(segment.data, np.uint8, ring_bytes)
        self._turn = threading.RLock()
        self._is_in_use = False
        self._places: dict[int, tuple[int, int]] = {}  # request id -> where its room begins and ends
        self._to_free: deque[int] = deque()
        self._let_go = weakref.finalize(self, _close, segment, os.getpid())

    def lay(self, request_id: int, encoded: EncodedRecord) -> EgressPlace | None:
        """Copy a record into the ring; return its place until `free`, or None if there is none."""
        data = self._data
        if data is None:
            return None
        try:
            offset = self._take_room(request_id, encoded.nbytes)
            if offset is None:
                return None
            encoded.write_into(data[offset : offset + encoded.nbytes])
        except BaseException:
            self.free(request_id)
            raise
        return None if self.is_over else EgressPlace(self.announcement.epoch, offset, encoded.nbytes)

    def free(self, request_id: int) -> None:
        """Let the room of a request be used again; one that has none changes nothing."""
        # By the next who takes room: this may be called in the middle of that, by whoever reads the socket.
        if request_id in self._places:
            self._to_free.append(request_id)

    def forget_names(self) -> None:
        """Remove the ring's names: whoever needs it has mapped it."""
        unlink(self.announcement.data_name)
        unlink(self.announcement.ctl_name)

    def close(self) -> None:
        """Give the memory back. What is being filled is filled for nobody. A second call changes nothing."""
        self.is_over = True
        self._data = None
        self._let_go()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's ring."""
        self.is_over = True
        self._data = None
        self._let_go.detach()
        _close_inherited(self.announcement)

    def _take_room(self, request_id: int, nbytes: int) -> int | None:
        """Take room for a request; return its offset, or None if there is none."""
        with self._turn:
            if self._is_in_use:  # a signal handler in the middle of its own thread's call
                return None
            try:
                self._is_in_use = True
                while self._to_free:  # an exception at any point leaves nothing half freed
                    self._places.pop(self._to_free[0], None)
                    self._to_free.popleft()
                offset, size = 0, chunk_bytes(nbytes)
                for begin, end in sorted(self._places.values()):
                    if begin - offset >= size:
                        break
                    offset = end
                if offset + size > self.announcement.data_bytes:
                    return None
                self._places[request_id] = (offset, offset + size)
                return offset
            finally:
                self._is_in_use = False


class Egress:
    """The present ring of one client id, if it has one.

    Attributes:
        why_inline: the reason that there is none though one was wanted; empty if there is none such.
    """

    def __init__(self) -> None:
        self.why_inline = ""
        self._ring: EgressRing | None = None
        self._lock = threading.RLock()
        self._is_making = self._is_over = False
        self._retry_at = -float("inf")

    def new_ring(self, client_id: str, nbytes: int, max_ring_bytes: int) -> EgressRing | None:
        """Make the ring in which a record of `nbytes` has a place; `open` or `refuse` must follow.

        Returns:
            None if there is one already, or none can be had now.
        """
        ring_bytes = min(max_ring_bytes, max(MIN_RING_BYTES, 1 << (2 * nbytes - 1).bit_length()))
        with self._lock:
            former = self._ring
            has_place = former is not None and former.announcement.data_bytes >= nbytes
            is_too_large = chunk_bytes(nbytes) > ring_bytes
            is_busy = self._is_making or self._is_over or time.monotonic() < self._retry_at
            if has_place or is_too_large or is_busy:
                return None
            self._is_making = True
            self._ring = None
        if former is not None:
            former.close()
        try:
            return uninterrupted(partial(EgressRing, client_id, ring_bytes))
        except (MmcachedError, OSError) as error:
            self._refuse(str(error))
            return None
        except BaseException:
            self._is_making = False
            raise

    def open(self, ring: EgressRing) -> None:
        """Use a ring from now on that the frontend has mapped."""
        ring.forget_names()
        with self._lock:
            self._is_making = False
            self.why_inline = ""
            if not self._is_over:
                self._ring = ring
                return
        ring.close()

    def refuse(self, ring: EgressRing, reason: str) -> None:
        """Let go of a ring that the frontend has not mapped."""
        ring.close()
        self._refuse(reason)

    def lay(self, request_id: int, encoded: EncodedRecord) -> EgressPlace | None:
        """Copy a record into the ring; return its place until `free`, or None: it travels inline."""
        ring = self._ring
        return None if ring is None else ring.lay(request_id, encoded)

    def free(self, request_id: int | None) -> None:
        """Take note that a request was answered, or never sent. None: one of them, nobody knows which."""
        if request_id is None:
            self.lose()
        elif (ring := self._ring) is not None:
            ring.free(request_id)

    def lose(self) -> None:
        """Let go of the ring; the next large put makes another."""
        with self._lock:
            ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()

    def close(self) -> None:
        """Let go of the ring for good."""
        self._is_over = True
        self.lose()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's ring."""
        self._lock = threading.RLock()  # the thread that held it may not exist here
        self._is_over = True
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.abandon()

    def _refuse(self, reason: str) -> None:
        self.why_inline = reason
        self._retry_at = time.monotonic() + RETRY_S
        self._is_making = False


def _close(segment: WriterSegment, pid: int) -> None:
    if os.getpid() != pid:  # a child that has ended without `abandon`
        return
    is_closing = threading.Lock()
    is_closing.acquire()

    def close() -> None:
        try:
            segment.close()
        finally:
            is_closing.release()

    # `close` joins a thread, and `threading` would keep a dummy for ever of who does so in a thread that it has not
    # made, as `uninterrupted` runs.
    try:
        threading.Thread(target=close, name="close egress ring", daemon=True).start()
    except RuntimeError:  # the interpreter ends, and starts no threads any more
        close()
    is_closing.acquire()


def _close_inherited(ring: RingAnnouncement) -> None:
    """Close every descriptor of this process on a ring: one that is kept would keep the parent's lock."""
    names = [str(SHM_DIR) + name for name in (ring.ctl_name, ring.data_name)]
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # it was that of the listing
            continue
        if target.removesuffix(" (deleted)") in names:
            os.close(fd)
