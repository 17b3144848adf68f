"""Plays the product's store as a cache: its records, ring, nurseries and policy, without the bytes of a record.

    a miss, small or larger than a quarter of the nurseries  ──> put as frames: into the main ring
    a miss else  ──> laid into the nursery of its writer, in a place that was granted, and published there

Which writer puts a record is drawn. Between two requests the store has time for all that it wants to do: what has to
leave a nursery is copied or evicted at once. A writer is `Writer`, which stands for the product's client: it fills the
first place that is large enough, and asks once for more room. Everything else is what the service runs.

Invariant: nurseries and main ring together hold `capacity` bytes at most.
"""

from __future__ import annotations

import mmap
import os
import random
import weakref
from collections.abc import Hashable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mmcached.cache.store_keys import about_record, store_key
from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.store.nursery_service import NurseryService
from mmcached.frontend.store.record_store import RecordStore
from mmcached.shm import EncodedRecord
from mmcached.shm.ring.chunks import RingClaim
from mmcached.shm.ring.current_records import CurrentRecords
from mmcached.shm.ring.extents import Extents
from mmcached.shm.ring.nursery_table import PlacedRecord
from mmcached.shm.ring.ring import RingWriter
from mmcached.shm.ring.service_layout import num_nursery_slots, service_layout
from mmcached.shm.segment.layout import Layout, chunk_bytes
from mmcached.shm.segment.mapped import Control, map_object
from mmcached.shm.segment.nursery_files import NurseryFiles
from mmcached.shm.segment.segment import WriterSegment
from mmcached.shm.store.record_note import pack_note
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import StaleHandle
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.messages.parts import MIN_PLACED_BYTES, Grants

NUM_SLOTS = 1 << 15
NURSERY_SHARE = ServiceConfig().store_nursery_share
NO_BYTES = np.empty(0, np.uint8)
NAME = "simulation"


class StoreCache:
    """A store of `capacity` bytes.

    Args:
        num_writers: clients, each with a nursery; 0: the store has no nurseries, and all goes into the main ring.
        nursery_share: as the setting `store_nursery_share`.
    """

    def __init__(self, capacity: int, num_writers: int = 1, nursery_share: float = NURSERY_SHARE) -> None:
        config = ServiceConfig(
            mm_processor_cache_gb=0,
            store_gb=capacity / GIB,
            store_nursery_share=nursery_share if num_writers else 0.0,
            store_num_slots=NUM_SLOTS,
            store_max_clients=1,
        )
        layout = service_layout(config)
        assert layout is not None
        ring = _Ring(
            _Segment(layout),
            max_object_bytes=config.store_max_object_bytes,
            num_nursery_slots=num_nursery_slots(config),
        )
        ring.nurseries = _Files(ring.announcement)
        weakref.finalize(self, ring.close)
        self.records = RecordStore.from_config(config)
        self.records.adopt(ring)
        peers = [str(number).encode() for number in range(num_writers)]
        self.service = NurseryService(config, self.records, cast(Channel, peers))
        self.service.adopt()
        self._writers = [Writer(self.records, self.service, peer) for peer in peers] or [
            Writer(self.records, self.service, b"")
        ]
        self._rng = random.Random(0)

    def request(self, key: Hashable, size: int, cost_s: float = 0.0) -> bool:
        name = str(key)
        if self.records.get("", name, counts=False) is not None:
            return True
        self._rng.choice(self._writers).put(name, size, cost_s)
        while self.service.has_work:
            self.service.work()
        return False


class Writer:
    """A client that puts records, and its nursery if it has one."""

    def __init__(self, records: RecordStore, service: NurseryService, peer: bytes) -> None:
        self._records = records
        self._service = service
        self._peer = peer
        self._leave()

    def put(self, key: str, nbytes: int, cost_s: float = 0.0) -> bool:
        """Put a record; return whether the store keeps it."""
        if nbytes >= MIN_PLACED_BYTES and nbytes <= self._service.max_record_bytes:
            offset = self._place(nbytes)
            if offset is None:
                self._granted(self._service.open(self._peer, nbytes, self._nursery))
                offset = self._place(nbytes)
            if offset is not None:
                try:
                    return self._put_placed(key, PlacedRecord(self._nursery, offset, nbytes, 0), cost_s)
                except StaleHandle:  # the store has drained the nursery
                    self._leave()
        self._service.came_inline(self._peer, nbytes)
        return self._keep(key, _Encoded(nbytes), cost_s)

    def _put_placed(self, key: str, record: PlacedRecord, cost_s: float) -> bool:
        size = record.size
        self._room.remove(record.offset, record.offset + size)
        self._hand = record.offset + size
        self._service.books.take(self._peer, record.nursery, record.offset, size)
        note = pack_note(store_key("", key), about_record("", key, 0, cost_s))
        cast(_Records, self._records.ring.records).place_to_note[record.nursery, record.offset] = note
        is_kept = self._keep(key, record if self._service.has_slot else _Encoded(record.nbytes), cost_s)
        self._service.settle(self._peer, record)
        self._granted(self._service.grants(self._peer))
        return is_kept

    def _keep(self, key: str, record: _Encoded | PlacedRecord, cost_s: float) -> bool:
        encoded = record if isinstance(record, PlacedRecord) else cast(EncodedRecord, record)
        return self._records.put("", key, encoded, epoch=self._records.epoch, cost_s=cost_s) is None

    def _leave(self) -> None:
        self._nursery, self._room, self._hand = 0, Extents(), 0

    def _place(self, nbytes: int) -> int | None:
        return self._room.find(chunk_bytes(nbytes), self._hand)

    def _granted(self, grants: Grants | None) -> None:
        if grants is None:
            return
        if grants.nursery != self._nursery:
            self._leave()
            self._nursery = grants.nursery
        for begin, end in (*grants.places, *grants.cold_places):
            self._room.add(begin, end)


class _Encoded:
    """A record as it is sent, without its bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def write_into(self, buffer: npt.NDArray[np.uint8]) -> None:
        pass


class _Records(CurrentRecords):
    """Records whose payloads are never read."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.place_to_note: dict[tuple[int, int], bytes] = {}

    def note(self, handle: Handle) -> bytes:
        return self.place_to_note[handle.nursery, handle.offset]

    def read_into(self, handle: Handle, begin: int, buffer: npt.NDArray[np.uint8]) -> None:
        pass


class _Ring(RingWriter):
    """A ring whose tables are real, and whose payloads and notes are never written or read."""

    _make_records = _Records

    def claim(self, nbytes: int, note: bytes = b"") -> RingClaim:
        return super().claim(nbytes, note)._replace(buffer=NO_BYTES, note=b"")


class _Files(NurseryFiles):
    """Nurseries without files."""

    def create(self, nursery: int, nbytes: int, *, first_bytes: int) -> None:
        pass

    def check_size(self, nursery: int, nbytes: int) -> None:
        pass

    def punch(self, nursery: int, begin: int, end: int) -> None:
        pass

    def remove(self, nursery: int) -> None:
        pass


class _Segment(WriterSegment):
    """The two objects of a ring without names; pages that are never touched take no memory."""

    def __init__(self, layout: Layout) -> None:
        sizes = (layout.data_bytes, layout.num_slots, layout.max_readers, layout.index_words)
        self.announcement = RingAnnouncement(os.getuid(), NAME, 1, *sizes)
        self.control = Control(_memory(layout.ctl_bytes), layout)
        self.control.map_all()
        fd = _memory(layout.data_object_bytes)
        try:
            self.data: mmap.mmap = map_object(fd, layout.data_object_bytes)
        finally:
            os.close(fd)

    def close(self, *, keeps_names: bool = False) -> None:
        self.control.close()
        del self.data


def _memory(nbytes: int) -> int:
    fd = os.memfd_create(NAME)
    os.ftruncate(fd, nbytes)
    return fd
