"""Remembers what the ring evicted a short time ago, so that what comes back is known.

    hashes    [ hash  | … ]     of a key, at the place that its lower bits name; the next key there takes it
    gone_at   [ bytes | … ]     that had gone when it went

A short time is the one in which no more than the ring's capacity goes. Books of one process, of constant size; a
successor begins without. A key that has lost its place counts as new.

>>> departed = Departed(capacity=100, num_slots=8)
>>> departed.add("a", 60)
>>> departed.take("a"), departed.take("a")
(True, False)
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable

from mmcached.shm.ring.key_index import index_words


class Departed:
    """Keys that a ring of `capacity` bytes and `num_slots` chunks has evicted."""

    def __init__(self, capacity: int, num_slots: int) -> None:
        num_words = index_words(num_slots)
        self._capacity = capacity
        self._mask = num_words - 1
        self._long_ago = -capacity - 1
        self._hashes = array("q", bytes(8 * num_words))
        self._gone_at = array("q", [self._long_ago]) * num_words
        self._gone_bytes = 0

    def add(self, key: Hashable, nbytes: int) -> None:
        """Remember a key whose chunk of so many bytes is evicted now."""
        hashed = hash(key)
        place = hashed & self._mask
        self._gone_bytes += nbytes
        self._hashes[place] = hashed
        self._gone_at[place] = self._gone_bytes

    def take(self, key: Hashable) -> bool:
        """Return whether a key was evicted a short time ago, and forget it."""
        hashed = hash(key)
        place = hashed & self._mask
        if self._hashes[place] != hashed or self._gone_bytes - self._gone_at[place] > self._capacity:
            return False
        self._gone_at[place] = self._long_ago
        return True
