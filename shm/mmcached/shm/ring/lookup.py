"""Looks up keys and handles in the writer's shared words, without a message to the writer.

    key ──key index──> slots ──slot table──> the slot that is valid and has the key's digest ──> Handle

Sans I/O: the words are passed in; another process may be writing them. A found record may be replaced or evicted a
moment later: take a lease and check again before reading it.

A record is replaced in three steps: the new record becomes valid, the index shows it, the old one is retired. So a
reader to which the index has shown a slot that is no longer valid looks into the index again.
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
from mmcached.shm.segment.board import FREE_BYTES, READER_LIMIT, STORE_EPOCH, VERIFIED
from mmcached.shm.segment.layout import ALIGNMENT, ATTACHED_WORD, MAX_BYTES, SLOT_WORDS
from mmcached.shm.segment.mapped import Tables
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.handle import Handle, RingAnnouncement

MAX_LOOKS = 8
"""Lookups of one key before it counts as missing, while the index shows slots that do not hold it. Another lookup is
needed only if the record was replaced once more during the previous one.
"""


class Lookup:
    """One reader's lookups in the tables of a ring."""

    def __init__(self, tables: Tables, announcement: RingAnnouncement) -> None:
        self._tables = tables
        self._board, self._slots, self._index = tables.board, tables.slots, tables.index
        self._names = announcement
        self._load_fence = require_word_store().load_fence

    def find(self, key: KeyDigest) -> Handle | None:
        """Return the handle of a key's record; None if it is missing or expired."""
        names, slots, num_looks = self._names, self._slots, 0
        while shown := slots_of(self._index, key):
            for slot in shown:
                if slot >= names.num_slots:
                    continue
                first = SLOT_WORDS * slot
                mark = slots[first]
                # Against the writer, which fills and publishes: once word 0 is seen to be new, the other words must not
                # be older.
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
            # Against the writer, which moves the index entry before it retires the old slot: once a slot is seen to be
            # retired, the index words must not be older.
            self._load_fence()
        return None

    def find_generation(self, slot: int, generation: int) -> Handle | None:
        """Return the handle of the record with this slot and generation, also of a retired one; else None."""
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
        """Return the checksum word of a handle's record, also if retired or sealed; None if its slot holds another."""
        slots, first = self._slots, SLOT_WORDS * handle.slot
        if (slots[first] & ~IS_SEALED) >> 1 != handle.generation:
            return None
        is_same = slots[first + OFFSET] == handle.offset and slots[first + NBYTES] == handle.nbytes
        return slots[first + CHECK] if is_same else None

    def checksum(self, handle: Handle) -> int:
        """Return the checksum word of a handle's record, under a lease."""
        return self._slots[SLOT_WORDS * handle.slot + CHECK]

    def is_attached(self, reader_id: int, incarnation: int) -> bool:
        """Return whether an incarnation may take leases by itself."""
        return self._board[ATTACHED_WORD + reader_id] == incarnation

    def may_hold(self, num_bytes: int) -> bool:
        """Return whether one reader may hold `num_bytes` under lease, and the limit of all readers allows it too."""
        return num_bytes <= self._board[READER_LIMIT] and num_bytes <= self._board[FREE_BYTES]

    @property
    def store_epoch(self) -> int:
        return self._board[STORE_EPOCH]

    @property
    def sample(self) -> int:
        """Which hits hosts recompute, see `cache.verification`."""
        return self._board[VERIFIED]

    def close(self) -> None:
        self._tables.close()
