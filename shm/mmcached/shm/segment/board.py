"""The writer's present state, in shared words that only the writer writes and all readers read.

    word 0      the store's epoch                      word 8 + r  the incarnation that is attached at entry r, or 0;
    word 1, 2   bytes that one reader, and that all                with bit 63: it was fenced, and may still read
                readers, may still hold under lease
    word 3      the last generation that was used
    word 4      the floor: a successor that adopts the ring drops records of this and earlier generations
    word 5      pid of the present writer, for diagnosis
    word 6      the id of the last nursery; 0: there was none
    word 7      which hits hosts recompute, see `cache.verification`; 0: none

A reader takes leases by itself only while its own incarnation is attached. So one word tells it that it was fenced,
that its entry belongs to another reader, or that the ring was closed or given up.

Sans I/O: the words are passed in.
"""

from __future__ import annotations

from mmcached.shm.segment.layout import ATTACHED_WORD
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.errors import SegmentError

STORE_EPOCH, READER_LIMIT, FREE_BYTES, LAST_GENERATION, FLOOR, WRITER_PID, LAST_NURSERY, VERIFIED = range(8)
NO_LIMIT = (1 << 63) - 1
MAX_NURSERY_ID = (1 << 32) - 1
_FENCED = 1 << 63


def fenced(incarnation: int) -> int:
    return incarnation | _FENCED


def incarnation_of(word: int) -> tuple[int, bool]:
    """Return the incarnation in a word, 0 if there is none, and whether it was fenced."""
    return word & ~_FENCED, bool(word & _FENCED)


class Board:
    """The writer's interface to the board."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._store = require_word_store()

    def set_attached(self, reader_id: int, incarnation: int) -> None:
        """Let an incarnation take leases; with 0 or a fenced incarnation, this entry's reader may take none."""
        self._store.store_release(self._words, ATTACHED_WORD + reader_id, incarnation)

    def attached(self, reader_id: int) -> int:
        return self._words[ATTACHED_WORD + reader_id]

    def set_limits(self, reader_bytes: int, free_bytes: int) -> None:
        """Show the limit of one reader, and the bytes that are left for all readers."""
        self._words[READER_LIMIT], self._words[FREE_BYTES] = reader_bytes, free_bytes

    def set_last_generation(self, generation: int) -> None:
        self._words[LAST_GENERATION] = generation

    def last_generation(self) -> int:
        return self._words[LAST_GENERATION]

    def raise_floor(self) -> None:
        """Have a successor drop all records that the ring holds now."""
        self._store.store_release(self._words, FLOOR, self._words[LAST_GENERATION])

    def floor(self) -> int:
        return self._words[FLOOR]

    def set_writer_pid(self, pid: int) -> None:
        self._words[WRITER_PID] = pid

    def new_nursery(self) -> int:
        """Return an id that no nursery of this ring has had; it counts as used from now on.

        Raises:
            SegmentError: All ids are used.
        """
        nursery: int = self._words[LAST_NURSERY] + 1
        if nursery > MAX_NURSERY_ID:
            raise SegmentError(f"the ring has used all {MAX_NURSERY_ID} ids of nurseries; restart without --keep-cache")
        self._words[LAST_NURSERY] = nursery
        return nursery

    def set_store_epoch(self, epoch: int) -> None:
        self._words[STORE_EPOCH] = epoch

    def store_epoch(self) -> int:
        return self._words[STORE_EPOCH]

    def set_verified(self, sample: int) -> None:
        self._words[VERIFIED] = sample

    def detach_all(self) -> None:
        """Stop all readers from taking leases."""
        for index in range(ATTACHED_WORD, len(self._words)):
            if self._words[index]:
                self._store.store_release(self._words, index, 0)
