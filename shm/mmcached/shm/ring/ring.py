"""The writer's interface to a ring: claims space, has it filled in place, commits, evicts.

    claim(nbytes) ── fill ──> commit ──> Handle ── readers find its key, or receive the handle, and take leases
          └──> abort                        │
                                            └─ discarded, or evicted by a later claim

Never waits for a reader: a payload that does not fit now raises `CacheFull`, and the item travels another way. Not
thread-safe: one thread owns a ring. Which process writes which word: see `layout`.

Large records lie in nurseries, shared-memory files into which one client each writes its records: `publish_placed`
publishes a record where it lies, `evict` and `discard` free its place.

Invariants: no byte of a chunk under an un-returned lease of a living reader is written; a refused claim has changed
nothing, except that keys may have been missing for a moment.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.adoption import adopt_chunks, occupied_slots
from mmcached.shm.ring.allocator import EvictionPlan
from mmcached.shm.ring.chunks import ChunkTable
from mmcached.shm.ring.key_index import KeyIndexWriter, index_words
from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.ring.nursery_table import NurseryTable, Placed, PlacedRecord
from mmcached.shm.ring.reader_watch import ReaderStopped, ReaderVoided, ReaderWatch
from mmcached.shm.ring.self_lease import seal
from mmcached.shm.ring.slot_table import (
    EXPIRY,
    HAS_CRC32,
    MAX_NOTE_BYTES,
    NO_KEY,
    NOTE_BYTES,
    SECOND_KEY,
    KeyDigest,
    SlotRecord,
    SlotTable,
    boot_ns,
    read_slot,
)
from mmcached.shm.ring.touch_logs import TouchLogs, is_of_generation
from mmcached.shm.segment.board import NO_LIMIT, Board
from mmcached.shm.segment.layout import ALIGNMENT, PID_WORD, SLOT_WORDS, Layout, chunk_bytes
from mmcached.shm.segment.mapped import Tables
from mmcached.shm.segment.nursery_files import NurseryFiles
from mmcached.shm.segment.segment import HostCalls, WriterSegment
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import (
    CacheFull,
    InvalidRequest,
    ItemTooLarge,
    LocalProtocolError,
    StaleHandle,
)
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.stats import RingStats

MAX_PLANS = 32
"""Attempts to find a place while readers take leases on just the chunks that would be evicted."""

SWEPT_SLOTS = 4096
"""Slots that are checked for expired chunks at a time: 30 µs."""


class RingClaim(NamedTuple):
    """Space for one payload that is not published yet.

    Attributes:
        offset: Of the payload in the data object, bytes.
        buffer: `(nbytes,)` uint8, writable, in the ring itself; do not use it after commit or abort.
        note: Bytes that are stored behind the payload.
    """

    slot: int
    generation: int
    offset: int
    nbytes: int
    buffer: npt.NDArray[np.uint8]
    note: bytes


class RingWriter(Closeable):
    """One ring and its two shared-memory objects; `close` unlinks them.

    Args:
        segment: Owned from here on.
        max_object_bytes: The largest accepted payload.
        reader_quota_bytes: Bytes that one reader may hold under lease; None for no limit.
        shared_quota_bytes: Bytes that all readers together may hold under leases that they take by themselves; the
            readers observe this limit.
        has_checksums: Store a crc32 of each payload in its slot; readers then check every view (about 4 GB/s).
        on_evict: Called with the handle of each chunk that a claim evicts, before the claim returns; must not raise and
            must not call the ring.
        on_hit: Called with the handle of each chunk that a reader has found by itself, some time later; may miss a hit.
        tenant: Stored in every handle.
        num_nursery_slots: The number of slots, the last ones, for records in nurseries.

    Attributes:
        nurseries: The files of the nurseries.
        placed: The state of the slots for records in nurseries.
        outlives_writer: `close` leaves the ring as it is, for a successor to adopt.
        index: Maps keys to slots for readers; maintained by the store, None if the ring was made without.
        board: The writer's present state, for readers.
        touch_logs: The readers' numbers of hits and misses, up to the last `poll_hits`.
    """

    def __init__(
        self,
        segment: WriterSegment,
        *,
        max_object_bytes: int,
        reader_quota_bytes: int | None = None,
        shared_quota_bytes: int | None = None,
        has_checksums: bool = False,
        on_evict: Callable[[Handle], None] | None = None,
        on_hit: Callable[[Handle], None] | None = None,
        tenant: str = "",
        num_nursery_slots: int = 0,
    ) -> None:
        layout = segment.control.layout
        self.outlives_writer = False
        self.announcement = segment.announcement
        self.on_evict = on_evict
        self.on_hit = on_hit
        self.max_object_bytes = min(max_object_bytes, layout.data_bytes)
        self._tenant = tenant
        self._has_checksums = has_checksums
        self._segment: WriterSegment | None = segment
        self._data = segment.data
        self._tables = Tables(segment.data, layout)
        self._slots = SlotTable(self._tables.slots)
        self.board = Board(self._tables.board)
        self.touch_logs = TouchLogs(segment.control, self._touch_slot)
        self._leases = LeaseTable(segment.control.counts(), is_idle=self.touch_logs.holds_nothing)
        self._watch = ReaderWatch(segment.control, self._leases, self.board)
        self._reader_quota_bytes = NO_LIMIT if reader_quota_bytes is None else reader_quota_bytes
        self._shared_quota_bytes = NO_LIMIT if shared_quota_bytes is None else shared_quota_bytes
        self.board.set_limits(self._reader_quota_bytes, self._shared_quota_bytes)
        num_slots = layout.num_slots - num_nursery_slots
        self._chunks = ChunkTable(
            layout.data_bytes,
            num_slots,
            is_leased=self._leases.is_pinned,
            leased_slots=self._leases.pinned_slots,
        )
        self.placed = NurseryTable(range(num_slots, layout.num_slots), is_leased=self._leases.is_pinned)
        self.nurseries = NurseryFiles(segment.announcement)
        self.index = KeyIndexWriter(self._tables.index) if layout.index_words else None
        self._swept = 0
        self._num_evictions = self._num_refusals = self._num_puts = self._put_bytes = 0
        self.board.set_writer_pid(os.getpid())

    def __iter__(self) -> Iterator[tuple[Handle, KeyDigest, bytes]]:
        """Iterate over a copy of the current chunks, with their keys' digests and their notes, the oldest first."""
        slots = self._tables.slots
        handles = sorted([*self._chunks, *self.placed], key=attrgetter("generation"))
        for handle in handles:
            first = SLOT_WORDS * handle.slot
            note, first_key, second_key = slots[first + NOTE_BYTES : first + SECOND_KEY + 1]
            try:
                note_bytes = self._note(handle, note & MAX_NOTE_BYTES)
            except StaleHandle:  # its nursery was truncated
                note_bytes = b""
            yield handle, (first_key, second_key), note_bytes

    @classmethod
    def create(
        cls,
        *,
        data_bytes: int,
        num_slots: int = 4096,
        max_readers: int = 8,
        max_object_bytes: int,
        reader_quota_bytes: int | None = None,
        shared_quota_bytes: int | None = None,
        has_checksums: bool = False,
        has_index: bool = False,
        on_evict: Callable[[Handle], None] | None = None,
        tenant: str = "",
        num_nursery_slots: int = 0,
        clock_ns: Callable[[], int] = time.time_ns,
        host: HostCalls | None = None,
    ) -> RingWriter:
        """Create a ring with a new random id, in a new epoch; its pages are populated in the background.

        Args:
            data_bytes: Size of the data object, rounded down to the alignment.
            num_slots: Chunks that can exist at a time, records in nurseries included.
            max_readers: Readers that can be attached at a time.

        Raises:
            SegmentError: No space; the text says how much is needed and the next step. Nothing is left behind.
            InvalidRequest: A size is outside its limits.
        """
        if max_object_bytes < 1:
            raise InvalidRequest("max_object_bytes", max_object_bytes, "must be at least 1")
        if reader_quota_bytes is not None and reader_quota_bytes < 1:
            raise InvalidRequest("reader_quota_bytes", reader_quota_bytes, "must be at least 1")
        layout = Layout(
            data_bytes - data_bytes % ALIGNMENT, num_slots, max_readers, index_words(num_slots) if has_index else 0
        )
        segment = WriterSegment.create(layout, epoch=clock_ns(), host=host or HostCalls())
        return cls(
            segment,
            max_object_bytes=max_object_bytes,
            reader_quota_bytes=reader_quota_bytes,
            shared_quota_bytes=shared_quota_bytes,
            has_checksums=has_checksums,
            on_evict=on_evict,
            tenant=tenant,
            num_nursery_slots=num_nursery_slots,
        )

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
        plan = self._plan(nbytes + len(note))
        if plan is None:
            self._num_refusals += 1
            raise CacheFull(nbytes, self._chunks.capacity, self._chunks.pinned_bytes())
        for victim in plan.victims:
            self._slots.erase(victim.slot)
        crash_point("evict.after_erase")
        generation, evicted = self._chunks.claim(plan)
        self.board.set_last_generation(generation)
        self._num_evictions += len(evicted)
        crash_point("put.after_evict")
        if self.on_evict is not None:
            for handle in evicted:
                self.on_evict(handle)
        offset = plan.extent.offset
        buffer = np.frombuffer(self._data, np.uint8, nbytes, offset)
        return RingClaim(plan.extent.slot, generation, offset, nbytes, buffer, note)

    def has_free_place(self, nbytes: int) -> bool:
        """Return whether `nbytes`, note included, can be claimed in the ring without an eviction."""
        plan = self._chunks.plan(nbytes)
        return plan is not None and not plan.victims

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
        self._slots.fill(claim.slot, record)
        crash_point("put.before_publish")
        self._slots.publish(claim.slot, generation)
        crash_point("put.after_commit")
        handle = self._handle(claim.slot, record)
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
        self._slots.fill(slot, filled)
        crash_point("put.before_publish")
        self._slots.publish(slot, generation)
        crash_point("put.after_commit")
        handle = self._handle(slot, filled)
        self.placed.publish(handle, Placed(nursery, offset, record.size))
        self._num_puts += 1
        self._put_bytes += nbytes
        return handle

    def read(self, handle: Handle, nbytes: int | None = None) -> npt.NDArray[np.uint8]:
        """Return a copy of the first `nbytes` bytes of a current chunk's payload, `(nbytes,)`; None: of all bytes.

        Raises:
            StaleHandle: The chunk is not current, or its nursery was truncated.
        """
        copy = np.empty(handle.nbytes if nbytes is None else nbytes, np.uint8)
        self.read_into(handle, 0, copy)
        return copy

    def read_into(self, handle: Handle, begin: int, buffer: npt.NDArray[np.uint8]) -> None:
        """Fill `buffer` with bytes of a current chunk's payload, from `begin` on. Raises as `read`."""
        self._check_open()
        self._books(handle).check_current(handle)
        offset = handle.offset + begin
        if handle.nursery:
            self.nurseries.read_into(handle.nursery, offset, buffer)
        else:
            np.copyto(buffer, np.frombuffer(self._data, np.uint8, buffer.nbytes, offset))

    def note(self, handle: Handle) -> bytes:
        """Return the note behind a current chunk. Raises as `read`."""
        self._books(handle).check_current(handle)
        return self._note(handle, self._tables.slots[SLOT_WORDS * handle.slot + NOTE_BYTES] & MAX_NOTE_BYTES)

    def discard(self, handle: Handle) -> None:
        """Forget a chunk: no new leases are taken, and leased bytes stay until given back. Ignores unknown handles."""
        books = self._books(handle)
        if not books.is_current(handle):
            return
        self._slots.retire(handle.slot)
        crash_point("discard.after_retire")
        is_sealed = seal(require_word_store(), self._slots, [handle.slot], self._leases.is_pinned)
        if is_sealed:
            self._slots.erase(handle.slot)
        books.forget(handle, is_leased=not is_sealed)

    def evict(self, handle: Handle) -> bool:
        """Evict a current record of a nursery, as a claim evicts chunks; return False if it is pinned or leased."""
        slot = handle.slot
        if self.placed.is_kept(slot):
            return False
        self._slots.retire(slot)
        crash_point("evict.after_retire")
        if not seal(require_word_store(), self._slots, [slot], self._leases.is_pinned):
            self._slots.restore(slot)  # a reader has just taken a lease
            return False
        self._slots.erase(slot)
        self.placed.forget(handle, is_leased=False)
        crash_point("evict.after_erase")
        self._num_evictions += 1
        if self.on_evict is not None:
            self.on_evict(handle)
        return True

    def free_islands(self) -> None:
        """Free the places in nurseries whose records were forgotten under lease, and are not leased any more."""
        for slot in self.placed.islands:
            if seal(require_word_store(), self._slots, [slot], self._leases.is_pinned):
                self._slots.erase(slot)
                self.placed.free_island(slot)

    def clear(self) -> None:
        """Forget every chunk, as `discard` does. Open claims stay open, and generations continue."""
        self.board.raise_floor()
        for handle in (*self._chunks, *self.placed):
            self.discard(handle)

    def admits_return(self) -> bool:
        """Return whether content that returns after its eviction is to be committed as proven."""
        return self._chunks.admits_return()

    # ---- keeping

    def is_current(self, handle: Handle) -> bool:
        """Return whether the handle names a chunk of this ring that is committed and not evicted or discarded."""
        return self._books(handle).is_current(handle)

    def expires_at(self, handle: Handle) -> int:
        """Return the expiry time of a current chunk; 0: never."""
        return self._tables.slots[SLOT_WORDS * handle.slot + EXPIRY]

    def expired(self, limit: int) -> list[Handle]:
        """Return at most `limit` expired current chunks from the next `SWEPT_SLOTS` slots.

        The next call continues behind these slots, or repeats them if there were more than `limit`.
        """
        first = self._swept
        words = np.frombuffer(self._tables.slots, np.uint64).reshape(-1, SLOT_WORDS)[
            first : first + SWEPT_SLOTS, EXPIRY
        ]
        slots = (first + np.flatnonzero((words != 0) & (words <= np.uint64(boot_ns())))).tolist()
        found = [handle for slot in slots if (handle := self._current(slot)) is not None]
        if len(found) <= limit:
            num_slots = self.announcement.num_slots
            self._swept = (first + SWEPT_SLOTS) % num_slots if len(words) == SWEPT_SLOTS else 0
        return found[:limit]

    def is_leased(self, handle: Handle) -> bool:
        return self._leases.is_pinned(handle.slot)

    def is_kept(self, handle: Handle) -> bool:
        """Return whether a current chunk is leased or pinned."""
        return self._books(handle).is_kept(handle.slot)

    def touch(self, handle: Handle) -> None:
        """Count a hit of a chunk, so that other chunks are evicted before it. Ignores chunks that are not current."""
        books = self._books(handle)
        if books.is_current(handle):
            books.touch(handle)

    def pin(self, handle: Handle) -> None:
        """Protect a chunk from eviction until `unpin`; pins are counted. Raises StaleHandle if it is not current."""
        books = self._books(handle)
        books.check_current(handle)
        books.pin(handle)

    def unpin(self, handle: Handle) -> None:
        """Remove one pin; does nothing if the chunk was discarded meanwhile, together with its pins."""
        books = self._books(handle)
        if books.is_current(handle):
            books.unpin(handle)

    # ---- readers

    def attach(self, reader_id: int, incarnation: int) -> bool:
        """Attach the reader that announces that it has taken entry `reader_id`; see `ReaderWatch.attach`."""
        self._check_open()
        is_attached = self._watch.attach(reader_id, incarnation)
        if is_attached:
            self.touch_logs.begin(reader_id, incarnation)
        return is_attached

    def fenced_readers(self) -> list[int]:
        """Return the readers that may take no more leases because their counts were impossible."""
        return self._leases.fenced_readers()

    def fenced_pids(self) -> list[int]:
        segment = self._check_open()
        words, layout = segment.control.words, segment.control.layout
        return [words[layout.incarnation_word(reader_id) + PID_WORD] for reader_id in self._leases.fenced_readers()]

    def poll_deaths(self) -> list[ReaderStopped | ReaderVoided]:
        """Detect readers that have died or must stop; for their leases see the two events."""
        self._check_open()
        events = self._watch.poll_deaths()
        for event in events:
            if isinstance(event, ReaderVoided):
                self.touch_logs.end(event.reader_id, event.incarnation)
        return events

    def poll_hits(self) -> None:
        """Take in the readers' own hits, and publish how many bytes they may still hold."""
        self._check_open()
        held_bytes = self.touch_logs.take_in(self._leases.incarnations(), self._reader_quota_bytes)
        self.board.set_limits(self._reader_quota_bytes, max(0, self._shared_quota_bytes - held_bytes))

    # ---- the object

    def stats(self) -> RingStats:
        segment = self._check_open()
        return RingStats(
            data_bytes=self._chunks.capacity,
            used_bytes=self._chunks.used_bytes + self.placed.used_bytes,
            pinned_bytes=self._chunks.pinned_bytes() + self.placed.kept_bytes(),
            populated_bytes=segment.populated_bytes,
            chunks=len(self._chunks) + len(self.placed),
            leases=self._leases.num_leases(),
            fenced_readers=len(self._leases.fenced_readers()),
            puts=self._num_puts,
            put_bytes=self._put_bytes,
            evictions=self._num_evictions,
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
        self._tables.close()
        self.index = None
        del self._data, self._leases, self._watch, self.touch_logs  # they hold the mappings
        segment.close(keeps_names=self.outlives_writer)

    def _adopt(self) -> None:
        """Take over the ring of a former writer; raise SegmentError if its tables are inconsistent."""
        may_hold = partial(occupied_slots, self._tables, self._chunks.num_slots)
        for reader_id in self._watch.adopt(may_hold):
            self.touch_logs.begin(reader_id, self._leases.incarnations()[reader_id])
        crash_point("adopt.after_readers")
        names, is_leased = self.announcement, self._leases.is_pinned

        def handles_of(*columns: list[int]) -> list[Handle]:
            *places, nurseries = columns
            ring = repeat(names.ring_id), repeat(names.epoch)
            return list(map(Handle, *ring, *places, repeat(self._tenant), nurseries))

        adopt_chunks(
            self._tables,
            self.board,
            self._chunks,
            self.placed,
            self.index,
            is_leased=is_leased,
            handles_of=handles_of,
            nursery_bytes=self.nurseries.adopt,
        )
        crash_point("adopt.before_unlink")
        self.nurseries.remove_others()

    def _handle(self, slot: int, record: SlotRecord) -> Handle:
        names = self.announcement
        place = record.offset, record.nbytes
        return Handle(names.ring_id, names.epoch, slot, record.generation, *place, self._tenant, record.nursery)

    def _books(self, handle: Handle) -> ChunkTable | NurseryTable:
        return self._chunks if handle.slot < self._chunks.num_slots else self.placed

    def _current(self, slot: int) -> Handle | None:
        return (self._chunks if slot < self._chunks.num_slots else self.placed).current(slot)

    def _note(self, handle: Handle, nbytes: int) -> bytes:
        offset = handle.offset + handle.nbytes
        if not handle.nursery:
            return self._data[offset : offset + nbytes]
        note = np.empty(nbytes, np.uint8)
        self.nurseries.read_into(handle.nursery, offset, note)
        return note.tobytes()

    def _plan(self, nbytes: int) -> EvictionPlan | None:
        """Find a place, and seal its victims, so that no reader takes a lease on them from then on."""
        for _ in range(MAX_PLANS):
            plan = self._chunks.plan(nbytes)
            if plan is None or not plan.victims:
                return plan
            victims = [victim.slot for victim in plan.victims]
            for slot in victims:
                self._slots.retire(slot)
            crash_point("evict.after_retire")
            if seal(require_word_store(), self._slots, victims, self._leases.is_pinned):
                return plan
            for slot in victims:  # a reader has just taken a lease: current chunks can be found again
                if self._chunks.current(slot) is not None:
                    self._slots.restore(slot)
        return None

    def _touch_slot(self, slot: int, generation_bits: int) -> None:
        handle = self._current(slot)
        if handle is not None and is_of_generation(handle.generation, generation_bits):
            self._books(handle).touch(handle)
            if self.on_hit is not None:
                self.on_hit(handle)

    def _check_open(self) -> WriterSegment:
        if self._segment is None:
            raise LocalProtocolError("this ring is closed")
        return self._segment


def adopt_ring(
    announcement: RingAnnouncement,
    layout: Layout,
    *,
    max_object_bytes: int,
    reader_quota_bytes: int | None = None,
    shared_quota_bytes: int | None = None,
    has_checksums: bool = False,
    tenant: str = "",
    num_nursery_slots: int = 0,
) -> RingWriter:
    """Adopt a ring whose writer is dead: committed chunks stay, and its readers go on reading.

    The payloads are not read; readers check them, if the ring has checksums.

    Args:
        layout: The expected layout.

    Raises:
        SegmentError: The ring is missing, or its writer lives: nothing was changed. Or its tables are inconsistent: its
            names were removed, and no reader finds anything in it any more.
        LayoutMismatch: Its layout differs from the expected one; nothing was changed.
    """
    segment = WriterSegment.adopt(announcement, layout)
    crash_point("adopt.after_lock")
    ring = RingWriter(
        segment,
        max_object_bytes=max_object_bytes,
        reader_quota_bytes=reader_quota_bytes,
        shared_quota_bytes=shared_quota_bytes,
        has_checksums=has_checksums,
        tenant=tenant,
        num_nursery_slots=num_nursery_slots,
    )
    try:
        ring._adopt()
    except Exception:
        crash_point("adopt.before_removal")
        ring.close()
        raise
    return ring
