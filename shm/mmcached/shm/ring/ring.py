"""The writer's interface to a ring: claims space, has it filled in place, commits, evicts.

    claim(nbytes) ── fill ──> commit ──> Handle ── readers find its key, or receive the handle, and take leases
          └──> abort                        │
                                            └─ discarded, or evicted by a later claim

Never waits for a reader: a payload that does not fit now raises `CacheFull`, and the item travels another way. Not
thread-safe: one thread owns a ring. Which process writes which word: see `layout`.

Large records lie in nurseries, shared-memory files into which one client each writes its records: `publish_placed`
publishes a record where it lies.

Invariants: no byte of a chunk under an un-returned lease of a living reader is written; a refused claim has changed
nothing, except that keys may have been missing for a moment.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from typing import Unpack

import numpy as np

from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.chunks import ChunkTable, RingClaim
from mmcached.shm.ring.current_records import CurrentRecords
from mmcached.shm.ring.key_index import KeyIndexWriter, index_words
from mmcached.shm.ring.nursery_table import NurseryTable, Placed, PlacedRecord
from mmcached.shm.ring.ring_readers import RingReaders
from mmcached.shm.ring.ring_settings import RingSettings, check_settings
from mmcached.shm.ring.slot_table import HAS_CRC32, NO_KEY, KeyDigest, SlotRecord, read_slot
from mmcached.shm.ring.touch_logs import is_of_generation
from mmcached.shm.segment.board import Board
from mmcached.shm.segment.layout import ALIGNMENT, Layout, chunk_bytes
from mmcached.shm.segment.mapped import Tables
from mmcached.shm.segment.nursery_files import NurseryFiles
from mmcached.shm.segment.segment import HostCalls, WriterSegment
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import CacheFull, InvalidRequest, ItemTooLarge, LocalProtocolError
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.stats import RingStats


class RingWriter(Closeable):
    """One ring and its two shared-memory objects; `close` unlinks them.

    Args:
        segment: Owned from here on.
        on_evict: Called with the handle of each chunk that a claim evicts, before the claim returns; must not raise and
            must not call the ring.
        on_hit: Called with the handle of each chunk that a reader has found by itself, some time later; may miss a hit.
        settings: See `RingSettings`.

    Attributes:
        records: Finds, reads, keeps and removes records.
        readers: Attached readers, with their leases and hits.
        nurseries: The files of the nurseries.
        placed: The state of the slots for records in nurseries.
        outlives_writer: `close` leaves the ring as it is, for a successor to adopt.
        index: Maps keys to slots for readers; maintained by the store, None if the ring was made without.
        board: The writer's present state, for readers.
    """

    _make_records = CurrentRecords
    """A simulation replaces it."""

    def __init__(
        self,
        segment: WriterSegment,
        *,
        on_evict: Callable[[Handle], None] | None = None,
        on_hit: Callable[[Handle], None] | None = None,
        **settings: Unpack[RingSettings],
    ) -> None:
        layout = segment.control.layout
        num_slots = layout.num_slots - settings.get("num_nursery_slots", 0)
        self.outlives_writer = False
        self.announcement = segment.announcement
        self.on_hit = on_hit
        self.max_object_bytes = min(settings["max_object_bytes"], layout.data_bytes)
        self._has_checksums = settings.get("has_checksums", False)
        self._segment: WriterSegment | None = segment
        self._data = segment.data
        self._tables = Tables(segment.data, layout)
        self.board = Board(self._tables.board)
        self.readers = RingReaders(
            segment.control,
            self.board,
            self._touch_slot,
            quota_bytes=settings.get("reader_quota_bytes"),
            shared_quota_bytes=settings.get("shared_quota_bytes"),
        )
        leases = self.readers.leases
        self._chunks = ChunkTable(
            layout.data_bytes, num_slots, is_leased=leases.is_pinned, leased_slots=leases.pinned_slots
        )
        self.placed = NurseryTable(range(num_slots, layout.num_slots), is_leased=leases.is_pinned)
        self.nurseries = NurseryFiles(segment.announcement)
        self.records = self._make_records(
            segment,
            self._tables,
            self.board,
            chunks=self._chunks,
            placed=self.placed,
            nurseries=self.nurseries,
            tenant=settings.get("tenant", ""),
            is_leased=leases.is_pinned,
            on_evict=on_evict,
        )
        self.index = KeyIndexWriter(self._tables.index) if layout.index_words else None
        self._num_evictions = self._num_refusals = self._num_puts = self._put_bytes = 0
        self.board.set_writer_pid(os.getpid())

    @classmethod
    def create(
        cls,
        *,
        data_bytes: int,
        num_slots: int = 4096,
        max_readers: int = 8,
        has_index: bool = False,
        on_evict: Callable[[Handle], None] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        host: HostCalls | None = None,
        **settings: Unpack[RingSettings],
    ) -> RingWriter:
        """Create a ring with a new random id, in a new epoch; its pages are populated in the background.

        Args:
            data_bytes: Size of the data object, rounded down to the alignment.
            num_slots: Chunks that can exist at a time, records in nurseries included.
            max_readers: Readers that can be attached at a time.
            has_index: Readers can find records by key.

        Raises:
            SegmentError: No space; the text says how much is needed and the next step. Nothing is left behind.
            InvalidRequest: A size is outside its limits.
        """
        check_settings(settings)
        layout = Layout(
            data_bytes - data_bytes % ALIGNMENT, num_slots, max_readers, index_words(num_slots) if has_index else 0
        )
        segment = WriterSegment.create(layout, epoch=clock_ns(), host=host or HostCalls())
        return cls(segment, on_evict=on_evict, **settings)

    # ---- writing

    def claim(self, nbytes: int, note: bytes = b"") -> RingClaim:
        """Find space for `nbytes` of payload; evict only the chunks that lie there.

        Args:
            note: Data about the chunk for a successor of this writer; stored behind the payload.

        Raises:
            ItemTooLarge: The payload can never fit.
            CacheFull: It does not fit beside the leased, pinned and claimed chunks; nothing was evicted.
        """
        self._check_open()
        if nbytes < 1:
            raise InvalidRequest("nbytes", nbytes, "a payload has at least 1 byte")
        if nbytes > self.max_object_bytes or chunk_bytes(nbytes + len(note)) > self._chunks.capacity:
            raise ItemTooLarge(nbytes, self.max_object_bytes, "payload")
        plan = self.records.free_place(nbytes + len(note))
        if plan is None:
            self._num_refusals += 1
            raise CacheFull(nbytes, self._chunks.capacity, self._chunks.pinned_bytes())
        crash_point("evict.after_erase")
        generation, evicted = self._chunks.claim(plan)
        self.board.set_last_generation(generation)
        self._num_evictions += len(evicted)
        crash_point("put.after_evict")
        if (on_evict := self.records.on_evict) is not None:
            for handle in evicted:
                on_evict(handle)
        offset = plan.extent.offset
        buffer = np.frombuffer(self._data, np.uint8, nbytes, offset)
        return RingClaim(plan.extent.slot, generation, offset, nbytes, buffer, note)

    def commit(
        self,
        claim: RingClaim,
        key: KeyDigest = NO_KEY,
        *,
        is_proven: bool = False,
        expires_at: int = 0,
        check: int | None = None,
    ) -> Handle:
        """Publish a filled claim; its buffer must not be written any more.

        Args:
            key: Digest by which readers may find it.
            is_proven: Its content was requested before, so it skips probation; see `allocator`.
            expires_at: Time from which its key is missing, as in `slot_table`; 0: never.
            check: As in `slot_table`; None: computed here, if the ring has checksums.
        """
        self._chunks.check_claimed(claim.slot, claim.generation)
        generation = claim.generation
        if generation <= self.board.floor():  # the ring was cleared since the claim; this chunk is to survive
            generation = self._chunks.new_generation()
            self.board.set_last_generation(generation)
        crash_point("put.before_commit")
        end = claim.offset + claim.nbytes
        if claim.note:
            self._data[end : end + len(claim.note)] = claim.note
        if check is None:
            check = HAS_CRC32 + zlib.crc32(claim.buffer.data) if self._has_checksums else 0
        record = SlotRecord(generation, claim.offset, claim.nbytes, len(claim.note), key, check, expires_at)
        handle = self.records.publish(claim.slot, record)
        self._chunks.publish(handle, is_proven=is_proven)
        self._num_puts += 1
        self._put_bytes += claim.nbytes
        return handle

    def commit_copy(self, claim: RingClaim, former: Handle, *, is_proven: bool) -> Handle:
        """Publish a claim that holds a copy of a current record, with that record's key, expiry and checksum."""
        record, _ = read_slot(self._tables.slots, former.slot)
        handle = self.commit(claim, record.key, is_proven=is_proven, expires_at=record.expires_at, check=record.check)
        self._num_puts -= 1  # it was counted when it was put
        self._put_bytes -= claim.nbytes
        return handle

    def abort(self, claim: RingClaim) -> None:
        """Free the space of a claim, unpublished. Chunks that were evicted for it stay evicted."""
        self._chunks.check_claimed(claim.slot, claim.generation)
        self._chunks.abort(claim.slot)

    def publish_placed(self, record: PlacedRecord, key: KeyDigest = NO_KEY, *, expires_at: int = 0) -> Handle:
        """Publish a record where it lies in its nursery; the client that wrote it must not write there any more.

        Args:
            key, expires_at: As for `commit`.

        Raises:
            ItemTooLarge: It exceeds the largest accepted payload.
            CacheFull: No slot is free.
            StaleHandle: Its nursery is missing or was truncated.
        """
        self._check_open()
        if record.nbytes > self.max_object_bytes:
            raise ItemTooLarge(record.nbytes, self.max_object_bytes, "payload")
        self.nurseries.check_size(record.nursery, record.offset + record.nbytes + record.note_bytes)
        self.placed.check_free(record.nbytes)
        slot, generation = self.placed.next_slot(), self._chunks.new_generation()
        self.board.set_last_generation(generation)
        check = 0 if record.crc32 is None else HAS_CRC32 + record.crc32
        nursery, offset, nbytes, note_bytes, _ = record
        filled = SlotRecord(generation, offset, nbytes, note_bytes, key, check, expires_at, nursery)
        crash_point("put.before_commit")
        handle = self.records.publish(slot, filled)
        self.placed.publish(handle, Placed(nursery, offset, record.size))
        self._num_puts += 1
        self._put_bytes += nbytes
        return handle

    # ---- the object

    def stats(self) -> RingStats:
        segment = self._check_open()
        return RingStats(
            data_bytes=self._chunks.capacity,
            used_bytes=self._chunks.used_bytes + self.placed.used_bytes,
            pinned_bytes=self._chunks.pinned_bytes() + self.placed.kept_bytes(),
            populated_bytes=segment.populated_bytes,
            chunks=len(self._chunks) + len(self.placed),
            leases=self.readers.leases.num_leases(),
            fenced_readers=len(self.readers.leases.fenced_readers()),
            puts=self._num_puts,
            put_bytes=self._put_bytes,
            evictions=self._num_evictions + self.records.num_evicted,
            refusals=self._num_refusals,
        )

    def wait_populated(self, timeout_s: float) -> bool:
        """Wait until all pages of the ring are populated; return False on failure or timeout."""
        return self._check_open().wait_populated(timeout_s)

    def close(self) -> None:
        """Unlink both objects, unless the ring outlives its writer. Attached readers keep their mappings.

        A second call changes nothing.
        """
        if self._segment is None:
            return
        segment, self._segment = self._segment, None
        self._chunks.close()
        self.placed.close()
        if not self.outlives_writer:
            self.board.detach_all()
        self.nurseries.close(keeps_names=self.outlives_writer)
        self.records.close()
        self._tables.close()
        self.index = None
        del self._data, self.readers  # they hold the mappings
        segment.close(keeps_names=self.outlives_writer)

    def _adopt(self) -> None:
        """Take over the ring of a former writer; raise SegmentError if its tables are inconsistent."""
        self.readers.adopt(self.records.occupied_slots)
        crash_point("adopt.after_readers")
        self.records.adopt(self.index)
        crash_point("adopt.before_unlink")
        self.nurseries.remove_others()

    def _touch_slot(self, slot: int, generation_bits: int) -> None:
        handle = self.records.current(slot)
        if handle is not None and is_of_generation(handle.generation, generation_bits):
            self.records.touch(handle)
            if self.on_hit is not None:
                self.on_hit(handle)

    def _check_open(self) -> WriterSegment:
        if self._segment is None:
            raise LocalProtocolError("this ring is closed")
        return self._segment


def adopt_ring(
    announcement: RingAnnouncement,
    layout: Layout,
    **settings: Unpack[RingSettings],
) -> RingWriter:
    """Adopt a ring whose writer is dead: committed chunks stay, and its readers go on reading.

    The payloads are not read; readers check them, if the ring has checksums.

    Args:
        layout: The expected layout.
        settings: See `RingSettings`.

    Raises:
        SegmentError: The ring is missing, or its writer lives: nothing was changed. Or its tables are inconsistent: its
            names were removed, and no reader finds anything in it any more.
        LayoutMismatch: Its layout differs from the expected one; nothing was changed.
    """
    segment = WriterSegment.adopt(announcement, layout)
    crash_point("adopt.after_lock")
    ring = RingWriter(segment, **settings)
    try:
        ring._adopt()
    except Exception:
        crash_point("adopt.before_removal")
        ring.close()
        raise
    return ring
