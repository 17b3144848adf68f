"""Ghost table: remembers recently evicted keys, so that content that returns is recognized.

    hashes    [ hash  | … ]     of a key, at the index given by its lower bits; a later key there overwrites it
    until     [ bytes | … ]     total evicted bytes up to which the key counts as recent

A chunk of mean size counts as recent until one and a half times the capacity was evicted after it. For another size
that span is multiplied by the square root of (mean size / own size): of two chunks that return after the same time, the
smaller is worth more hits per byte. Constant size, in one process; a successor starts with an empty table. A key that
was overwritten counts as new.

>>> departed = Departed(capacity=100, num_slots=8)
>>> departed.add("a", 60)
>>> departed.take_departed("a"), departed.take_departed("a")
(True, False)
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from math import sqrt

from mmcached.shm.ring.key_index import index_words

RECENT_CAPACITIES = 1.5


class Departed:
    """Keys that a store of `capacity` bytes and `num_slots` chunks has evicted."""

    def __init__(self, capacity: int, num_slots: int) -> None:
        num_words = index_words(num_slots)
        self._recent_bytes = RECENT_CAPACITIES * capacity
        self._mask = num_words - 1
        self._hashes = array("q", bytes(8 * num_words))
        self._until = array("q", [-1]) * num_words
        self._num_gone = self._gone_bytes = 0

    def add(self, key: Hashable, nbytes: int) -> None:
        """Remember a key whose chunk of `nbytes` is evicted now."""
        hashed = hash(key)
        place = hashed & self._mask
        self._num_gone += 1
        self._gone_bytes += nbytes
        mean_bytes = self._gone_bytes / self._num_gone
        self._hashes[place] = hashed
        self._until[place] = self._gone_bytes + int(self._recent_bytes * sqrt(mean_bytes / nbytes))

    def take_departed(self, key: Hashable) -> bool:
        """Return whether a key was evicted recently, and forget it."""
        hashed = hash(key)
        place = hashed & self._mask
        if self._hashes[place] != hashed or self._gone_bytes > self._until[place]:
            return False
        self._until[place] = -1
        return True
