"""Slot table: describes the record in each slot of a ring, in words that readers look into without a message.

    word 0  generation × 2                        word 3  bytes of the note behind the payload
            + 1 if it is valid                            + 2^32 × id of the nursery in which both lie, or 0
            + 2^63 if it is sealed                word 4, 5  digest of the key; 0, 0 if it has none
    word 1  offset of the payload                 word 6  2^32 + crc32 of the payload, or 0
    word 2  its bytes                             word 7  expiry time, on the clock of `boot_ns`; 0: never

    0 ──fill──> 0 ──publish──> valid ──retire──> retired ──seal──> sealed ──erase──> 0
                                 └──<──restore──────┴───<──retire─────┘

    valid      a reader that finds it may take a lease
    retired    not found any more; a process that knows its generation may take a lease, so a lease can be handed on
    sealed     no lease can be taken

A discarded or evicted record is retired, sealed and erased in one call. While it is leased it cannot be sealed: it
stays retired, and is sealed and erased when its last lease has ended.

A generation is never used twice, so a process that has read the same valid word 0 twice knows that nothing changed in
between. The bytes stay until the slot is erased: lease holders may still read. So each record that a dead writer leaves
is complete, or its word 0 is 0.

Word 7 uses one clock for all processes of the host, which also counts while the host sleeps. It restarts when the host
boots, as the ring does, and cannot be set. An expired record is missing for lookups of its key; its slot stays valid
until the writer retires it.

Sans I/O except for that clock: the words are passed in. Invariant: words 1 to 7 change only while word 0 is 0.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmcached.shm.segment.layout import SLOT_WORDS
from mmcached.shm.segment.words import require_word_store

GENERATION, OFFSET, NBYTES, NOTE_BYTES, FIRST_KEY, SECOND_KEY, CHECK, EXPIRY = range(8)
HAS_CRC32 = 1 << 32
NURSERY_SHIFT = 32
MAX_NOTE_BYTES = (1 << NURSERY_SHIFT) - 1
IS_SEALED = 1 << 63

KeyDigest = tuple[int, int]
"""128 bits of a key's digest, as two words."""
NO_KEY: KeyDigest = (0, 0)


class SlotRecord(NamedTuple):
    """Content of a slot; sizes and offset in bytes.

    Attributes:
        check, expires_at: Words 6 and 7.
        nursery: Id of the nursery in which it lies; 0: it lies in the ring itself.
    """

    generation: int
    offset: int
    nbytes: int
    note_bytes: int = 0
    key: KeyDigest = NO_KEY
    check: int = 0
    expires_at: int = 0
    nursery: int = 0


def boot_ns() -> int:
    """Return the nanoseconds since the host was booted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def expiry_of(ttl_s: float) -> int:
    """Return word 7 for a record with a time to live of `ttl_s` seconds; 0.0: no limit."""
    return boot_ns() + round(ttl_s * 1e9) if ttl_s else 0


def has_expired(expires_at: int) -> bool:
    """Return whether the time of a word 7 has passed."""
    return 0 < expires_at <= boot_ns()


def read_slot(words: memoryview, slot: int) -> tuple[SlotRecord, bool]:
    """Return a slot's content, and whether it is valid; meaningful only if word 0 is the same afterwards."""
    first_word = SLOT_WORDS * slot
    mark = words[first_word]
    # Against the writer, which fills and publishes: once word 0 is seen to be new, the other words must not be older.
    require_word_store().load_fence()
    offset, nbytes, note, first, second, check, expires_at = words[first_word + 1 : first_word + SLOT_WORDS]
    generation, nursery = (mark & ~IS_SEALED) >> 1, note >> NURSERY_SHIFT
    key = first, second
    return SlotRecord(generation, offset, nbytes, note & MAX_NOTE_BYTES, key, check, expires_at, nursery), bool(
        mark & 1
    )


def read_table(words: memoryview) -> npt.NDArray[np.uint64]:
    """Return a copy of all words, `(num_slots, SLOT_WORDS)`; only for the table's writer."""
    return np.frombuffer(words, np.uint64).reshape(-1, SLOT_WORDS).copy()


class SlotTable:
    """The writer's interface to the table."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._store = require_word_store()

    def fill(self, slot: int, record: SlotRecord) -> None:
        """Write the words of an erased slot's next record, not valid yet; no reader may hold a lease of the slot."""
        words, first = self._words, SLOT_WORDS * slot
        _, words[first + OFFSET], words[first + NBYTES], note_bytes, key, check, expires_at, nursery = record
        words[first + NOTE_BYTES] = note_bytes | nursery << NURSERY_SHIFT
        words[first + FIRST_KEY], words[first + SECOND_KEY] = key
        words[first + CHECK] = check
        words[first + EXPIRY] = expires_at

    def publish(self, slot: int, generation: int) -> None:
        """Make a filled slot valid: a reader that sees it valid also sees payload and words 1 to 7."""
        self._set(slot, generation << 1 | 1)

    def retire(self, slot: int) -> None:
        """Hide a record from lookups; also undoes a seal."""
        self._set(slot, self._words[SLOT_WORDS * slot] & ~(1 | IS_SEALED))

    def seal(self, slot: int) -> None:
        """Keep readers from taking leases of a retired record; a full fence must follow before leases are counted."""
        self._set(slot, self._words[SLOT_WORDS * slot] | IS_SEALED)

    def restore(self, slot: int) -> None:
        """Make a retired record, which is unchanged, valid again."""
        self._set(slot, self._words[SLOT_WORDS * slot] | 1)

    def erase(self, slot: int) -> None:
        """Clear a slot; no reader may hold a lease."""
        self._set(slot, 0)

    def _set(self, slot: int, mark: int) -> None:
        self._store.store_release(self._words, SLOT_WORDS * slot, mark)
