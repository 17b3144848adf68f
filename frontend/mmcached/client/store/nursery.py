"""Writes large records of this client into its nursery, where the frontend publishes them without a copy.

A nursery is a writer's segment: a shared-memory file into which one client writes large records.

    no nursery ──OpenNursery──> opened ──write──> a place of this client ──its put is sent──> the frontend's, for good
      ▲                           │  ▲                                                              │
      │                           │  └──────grants, in answers: the same place, or others───────────┘
      └── the connection is lost, the frontend has drained the nursery, or a fork

The frontend makes the file. This client may write only into places that were granted to it; a place that was sent is
not touched again unless it is granted anew. Grants come with the answers of the connection over which the nursery was
opened, also with answers that arrive after their call has ended. All grants end with the connection.

Pages without memory are populated by a thread before use: the first touch of a page costs more than ten copies of its
bytes. Records without a free place travel as frames meanwhile, like small records. No call waits. Does not use sockets;
any thread may call any method, and several threads may write at the same time.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.shm import EncodedRecord
from mmcached.shm.ring.extents import Extents
from mmcached.shm.segment.layout import PAGE_BYTES, chunk_bytes, round_up
from mmcached.shm.segment.nursery_files import allocate, open_nursery
from mmcached.shm.segment.pages import Pages
from mmcached.shm.segment.populate import Advice, Populator
from mmcached.wire.errors import MmcachedError, StaleHandle
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages.parts import Grants, NurseryPlace, Stretch

RETRY_S = 30.0
"""Seconds until a client asks for a nursery again after a refusal."""
STEP_BYTES = 1 << 20
"""Bytes populated by one system call: some milliseconds, for which other mappings of this process wait."""


@dataclass(frozen=True, slots=True)
class _Room:
    """A client's space in its nursery; it is replaced, never changed, so that an interrupt leaves it whole.

    Attributes:
        own: Ranges granted, populated and not sent since, including those being filled.
        cold: Ranges granted and not yet populated.
        taken: By request, the range being filled or sent.
        hand: End of the last place; the search for the next one starts there.
    """

    own: Extents
    cold: Extents
    taken: dict[int, Stretch]
    hand: int = 0

    def place(self, size: int) -> int | None:
        free = self.own.copy()
        for begin, end in self.taken.values():
            free.remove(begin, end)
        return free.find(size, self.hand)

    def with_place(self, request_id: int, stretch: Stretch) -> _Room:
        return replace(self, taken={**self.taken, request_id: stretch}, hand=stretch[1])

    def populated(self, begin: int, end: int) -> _Room:
        """Return the room after `[begin, end)` of `cold` was populated; other ranges do not change."""
        own, cold = self.own.copy(), self.cold.copy()
        for stretch in cold.common(begin, end):
            own.add(*stretch)
        cold.remove(begin, end)
        return replace(self, own=own, cold=cold)

    def without(self, request_id: int, *, was_sent: bool) -> _Room:
        """Return the room after a request has ended; its range is lost if it was sent, else free again."""
        stretch = self.taken.get(request_id)
        if stretch is None:
            return self
        own = self.own.copy()
        if was_sent:
            own.remove(*stretch)
        return replace(self, own=own, taken={key: value for key, value in self.taken.items() if key != request_id})

    def granted(self, grants: Grants) -> _Room:
        own, cold = self.own.copy(), self.cold.copy()
        for stretch in grants.places:
            own.add(*stretch)
        for stretch in grants.cold_places:
            cold.add(*stretch)
        return replace(self, own=own, cold=cold)


class ClientNursery:
    """One nursery, from its first grant until its connection is lost.

    Attributes:
        nursery: Number of the nursery.
        is_over: Whether no further record may be written into it.
    """

    def __init__(self, grants: Grants, *, has_checksums: bool) -> None:
        self.nursery = grants.nursery
        self.is_over = False
        self._has_checksums = has_checksums
        self._mapped: tuple[RingAnnouncement, Pages] | None = None
        self._turn = threading.RLock()
        self._is_in_use = False
        self._room = _Room(Extents(), Extents(), {}).granted(grants)
        self._news: deque[Callable[[_Room], _Room]] = deque()
        self._populated: tuple[Stretch, Populator] | None = None

    @property
    def is_mapped(self) -> bool:
        return self._mapped is not None

    def map(self, ring: RingAnnouncement) -> None:
        """Map the file; raise SegmentError or StaleHandle if it cannot be mapped."""
        self._mapped = ring, uninterrupted(partial(open_nursery, ring, self.nursery, is_writer=True))

    def lay(self, request_id: int, encoded: EncodedRecord, note: bytes) -> NurseryPlace | None:
        """Copy a record and its note into a free place; return the place, which the put must name, or None without one.

        The place belongs to this request until `answered` or `free`.

        Raises:
            OSError: No memory for the place.
        """
        mapped = self._mapped
        if mapped is None or self.is_over:
            return None
        ring, pages = mapped
        try:
            stretch = self._take_room(ring, pages, request_id, chunk_bytes(encoded.nbytes + len(note)))
            if stretch is None:
                return None
            offset, end = stretch[0], stretch[0] + encoded.nbytes
            data = np.frombuffer(pages, np.uint8, encoded.nbytes + len(note), offset)
            encoded.write_into(data[: encoded.nbytes])
            data[encoded.nbytes :] = np.frombuffer(note, np.uint8)
            crc32 = zlib.crc32(data[: encoded.nbytes].data) if self._has_checksums else None
        except BaseException:
            self.free(request_id)
            raise
        return None if self.is_over else NurseryPlace(self.nursery, offset, end - offset, len(note), crc32)

    def free(self, request_id: int) -> None:
        """Release the place of a request that was not sent; a request without a place changes nothing."""
        if request_id in self._room.taken:
            self._news.append(partial(_Room.without, request_id=request_id, was_sent=False))

    def answered(self, request_id: int, grants: Grants | None) -> None:
        """Record that a request was answered: its place is the frontend's now. Adds the granted places."""
        # Applied by the next `_take_room`: the thread that reads the socket may call this in the middle of one.
        if request_id in self._room.taken:
            self._news.append(partial(_Room.without, request_id=request_id, was_sent=True))
        if grants is not None and grants.nursery == self.nursery:
            self.granted(grants)

    def granted(self, grants: Grants) -> None:
        """Add the granted places."""
        self._news.append(partial(_Room.granted, grants=grants))

    def close(self) -> None:
        """Release the file; records being written are not published. A second call changes nothing."""
        self.is_over = True
        self._mapped = None
        if (populated := self._populated) is not None:
            populated[1].stop()

    def _take_room(self, ring: RingAnnouncement, pages: Pages, request_id: int, size: int) -> Stretch | None:
        with self._turn:
            if self._is_in_use:  # a signal handler in the middle of its own thread's call
                return None
            try:
                self._is_in_use = True
                while self._news:  # after an exception the entry is applied again, with the same result
                    self._room = self._news[0](self._room)
                    self._news.popleft()
                self._populate(ring, pages)
                offset = self._room.place(size)
                if offset is None:
                    return None
                stretch = offset, offset + size
                self._room = self._room.with_place(request_id, stretch)
                return stretch
            finally:
                self._is_in_use = False

    def _populate(self, ring: RingAnnouncement, pages: Pages) -> None:
        """Add stretches that the thread has populated, and start it on the next stretch.

        Raises:
            OSError: No memory for the stretch.
        """
        while self._populated is not None or self._room.cold:
            if self._populated is None:
                begin, end = next(iter(self._room.cold))
                first = begin // PAGE_BYTES * PAGE_BYTES
                nbytes = round_up(end, PAGE_BYTES) - first
                populator = Populator(pages, Advice.WRITE, begin=first, nbytes=nbytes, step_bytes=STEP_BYTES)
                self._populated = (begin, end), populator
            (begin, end), populator = self._populated
            is_over = populator.is_over
            done = begin // PAGE_BYTES * PAGE_BYTES + populator.populated_bytes
            if is_over and done < end:  # the kernel lacks the call (then pages cost faults), or has no memory
                allocate(ring, self.nursery, begin, end)
                done = end
            self._room = self._room.populated(begin, min(done, end))
            if not is_over:
                break
            self._populated = None


class ClientNurseries:
    """The current nursery of one client id, if it has one.

    Attributes:
        why_inline: The reason why a nursery was refused; empty if none was refused.
    """

    def __init__(self) -> None:
        self.why_inline = ""
        self._nursery: ClientNursery | None = None
        self._lock = threading.RLock()
        self._is_opening = self._is_over = False
        self._retry_at = -float("inf")

    @property
    def number(self) -> int:
        nursery = self._nursery
        return 0 if nursery is None else nursery.nursery

    def begin(self) -> bool:
        """Return whether to open a nursery now; if true, `end` must follow."""
        with self._lock:
            if self._nursery is not None or self._is_opening or self._is_over or time.monotonic() < self._retry_at:
                return False
            self._is_opening = True
            return True

    def end(self, why_not: str = "") -> None:
        """Record that the frontend has answered; `why_not` is the reason for a failure."""
        self._is_opening = False
        if why_not:
            self._refuse(why_not)

    def opened(self, grants: Grants, *, has_checksums: bool) -> None:
        """Adopt a nursery that the frontend has opened, before any later message is handled."""
        with self._lock:
            former = self._nursery
            if former is not None and former.nursery == grants.nursery:
                former.granted(grants)
                return
            self._nursery = None
            if not self._is_over:
                self._nursery = ClientNursery(grants, has_checksums=has_checksums)
        if former is not None:
            former.close()

    def lay(
        self, request_id: int, encoded: EncodedRecord, note: bytes, ring: RingAnnouncement | None
    ) -> NurseryPlace | None:
        """Copy a record into the nursery; return its place, or None if the record must travel as frames.

        Args:
            ring: Ring to which the nursery belongs.
        """
        nursery = self._nursery
        if nursery is None or ring is None:
            return None
        try:
            if not nursery.is_mapped and not nursery.is_over:
                nursery.map(ring)
            place = nursery.lay(request_id, encoded, note)
        except StaleHandle:  # it was drained
            self.lose(nursery.nursery)
            return None
        except (MmcachedError, OSError) as error:
            self._refuse(str(error))
            return None
        if place is not None:
            self.why_inline = ""
        return place

    def free(self, request_id: int) -> None:
        """Release the place of a request that was not sent."""
        if (nursery := self._nursery) is not None:
            nursery.free(request_id)

    def answered(self, request_id: int | None, grants: Grants | None = None) -> None:
        """Record that a request was answered; None if the answer does not say which request, which ends the nursery."""
        if request_id is None:
            self.lose()
        elif (nursery := self._nursery) is not None:
            nursery.answered(request_id, grants)

    def lose(self, number: int | None = None) -> None:
        """Close the nursery, if it has this number; the next large put opens another."""
        with self._lock:
            nursery = self._nursery
            if nursery is None or number not in (None, nursery.nursery):
                return
            self._nursery = None
        nursery.close()

    def close(self) -> None:
        self._is_over = True
        self.lose()

    def abandon(self) -> None:
        """In a forked child: unmap the parent's nursery."""
        self._lock = threading.RLock()  # the thread that held it may not exist here
        self.close()

    def _refuse(self, reason: str) -> None:
        self.why_inline = reason
        self._retry_at = time.monotonic() + RETRY_S
        self.lose()
