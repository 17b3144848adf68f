"""Looks keys and handles up in the writer's words, without asking it.

    key ──key index──> slots ──slot table──> the one that is valid and has the key's digest ──> Handle

Sans I/O: the words are passed in; another process may be writing them. What was found may be gone a moment later: a
lease must follow.

A record is replaced in three steps: the new one is valid, the index shows it, the old one is retired. So a reader that
was shown a slot which is not valid any more looks into the index again.
"""

from __future__ import annotations

from mmcached.shm.ring.key_index import slots_of
from mmcached.shm.ring.slot_table import (
    CHECK,
    IS_SEALED,
    NBYTES,
    NURSERY_SHIFT,
    OFFSET,
    KeyDigest,
    has_expired,
    read_slot,
)
from mmcached.shm.segment.board import FREE_BYTES, READER_LIMIT, STORE_EPOCH
from mmcached.shm.segment.layout import ALIGNMENT, ATTACHED_WORD, MAX_BYTES, SLOT_WORDS
from mmcached.shm.segment.mapped import Tables
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.handle import Handle, RingAnnouncement

MAX_LOOKS = 8
"""Looks for one key before it is taken for missing, while the index shows slots that do not hold it. Each look more is
needed only if the record was replaced once more during the one before."""


class Lookup:
    """One reader's look into the tables of a ring."""

    def __init__(self, tables: Tables, announcement: RingAnnouncement) -> None:
        self._tables = tables
        self._board, self._slots, self._index = tables.board, tables.slots, tables.index
        self._names = announcement
        self._load_fence = require_word_store().load_fence

    def find(self, key: KeyDigest) -> Handle | None:
        """Return where the record of a key lies, or None; one that has expired is missing."""
        names, slots, num_looks = self._names, self._slots, 0
        while shown := slots_of(self._index, key):
            for slot in shown:
                if slot >= names.num_slots:
                    continue
                first = SLOT_WORDS * slot
                mark = slots[first]
                # Against the writer, which fills and publishes: with a new word 0, the others must not be older.
                self._load_fence()
                offset, nbytes, note, first_key, second_key, _, expires_at = slots[first + OFFSET : first + SLOT_WORDS]
                if not mark & 1 or second_key != key[1] or first_key != key[0]:
                    continue
                if expires_at and has_expired(expires_at):
                    return None
                nursery = note >> NURSERY_SHIFT
                if offset % ALIGNMENT == 0 and 1 <= nbytes <= (MAX_BYTES if nursery else names.data_bytes) - offset:
                    return Handle(names.ring_id, names.epoch, slot, mark >> 1, offset, nbytes, "", nursery)
            num_looks += 1
            if num_looks == MAX_LOOKS:
                break
            # Against the writer, which moves the index before it retires: with a retired slot, the index must not be
            # older.
            self._load_fence()
        return None

    def find_generation(self, slot: int, generation: int) -> Handle | None:
        """Return where a record lies of which somebody else has said the slot and generation; also a retired one."""
        names = self._names
        if slot >= names.num_slots:
            return None
        record, _ = read_slot(self._slots, slot)
        end = MAX_BYTES if record.nursery else names.data_bytes
        is_inside = record.offset % ALIGNMENT == 0 and 1 <= record.nbytes <= end - record.offset
        if record.generation != generation or not is_inside:
            return None
        return Handle(names.ring_id, names.epoch, slot, generation, record.offset, record.nbytes, "", record.nursery)

    def holds(self, handle: Handle) -> bool:
        """Return whether the slot of a handle is valid and of its generation."""
        return self._slots[SLOT_WORDS * handle.slot] == handle.generation << 1 | 1

    def keeps(self, handle: Handle) -> bool:
        """Return whether the slot of a handle is of its generation, and valid or retired."""
        return self._slots[SLOT_WORDS * handle.slot] | 1 == handle.generation << 1 | 1

    def check_of(self, handle: Handle) -> int | None:
        """Return the checksum word of what a handle names, valid or retired; None if its slot holds something else."""
        slots, first = self._slots, SLOT_WORDS * handle.slot
        if (slots[first] & ~IS_SEALED) >> 1 != handle.generation:
            return None
        is_same = slots[first + OFFSET] == handle.offset and slots[first + NBYTES] == handle.nbytes
        return slots[first + CHECK] if is_same else None

    def checksum(self, handle: Handle) -> int:
        """Return the checksum word of what a handle names, under a lease."""
        return self._slots[SLOT_WORDS * handle.slot + CHECK]

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
