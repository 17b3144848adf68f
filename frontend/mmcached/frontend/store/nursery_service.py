"""Runs the nurseries of one store: opens them, publishes what clients lay there, and keeps room ready.

    OpenNursery       ──> a file, mapped here read-only, and the first places         the connection closes ──> drained
    PutRecord(place)  ──> judged by a copy of its head, and published where it lies   the last record goes  ──> removed
    between messages  ──> the oldest record of the nursery that gives way: kept by a reader? passed over
                              asked for, or the ring has free room? copied there, slice by slice; else evicted

A client may write into its nursery at any instant, also while a record is read: what it changes is its own values. The
work for a put does not grow with the record. Which nursery gives way, and what is whose: `nurseries`.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

import numpy as np

from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.connections.rings import NoRing
from mmcached.frontend.store.nurseries import Nurseries, Nursery
from mmcached.frontend.store.record_store import RecordStore
from mmcached.shm.ring.nursery_table import Placed, PlacedRecord
from mmcached.shm.ring.ring import Claim
from mmcached.shm.segment.layout import PAGE_BYTES, round_up
from mmcached.shm.store import codec
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvariantError, RemoteProtocolError, ServiceUnavailable, StaleHandle
from mmcached.wire.handle import Handle
from mmcached.wire.messages.parts import MIN_PLACED_BYTES, Grants, NurseryPlace

SLICE_BYTES = 1 << 20
"""Of a copy, at a time: a fifth of a millisecond or so."""
COPIED_PER_TURN = 4 * SLICE_BYTES
STEPS_PER_TURN = 64
STEPS_PER_PUT = 2
FREE_SLOTS = 4


@dataclass(slots=True)
class _Copy:
    """A record that is being copied into the ring."""

    handle: Handle
    claim: Claim
    was_hit: bool
    num_bytes: int = 0


class NurseryService:
    """The nurseries of one store.

    Attributes:
        num_puts, num_refusals, num_promotions: records that were published where they lay; that were put inline for
            want of room; that were copied into the ring.
        is_stuck: there is no room to be had now.
    """

    def __init__(self, config: ServiceConfig, records: RecordStore, channel: Channel) -> None:
        self._records = records
        self._channel = channel
        self._max_nurseries = config.limits.max_nurseries
        self._reserved_descriptors = config.limits.reserved_descriptors
        self._size = round_up(config.store_nursery_bytes, PAGE_BYTES)
        self._has_checksums = config.ring_has_checksums
        self.books = Nurseries(config.store_nursery_bytes)
        self.num_puts = self.num_refusals = self.num_promotions = 0
        self.is_stuck = False
        self._copy: _Copy | None = None
        self._num_copied_bytes = 0

    @property
    def max_record_bytes(self) -> int:
        """Of a record with its note that is laid into a nursery; 0: there are none."""
        return self.books.max_record_bytes if self._size and self._records.takes_records else 0

    @property
    def has_slot(self) -> bool:
        """Whether one record more can be published where it lies."""
        ring = self._records.ring
        return not isinstance(ring, NoRing) and ring.placed.num_free > 0

    @property
    def has_work(self) -> bool:
        """Whether `work` has something to do at once."""
        return self._copy is not None or (not self.is_stuck and (self._lacks_slots or self.books.needy() is not None))

    def adopt(self) -> None:
        """Take over the nurseries of the ring that the records have now; their writers lay nothing there any more."""
        ring = self._records.ring
        if isinstance(ring, NoRing):
            return
        ring.placed.on_free = self._freed
        by_nursery: dict[int, list[tuple[int, Placed]]] = {}
        for slot, place in ring.placed.places():
            by_nursery.setdefault(place.nursery, []).append((slot, place))
        for nursery, places in by_nursery.items():
            for begin, end in self.books.adopt(nursery, ring.nurseries.adopt(nursery) or self._size, places):
                ring.nurseries.punch(nursery, begin, end)
        for nursery in ring.nurseries:
            if nursery not in by_nursery:
                ring.nurseries.remove(nursery)

    # ---- messages

    def open(self, peer: bytes, nbytes: int, nursery: int = 0) -> Grants:
        """Make a nursery for a connection, in place of its former one, or room in the one that it has.

        Args:
            nbytes: of the record for which there is to be room.
            nursery: that its client has; 0: none.
        Raises:
            ServiceUnavailable: too many are open, or nothing is kept.
            SegmentError: there is no room in /dev/shm.
        """
        ring = self._records.ring
        if isinstance(ring, NoRing) or not self.max_record_bytes:
            raise ServiceUnavailable("the service has no nurseries", field="store_nursery_share", limit=0)
        size = min(nbytes, self.max_record_bytes)
        if (former := self.books.of(peer)) is not None:
            if former.nursery == nursery:
                self.books.want(former, size, found_none=True)
                for _ in range(1 + size // COPIED_PER_TURN):  # else it is sent, and copied as well
                    self.work()
                return self.books.grants(peer) or Grants(nursery, [], [])
            self._drain(former)
        while len(self.books) >= self._max_nurseries or not self._has_descriptor():
            if not self._remove_one():
                reason = (
                    f"{len(self.books)} nurseries are open (limits.max_nurseries), or no descriptors are left for more"
                )
                raise ServiceUnavailable(reason, field="limits.max_nurseries", limit=self._max_nurseries)
        nursery = ring.board.new_nursery()  # before the file has a name
        ring.nurseries.create(nursery, self._size, first_bytes=size)
        self.books.open(nursery, self._size, peer)
        one = self.books.of(peer)
        assert one is not None
        self.books.want(one, size, found_none=True)
        self.work()
        return self.books.grants(peer) or Grants(nursery, [], [])

    def take(self, peer: bytes, place: NurseryPlace) -> PlacedRecord:
        """Take a record that a client has put; `settle` must follow.

        Raises:
            StaleHandle: the place is not this connection's, or was cut off; it may send frames.
            RemoteProtocolError: there is no record of that size.
        """
        record = PlacedRecord(place.nursery, place.offset, place.nbytes, place.note_bytes, place.crc32)
        one = self.books.take(peer, place.nursery, place.offset, record.size)
        try:
            if record.nbytes + record.note_bytes > self.max_record_bytes:
                raise RemoteProtocolError(f"a record of {place.nbytes} bytes", "place")
            head = codec.head_of(self._view(record))
            if head.nbytes != place.nbytes:
                raise RemoteProtocolError(f"a record of {head.nbytes} bytes in {place.nbytes}", "place")
        except BaseException:
            self.books.give_back(one, _place_of(record))
            raise
        return record

    def frames(self, record: PlacedRecord) -> list[codec.Frame]:
        """Copy a record out of its nursery that is not kept."""
        return codec.split(self._view(record))

    def settle(self, peer: bytes, record: PlacedRecord, handle: Handle | None) -> None:
        """End what `take` has begun.

        Args:
            handle: what its key has now, if it has something.
        """
        one, place = self.books.of(peer), _place_of(record)
        if one is None:  # it was drained meanwhile, as by an error
            return
        if handle is not None and (handle.nursery, handle.offset) == (record.nursery, record.offset):
            ring = self._records.ring
            came_back = not isinstance(ring, NoRing) and ring.placed.was_hit(handle)
            self.books.keep(one, handle.slot, place, goes_first=came_back)
            self.num_puts += 1
        else:
            self.books.give_back(one, place)

    def came_inline(self, peer: bytes, nbytes: int) -> None:
        """Take note of a record that came as frames, perhaps because there was no room for it."""
        one = self.books.of(peer)
        if one is not None and nbytes >= MIN_PLACED_BYTES and nbytes <= self.max_record_bytes:
            self.num_refusals += 1
            self.books.came_inline(one, nbytes + PAGE_BYTES)

    def grants(self, peer: bytes) -> Grants | None:
        """Return what a connection may use of its nursery beside what it has."""
        if not self.is_stuck:  # a turn may have many puts: room is not only made at its end
            self._make_enough(STEPS_PER_PUT)
        return self.books.grants(peer)

    # ---- between messages

    def check(self) -> None:
        """Drain the nurseries of connections that are closed; look again at what somebody has kept."""
        for peer in self.books.peers:
            if peer not in self._channel and (one := self.books.of(peer)) is not None:
                self._drain(one)
        ring = self._records.ring
        if not isinstance(ring, NoRing):
            ring.free_islands()
        self.is_stuck = False

    def work(self) -> None:
        """Go on with a copy, and make room where a client has too little; a bounded share of a turn."""
        if isinstance(self._records.ring, NoRing):
            return
        if self._copy is not None:
            self._go_on()
        self._make_enough(STEPS_PER_TURN)

    def _make_enough(self, num_steps: int) -> None:
        enough = self._num_copied_bytes + COPIED_PER_TURN
        needy = self.books.needy()
        for _ in range(num_steps):
            if self._num_copied_bytes >= enough:
                return
            if needy is None and not self._lacks_slots:
                return
            if not self._make_room(needy):
                self.is_stuck = True
                return
            if self._copy is None:  # else nothing is free yet that was not
                needy = self.books.needy()

    @property
    def _lacks_slots(self) -> bool:
        ring = self._records.ring
        return not isinstance(ring, NoRing) and len(ring.placed) > 0 and ring.placed.num_free < FREE_SLOTS

    def _make_room(self, needy: Nursery | None) -> bool:
        """Let one record go, or copy a slice of it; return False if none can go."""
        ring = self._records.ring
        assert not isinstance(ring, NoRing)
        if self._copy is not None:
            self._go_on()
            return True
        for one in self.books.to_go(needy):
            if one is not needy and one.free:
                self._punch(one, self.books.squeeze(one))
                return True
            if one is not needy and self.books.is_idle(one):
                self._drain(one)
                return True
            for _ in range(len(one.records)):
                slot = next(iter(one.records))
                handle = ring.placed.current(slot)
                is_kept = handle is None or ring.is_kept(handle)
                if handle is not None and not is_kept and (self._begin_copy(handle) or self._records.evict(handle)):
                    return True
                one.records.move_to_end(slot)
        return False

    def _begin_copy(self, handle: Handle) -> bool:
        """Begin to copy a record into the ring that was asked for, or for which that has free room."""
        ring = self._records.ring
        was_hit = not isinstance(ring, NoRing) and ring.placed.was_hit(handle)
        claim = self._records.begin_copy(handle, evicts=was_hit)
        if claim is None:
            return False
        self._copy = _Copy(handle, claim, was_hit)
        return True

    def _go_on(self) -> None:
        """Copy one slice more."""
        copy = self._copy
        assert copy is not None
        begin, end = copy.num_bytes, min(copy.num_bytes + SLICE_BYTES, copy.handle.nbytes)
        ring = self._records.ring
        assert not isinstance(ring, NoRing)
        try:
            np.copyto(copy.claim.buffer[begin:end], ring.read(copy.handle)[begin:end])
        except StaleHandle:  # it was dropped, or its nursery was cut short
            self._copy = None
            self._records.abort_copy(copy.handle, copy.claim)
            return
        copy.num_bytes = end
        self._num_copied_bytes += end - begin
        self.is_stuck = False
        if end == copy.handle.nbytes:
            self._copy = None
            self.num_promotions += self._records.end_copy(copy.handle, copy.claim, is_proven=copy.was_hit)

    # ---- how

    def _view(self, record: PlacedRecord) -> Bytes1D:
        ring = self._records.ring
        if isinstance(ring, NoRing):
            raise StaleHandle("there is no ring")
        return ring.nurseries.view(record.nursery, record.offset, record.nbytes)

    def _drain(self, one: Nursery) -> None:
        self._punch(one, self.books.drain(one))
        self._remove_if_empty(one)

    def _punch(self, one: Nursery, stretches: list[tuple[int, int]]) -> None:
        ring = self._records.ring
        if not isinstance(ring, NoRing):
            for begin, end in stretches:
                ring.nurseries.punch(one.nursery, begin, end)

    def _freed(self, slot: int, place: Placed) -> None:
        """Take note that a record's place is free; where nobody lays anything any more the kernel gets it."""
        one = self.books.get(place.nursery)
        stretch = self.books.freed(slot, place)
        if one is not None and stretch is not None:
            self._punch(one, [stretch])
            self._remove_if_empty(one)

    def _remove_if_empty(self, one: Nursery) -> None:
        ring = self._records.ring
        if one.peer is None and not one.records and not isinstance(ring, NoRing):
            self.books.remove(one)
            ring.nurseries.remove(one.nursery)

    def _remove_one(self) -> bool:
        """Let the records of a drained nursery go, the smallest one; return False if all have readers."""
        ring = self._records.ring
        assert not isinstance(ring, NoRing)
        drained = sorted((one for one in self.books if one.peer is None), key=lambda one: one.held_bytes)
        num_nurseries = len(self.books)
        for one in drained:
            for slot in list(one.records):
                if (handle := ring.placed.current(slot)) is not None:
                    self._records.evict(handle)
            if len(self.books) < num_nurseries:
                return True
        return False

    def _has_descriptor(self) -> bool:
        """Return whether one more mapping, which keeps a descriptor, leaves the reserve alone."""
        fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.close(fd)
        return fd < resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self._reserved_descriptors

    def check_integrity(self) -> None:
        """Raise InvariantError if the books contradict each other, or those of the ring."""
        self.books.check_integrity()
        ring = self._records.ring
        if not isinstance(ring, NoRing):
            ours = {slot: place for one in self.books for slot, place in one.records.items()}
            if ours != dict(ring.placed.places()):
                raise InvariantError("the nurseries and the ring do not have the same records")


def _place_of(record: PlacedRecord) -> Placed:
    return Placed(record.nursery, record.offset, record.size)
