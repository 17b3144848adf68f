"""Runs the nurseries of one store: opens them, publishes records there, and keeps space ready.

    OpenNursery       ──> a file and the first places                                 the connection closes ──> drained
    PutRecord(place)  ──> checked by a copy of its head, and published where it lies  the last record goes  ──> removed
    between messages  ──> the oldest record of the nursery that gives way: leased by a reader? skipped
                              asked for, or the ring has free space? copied there, slice by slice; else evicted

A client may write into its nursery at any instant, also while a record is read: it can only change its own values. The
work for a put does not grow with the record. Allocation and eviction order: `nurseries`.
"""

from __future__ import annotations

import os
import resource

import msgspec
import numpy as np

from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.connections.rings import NoRing
from mmcached.frontend.store.nurseries import NurseryAllocator
from mmcached.frontend.store.nursery_copies import NurseryCopies
from mmcached.frontend.store.nursery_space import NurserySpace
from mmcached.frontend.store.record_store import RecordStore
from mmcached.shm import RingWriter
from mmcached.shm.ring.nursery_table import Placed, PlacedRecord
from mmcached.shm.segment.layout import PAGE_BYTES, round_up
from mmcached.shm.store import codec
from mmcached.shm.store.codec import EncodedRecord
from mmcached.shm.store.record_head import head_of
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvariantError, RemoteProtocolError, ServiceUnavailable
from mmcached.wire.limits import RESERVED_DESCRIPTORS
from mmcached.wire.messages.parts import MIN_PLACED_BYTES, Grants, NurseryPlace
from mmcached.wire.stats import RingStats

STEPS_PER_TURN = 64
STEPS_PER_PUT = 2
FREE_SLOTS = 4


class NurseryService:
    """The nurseries of one store.

    Attributes:
        num_puts: Records published where they lie.
        num_refusals: Records put inline because no place was free.
        copies: Copies of records into the ring.
        is_stuck: Whether no space can be made now.
    """

    def __init__(self, config: ServiceConfig, records: RecordStore, channel: Channel) -> None:
        self._records = records
        self._channel = channel
        self._max_nurseries = config.limits.max_nurseries
        self._size = round_up(config.store_nursery_bytes, PAGE_BYTES)
        self._has_checksums = config.ring_has_checksums
        self.books = NurseryAllocator(config.store_nursery_bytes)
        self.copies = NurseryCopies(records.in_ring)
        self.num_puts = self.num_refusals = 0
        self.is_stuck = False

    @property
    def max_record_bytes(self) -> int:
        """The maximum size of a record with its note in a nursery; 0: there are no nurseries."""
        return self.books.max_record_bytes if self._size and self._records.takes_records else 0

    def ring_stats(self) -> RingStats:
        """Return the figures of the ring, with the nurseries' share of the bytes."""
        stats = self._records.ring.stats()
        data_bytes = stats.data_bytes + (self.books.budget_bytes if stats.data_bytes else 0)
        evictions = stats.evictions + self._records.in_ring.num_share_evictions
        return msgspec.structs.replace(stats, data_bytes=data_bytes, evictions=evictions)

    @property
    def has_slot(self) -> bool:
        """Whether one more record can be published where it lies."""
        ring = self._records.ring
        return not isinstance(ring, NoRing) and ring.placed.num_free > 0

    @property
    def has_work(self) -> bool:
        """Whether `work` can do work now."""
        return self.copies.is_open or (not self.is_stuck and (self._is_short_of_slots or self.books.is_short))

    def adopt(self) -> None:
        """Take over the nurseries of the records' new ring; their writers add no further records."""
        ring = self._records.ring
        if isinstance(ring, NoRing):
            return
        ring.placed.on_free = self._freed
        by_nursery: dict[int, list[tuple[int, Placed]]] = {}
        for slot, place in ring.placed.places():
            by_nursery.setdefault(place.nursery, []).append((slot, place))
        for nursery, places in by_nursery.items():
            for begin, end in self.books.adopt(nursery, ring.nurseries.nbytes(nursery) or self._size, places):
                ring.nurseries.punch(nursery, begin, end)
        for nursery in ring.nurseries:
            if nursery not in by_nursery:
                ring.nurseries.remove(nursery)

    # ---- messages

    def open(self, peer: bytes, nbytes: int, nursery: int = 0) -> Grants:
        """Make a nursery for a connection, in place of its former one, or more space in its present nursery.

        Args:
            nbytes: Size of the record that needs a place.
            nursery: Number of the client's nursery; 0: none.

        Raises:
            ServiceUnavailable: Too many nurseries are open, or no records are kept.
            SegmentError: /dev/shm is full.
        """
        ring = self._records.ring
        if isinstance(ring, NoRing) or not self.max_record_bytes:
            raise ServiceUnavailable("the service has no nurseries", field="store_nursery_share", limit=0)
        size = min(nbytes, self.max_record_bytes)
        if (former := self.books.of(peer)) is not None:
            if former.nursery == nursery:
                self.books.want(former, size, found_none=True)
                self._make_enough(STEPS_PER_TURN, size)
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
            StaleHandle: The place is not this connection's, or was cut off; the client may send frames.
            RemoteProtocolError: No valid record of that size lies there.
        """
        record = PlacedRecord(place.nursery, place.offset, place.nbytes, place.note_bytes, place.crc32)
        one = self.books.take(peer, place.nursery, place.offset, record.size)
        try:
            if record.nbytes + record.note_bytes > self.max_record_bytes:
                raise RemoteProtocolError(f"a record of {place.nbytes} bytes", "place")
            head_of(lambda nbytes: self._read(record, nbytes).data, record.nbytes)
        except BaseException:
            self.books.give_back(one, _place_of(record))
            raise
        return record

    def copy(self, record: PlacedRecord) -> EncodedRecord:
        """Copy a record out of its nursery that is not kept there.

        Raises:
            StaleHandle, RemoteProtocolError: Its client has overwritten or cut it since.
        """
        return codec.adopt(self._read(record, record.nbytes))

    def settle(self, peer: bytes, record: PlacedRecord) -> None:
        """End the work of `take`: the place becomes a record's, or the client's again."""
        one, place, placed = self.books.of(peer), _place_of(record), self._ring.placed
        if one is None:
            raise InvariantError(f"nursery {record.nursery} was drained in the middle of a put")
        # Ask the ring: a record that has expired meanwhile, and is leased, still has its place, but not its key.
        slot = placed.last_slot
        if slot is not None and placed.place(slot) == place:
            handle = placed.current(slot)
            self.books.keep(one, slot, place, goes_first=handle is not None and placed.was_hit(handle))
            self.num_puts += 1
        else:
            self.books.give_back(one, place)

    def came_inline(self, peer: bytes, nbytes: int) -> None:
        """Record a put that came as frames, perhaps because no place was free."""
        one = self.books.of(peer)
        if one is not None and nbytes >= MIN_PLACED_BYTES and nbytes <= self.max_record_bytes:
            self.num_refusals += 1
            self.books.came_inline(one, nbytes + PAGE_BYTES)

    def grants(self, peer: bytes) -> Grants | None:
        """Return the ranges newly granted to a connection."""
        one = self.books.of(peer)
        if one is None:
            return None
        if not (self.is_stuck or one.prepared or one.has_room(one.largest)):
            self._make_enough(STEPS_PER_PUT)  # a turn may have many puts: do not make space only at its end
        return self.books.grants(peer)

    # ---- between messages

    def check(self) -> None:
        """Drain the nurseries of closed connections; look again at records that readers had leased."""
        for peer in self.books.peers:
            if peer not in self._channel and (one := self.books.of(peer)) is not None:
                self._drain(one)
        ring = self._records.ring
        if not isinstance(ring, NoRing):
            ring.records.free_islands()
        self.is_stuck = False

    def work(self) -> None:
        """Go on with a copy, and make space where a client has too little; a bounded share of a turn."""
        self._make_enough(STEPS_PER_TURN)

    def _make_enough(self, num_steps: int, num_copied_bytes: int = 0) -> None:
        enough = self.copies.num_bytes + num_copied_bytes
        for _ in range(num_steps):
            if self.copies.is_open:
                if self.copies.num_bytes > enough:
                    return
                self.copies.step()
                self.is_stuck = False
                continue
            needy: list[NurserySpace | None] = [*self.books.needy()]
            if self._is_short_of_slots:
                needy.append(None)
            if not needy or self.copies.num_bytes > enough:
                return
            if not any(map(self._make_room, needy)):
                self.is_stuck = True
                return

    @property
    def _is_short_of_slots(self) -> bool:
        ring = self._records.ring
        return not isinstance(ring, NoRing) and ring.placed.num_free < FREE_SLOTS and len(ring.placed) > 0

    def _make_room(self, needy: NurserySpace | None) -> bool:
        """Remove one record, or begin to copy it; return False if none can be removed.

        Args:
            needy: Nursery that needs space; None: slots are needed.
        """
        ring = self._ring
        evicts = needy is None or not needy.is_waiting
        for one in self.books.to_go(needy):
            if needy is not None and one is not needy:  # its memory is of use
                if one.free:
                    self._punch(one, one.squeeze())
                    return True
                if self.books.is_idle(one):
                    self._drain(one)
                    return True
            for _ in range(len(one.records)):
                slot = next(iter(one.records))
                handle = ring.placed.current(slot)
                if handle is not None and not ring.records.is_leased(handle):  # a pinned one may still be copied
                    if self.copies.begin(handle) or (evicts and self._records.in_ring.evict(handle)):
                        return True
                    if not evicts:
                        return False
                one.records.move_to_end(slot)
        return False

    # ---- internals

    @property
    def _ring(self) -> RingWriter:
        ring = self._records.ring
        assert not isinstance(ring, NoRing)
        return ring

    def _read(self, record: PlacedRecord, nbytes: int) -> Bytes1D:
        """Return a copy of the first bytes of a put record; raise StaleHandle if the file is too short."""
        copy = np.empty(nbytes, np.uint8)
        self._ring.nurseries.read_into(record.nursery, record.offset, copy)
        return copy

    def _drain(self, one: NurserySpace) -> None:
        self._punch(one, self.books.drain(one))
        self._remove_if_empty(one)

    def _punch(self, one: NurserySpace, stretches: list[tuple[int, int]]) -> None:
        for begin, end in stretches:
            self._ring.nurseries.punch(one.nursery, begin, end)

    def _freed(self, slot: int, place: Placed) -> None:
        """Free a record's place; in a drained nursery its memory is returned to the kernel."""
        one = self.books.get(place.nursery)
        stretch = self.books.freed(slot, place)
        if one is not None and stretch is not None:
            self._punch(one, [stretch])
            self._remove_if_empty(one)

    def _remove_if_empty(self, one: NurserySpace) -> None:
        if one.peer is None and not one.records:
            self.books.remove(one)
            self._ring.nurseries.remove(one.nursery)

    def _remove_one(self) -> bool:
        """Evict the records of the smallest drained nursery that can be emptied; return False if all have readers."""
        ring = self._ring
        drained = sorted((one for one in self.books if one.peer is None), key=lambda one: one.held_bytes)
        num_nurseries = len(self.books)
        for one in drained:
            for slot in list(one.records):
                if (handle := ring.placed.current(slot)) is not None:
                    self._records.in_ring.evict(handle)
            if len(self.books) < num_nurseries:
                return True
        return False

    def _has_descriptor(self) -> bool:
        """Return whether one more descriptor leaves the reserve untouched."""
        fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.close(fd)
        return fd < resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_DESCRIPTORS


def _place_of(record: PlacedRecord) -> Placed:
    return Placed(record.nursery, record.offset, record.size)
