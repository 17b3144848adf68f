"""Says what readers must know of their writer at this moment, in words that only the writer writes.

    word 0      the store's epoch                      word 8 + r  the incarnation that is attached at entry r, or 0
    word 1, 2   bytes that one reader, and that all
                readers, may still hold under lease

A reader takes leases by itself only while its own incarnation is attached. So one word says that it was fenced, that
its entry is another's, or that the ring was closed or given up.

Sans I/O: the words are passed in.
"""

from __future__ import annotations

from mmcached.shm.segment.layout import ATTACHED_WORD
from mmcached.shm.segment.words import require_word_store

STORE_EPOCH, READER_LIMIT, FREE_BYTES = range(3)
NO_LIMIT = (1 << 63) - 1


class Board:
    """The writer's end."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._store = require_word_store()

    def set_attached(self, reader_id: int, incarnation: int) -> None:
        """Let an incarnation take leases; 0: nobody at this entry."""
        self._store.store_release(self._words, ATTACHED_WORD + reader_id, incarnation)

    def attached(self, reader_id: int) -> int:
        return self._words[ATTACHED_WORD + reader_id]

    def set_limits(self, reader_bytes: int, free_bytes: int) -> None:
        """Show what one reader may hold, and what is left for all."""
        self._words[READER_LIMIT], self._words[FREE_BYTES] = reader_bytes, free_bytes

    def set_store_epoch(self, epoch: int) -> None:
        self._words[STORE_EPOCH] = epoch

    def store_epoch(self) -> int:
        return self._words[STORE_EPOCH]

    def detach_all(self) -> None:
        """Let nobody take leases any more."""
        for index in range(ATTACHED_WORD, len(self._words)):
            if self._words[index]:
                self._store.store_release(self._words, index, 0)
