"""The records of a ring as its writer knows them: publishes, reads, keeps and removes them.

A record lies in the ring itself (a chunk) or in a nursery, a shared-memory file into which one client writes its
records. Which of them exist is kept twice: in the slot table, where readers look, and in the tables of this process.

A record is removed in three steps: its slot is retired, so that no reader finds it; sealed, if no reader has a lease;
erased. A leased record cannot be sealed: it becomes an island, whose bytes stay until its readers end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.adoption import adopt_chunks, occupied_slots
from mmcached.shm.ring.allocator import EvictionPlan
from mmcached.shm.ring.chunks import ChunkTable
from mmcached.shm.ring.key_index import KeyIndexWriter
from mmcached.shm.ring.nursery_table import NurseryTable
from mmcached.shm.ring.self_lease import seal
from mmcached.shm.ring.slot_table import (
    EXPIRY,
    MAX_NOTE_BYTES,
    NOTE_BYTES,
    SECOND_KEY,
    KeyDigest,
    SlotRecord,
    SlotTable,
    boot_ns,
)
from mmcached.shm.segment.board import Board
from mmcached.shm.segment.layout import SLOT_WORDS
from mmcached.shm.segment.mapped import Tables
from mmcached.shm.segment.nursery_files import NurseryFiles
from mmcached.shm.segment.segment import WriterSegment
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.errors import LocalProtocolError, StaleHandle
from mmcached.wire.handle import Handle

MAX_PLANS = 32
"""Attempts to find a place while readers take leases on just the chunks that would be evicted."""

MOVED_WORTH = 2
"""Worth from which a record in a nursery is copied into the ring without a hit: a copy costs more than a place."""

SWEPT_SLOTS = 4096
"""Slots that are checked for expired chunks at a time: 30 µs."""


class CurrentRecords:
    """All records of one ring; `close` drops the references to its memory.

    Args:
        segment: Owned by the ring's writer.
        chunks, placed: Tables of the records in the ring and in nurseries.
        is_leased: Returns whether a living reader may still read a slot's record.
        on_evict: Called with the handle of each record that is evicted; must not raise and must not call the ring.

    Attributes:
        num_evicted: Number of records evicted by `evict`.
    """

    def __init__(
        self,
        segment: WriterSegment,
        tables: Tables,
        board: Board,
        *,
        chunks: ChunkTable,
        placed: NurseryTable,
        nurseries: NurseryFiles,
        tenant: str,
        is_leased: Callable[[int], bool],
        on_evict: Callable[[Handle], None] | None,
    ) -> None:
        self.on_evict = on_evict
        self.num_evicted = 0
        self._announcement = segment.announcement
        self._data = segment.data
        self._tables = tables
        self._words = tables.slots
        self._tenant = tenant
        self._slots = SlotTable(tables.slots)
        self._board = board
        self._chunks = chunks
        self._placed = placed
        self._nurseries = nurseries
        self._is_leased = is_leased
        self._swept = 0
        self._is_closed = False

    def __iter__(self) -> Iterator[tuple[Handle, KeyDigest, bytes]]:
        """Iterate over a copy of the current chunks, with their keys' digests and their notes, the oldest first."""
        words = self._words
        handles = sorted([*self._chunks, *self._placed], key=attrgetter("generation"))
        for handle in handles:
            first = SLOT_WORDS * handle.slot
            note, first_key, second_key = words[first + NOTE_BYTES : first + SECOND_KEY + 1]
            try:
                note_bytes = self._note(handle, note & MAX_NOTE_BYTES)
            except StaleHandle:  # its nursery was truncated
                note_bytes = b""
            yield handle, (first_key, second_key), note_bytes

    def occupied_slots(self) -> list[int]:
        """Return the slots with a record, as `adoption.occupied_slots`."""
        return occupied_slots(self._tables)

    def adopt(self, index: KeyIndexWriter | None) -> None:
        """Take over the records of a former writer, from the slot table; raise SegmentError if it is inconsistent.

        Args:
            index: Is made to agree with them.
        """
        ring = repeat(self._announcement.ring_id), repeat(self._announcement.epoch)

        def handles_of(*columns: list[int]) -> list[Handle]:
            *places, nurseries = columns
            return list(map(Handle, *ring, *places, repeat(self._tenant), nurseries))

        adopt_chunks(
            self._tables,
            self._board,
            self._chunks,
            self._placed,
            index,
            is_leased=self._is_leased,
            handles_of=handles_of,
            nursery_bytes=self._nurseries.adopt,
        )

    def publish(self, slot: int, record: SlotRecord) -> Handle:
        """Write the record of a free slot, so that readers find it; the chunk table is not changed."""
        self._slots.fill(slot, record)
        crash_point("put.before_publish")
        self._slots.publish(slot, record.generation)
        crash_point("put.after_commit")
        names, place = self._announcement, (record.offset, record.nbytes)
        return Handle(names.ring_id, names.epoch, slot, record.generation, *place, self._tenant, record.nursery)

    # ---- reading

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
        if self._is_closed:
            raise LocalProtocolError("this ring is closed")
        self._books(handle).check_current(handle)
        offset = handle.offset + begin
        if handle.nursery:
            self._nurseries.read_into(handle.nursery, offset, buffer)
        else:
            np.copyto(buffer, np.frombuffer(self._data, np.uint8, buffer.nbytes, offset))

    def note(self, handle: Handle) -> bytes:
        """Return the note behind a current chunk. Raises as `read`."""
        self._books(handle).check_current(handle)
        return self._note(handle, self._words[SLOT_WORDS * handle.slot + NOTE_BYTES] & MAX_NOTE_BYTES)

    # ---- keeping

    def is_current(self, handle: Handle) -> bool:
        """Return whether the handle names a chunk of this ring that is committed and not evicted or discarded."""
        return self._books(handle).is_current(handle)

    def current(self, slot: int) -> Handle | None:
        """Return the current record of a slot."""
        return (self._chunks if slot < self._chunks.num_slots else self._placed).current(slot)

    def expires_at(self, handle: Handle) -> int:
        """Return the expiry time of a current chunk; 0: never."""
        return self._words[SLOT_WORDS * handle.slot + EXPIRY]

    def expired(self, limit: int) -> list[Handle]:
        """Return at most `limit` expired current chunks from the next `SWEPT_SLOTS` slots.

        The next call continues behind these slots, or repeats them if there were more than `limit`.
        """
        first = self._swept
        table = np.frombuffer(self._words, np.uint64).reshape(-1, SLOT_WORDS)
        words = table[first : first + SWEPT_SLOTS, EXPIRY]
        slots = (first + np.flatnonzero((words != 0) & (words <= np.uint64(boot_ns())))).tolist()
        found = [handle for slot in slots if (handle := self.current(slot)) is not None]
        if len(found) <= limit:
            self._swept = (first + SWEPT_SLOTS) % len(table) if len(words) == SWEPT_SLOTS else 0
        return found[:limit]

    def is_leased(self, handle: Handle) -> bool:
        return self._is_leased(handle.slot)

    def is_kept(self, handle: Handle) -> bool:
        """Return whether a current chunk is leased or pinned."""
        return self._books(handle).is_kept(handle.slot)

    def touch(self, handle: Handle) -> None:
        """Count a hit of a chunk, so that other chunks are evicted before it. Ignores chunks that are not current."""
        books = self._books(handle)
        if books.is_current(handle):
            books.touch(handle)

    def value(self, handle: Handle, worth: int) -> None:
        """Set how much more than its size a chunk is worth; from `MOVED_WORTH` on one in a nursery counts as hit.

        Ignores chunks that are not current.
        """
        if not self.is_current(handle):
            return
        if handle.slot < self._chunks.num_slots:
            self._chunks.value(handle, worth)
        elif worth >= MOVED_WORTH:
            self._placed.touch(handle)

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

    def has_free_place(self, nbytes: int) -> bool:
        """Return whether `nbytes`, note included, can be claimed in the ring without an eviction."""
        plan = self._chunks.plan(nbytes)
        return plan is not None and not plan.victims

    def admits_return(self) -> bool:
        """Return whether content that returns after its eviction is to be committed as proven."""
        return self._chunks.admits_return()

    # ---- removing

    def free_place(self, nbytes: int) -> EvictionPlan | None:
        """Find a place for a chunk, and erase the slots of its victims; the chunk table evicts them when it is claimed.

        Return None, with no record removed, if nothing fits beside the chunks that are leased, pinned or claimed.
        """
        for _ in range(MAX_PLANS):
            plan = self._chunks.plan(nbytes)
            if plan is None or not plan.victims:
                return plan
            victims = [victim.slot for victim in plan.victims]
            for slot in victims:
                self._slots.retire(slot)
            crash_point("evict.after_retire")
            if seal(require_word_store(), self._slots, victims, self._is_leased):
                for slot in victims:
                    self._slots.erase(slot)
                return plan
            for slot in victims:  # a reader has just taken a lease: current chunks can be found again
                if self._chunks.current(slot) is not None:
                    self._slots.restore(slot)
        return None

    def discard(self, handle: Handle) -> None:
        """Forget a chunk: no new leases are taken, and leased bytes stay until given back. Ignores unknown handles."""
        books = self._books(handle)
        if not books.is_current(handle):
            return
        self._slots.retire(handle.slot)
        crash_point("discard.after_retire")
        is_sealed = seal(require_word_store(), self._slots, [handle.slot], self._is_leased)
        if is_sealed:
            self._slots.erase(handle.slot)
        books.forget(handle, is_leased=not is_sealed)

    def evict(self, handle: Handle) -> bool:
        """Evict a current record of a nursery, as a claim evicts chunks; return False if it is pinned or leased."""
        slot = handle.slot
        if self._placed.is_kept(slot):
            return False
        self._slots.retire(slot)
        crash_point("evict.after_retire")
        if not seal(require_word_store(), self._slots, [slot], self._is_leased):
            self._slots.restore(slot)  # a reader has just taken a lease
            return False
        self._slots.erase(slot)
        self._placed.forget(handle, is_leased=False)
        crash_point("evict.after_erase")
        self.num_evicted += 1
        if self.on_evict is not None:
            self.on_evict(handle)
        return True

    def free_islands(self) -> None:
        """Free the places in nurseries whose records were forgotten under lease, and are not leased any more."""
        for slot in self._placed.islands:
            if seal(require_word_store(), self._slots, [slot], self._is_leased):
                self._slots.erase(slot)
                self._placed.free_island(slot)

    def clear(self) -> None:
        """Forget every chunk, as `discard` does. Open claims stay open, and generations continue."""
        self._board.raise_floor()
        for handle in (*self._chunks, *self._placed):
            self.discard(handle)

    def close(self) -> None:
        """Drop the references to the ring's memory; nothing can be read any more."""
        self._is_closed = True
        del self._words, self._tables, self._data, self._slots, self._is_leased

    def _books(self, handle: Handle) -> ChunkTable | NurseryTable:
        return self._chunks if handle.slot < self._chunks.num_slots else self._placed

    def _note(self, handle: Handle, nbytes: int) -> bytes:
        offset = handle.offset + handle.nbytes
        if not handle.nursery:
            return self._data[offset : offset + nbytes]
        note = np.empty(nbytes, np.uint8)
        self._nurseries.read_into(handle.nursery, offset, note)
        return note.tobytes()
