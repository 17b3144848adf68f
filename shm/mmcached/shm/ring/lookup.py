"""Looks keys and handles up in the writer's words, without asking it.

    key ──key index──> slots ──slot table──> the one that is valid and has the key's digest ──> Handle

Sans I/O: the words are passed in; another process may be writing them. What was found may be gone a moment later: a
lease must follow.
"""

from __future__ import annotations

from mmcached.shm.ring.key_index import slots_of
from mmcached.shm.ring.slot_table import FIRST_KEY, KeyDigest, SlotRecord, read_slot
from mmcached.shm.segment.board import FREE_BYTES, READER_LIMIT, STORE_EPOCH
from mmcached.shm.segment.layout import ALIGNMENT, ATTACHED_WORD, SLOT_WORDS
from mmcached.shm.segment.mapped import Tables
from mmcached.wire.handle import Handle, RingAnnouncement


class Lookup:
    """One reader's look into the tables of a ring."""

    def __init__(self, tables: Tables, announcement: RingAnnouncement) -> None:
        self._tables = tables
        self._board, self._slots, self._index = tables.board, tables.slots, tables.index
        self._names = announcement

    def find(self, key: KeyDigest) -> Handle | None:
        """Return where the record of a key lies, or None."""
        names, slots = self._names, self._slots
        for slot in slots_of(self._index, key):
            if slot >= names.num_slots:
                continue
            first = SLOT_WORDS * slot + FIRST_KEY
            if slots[first] != key[0] or slots[first + 1] != key[1]:
                continue
            record, is_valid = read_slot(slots, slot)
            if is_valid and record.key == key and self._is_inside(record):
                return Handle(names.ring_id, names.epoch, slot, record.generation, record.offset, record.nbytes)
        return None

    def holds(self, handle: Handle) -> bool:
        """Return whether the slot of a handle is valid and of its generation."""
        return self._slots[SLOT_WORDS * handle.slot] == handle.generation << 1 | 1

    def record(self, slot: int) -> SlotRecord:
        """Return what a slot holds, valid or retired; for one under lease."""
        return read_slot(self._slots, slot)[0]

    def is_attached(self, reader_id: int, incarnation: int) -> bool:
        """Return whether an incarnation may take leases by itself."""
        return self._board[ATTACHED_WORD + reader_id] == incarnation

    def may_hold(self, num_bytes: int) -> bool:
        """Return whether one reader may have so much under lease, and everybody together still has enough."""
        return num_bytes <= self._board[READER_LIMIT] and num_bytes <= self._board[FREE_BYTES]

    @property
    def store_epoch(self) -> int:
        return self._board[STORE_EPOCH]

    def close(self) -> None:
        self._tables.close()

    def _is_inside(self, record: SlotRecord) -> bool:
        return record.offset % ALIGNMENT == 0 and 1 <= record.nbytes <= self._names.data_bytes - record.offset
