"""The LRU cache behind every cache of processed items that is not the ring, and its one move: a whole request.

    pass 1   remember what is there of the request's keys
    pass 2   in prompt order, put each item: the one given, else the one remembered

The first pass is there so that a request gets what it had when it came, whatever its own items evict. To touch the keys
as well would change nothing: an item that is put back has evicted what a touch would have had evicted in its place. (So
a caller may touch, on one end or both, as the two-pass rule is usually told.)

P0's mirror and P1's receiver make this same move with the same sizes, so they hold the same keys in the same order
without a word between them. Nothing here depends on whether an item was given or remembered; therefore these cases too
come out alike on both ends:

    larger than the capacity           served, not kept; an older value of its key goes, for it is not the newest
    together larger than the capacity  the last items stay, in prompt order; one that an earlier item of the request
                                       evicted is served from what pass 1 remembered, and put back
    a key twice in one request         the second is served what the first brought, whether that was kept or not
    a key that comes again with data   the new value takes the place of the old, with its own size

Knows nothing of items, messages or statistics. Not thread-safe.

Source: the two rounds of vLLM's processor caches; there a key that its own request evicts is a miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mmcached.cache.lru import LRUCache

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Entry(Generic[V]):
    """A value and the bytes it counts for, which both ends of a mirror must know alike."""

    nbytes: int
    value: V


class RequestLRU(Generic[V]):
    """Key -> entry, at most `capacity` bytes in sum."""

    def __init__(self, capacity: int) -> None:
        self._lru: LRUCache[str, Entry[V]] = LRUCache(capacity, lambda entry: entry.nbytes)
        self._entries = self._lru.cache

    def __contains__(self, key: object) -> bool:
        return key in self._lru

    def __len__(self) -> int:
        return len(self._lru)

    def find(self, key: str) -> Entry[V] | None:
        """Return what is there; changes nothing."""
        return self._entries.get(key)

    def plan(self, keys: Sequence[str]) -> list[bool]:
        """Return for each key of a request whether `move` would find it with nothing given; changes nothing.

        A key that comes again in the request counts as found, for the first is to be given.
        """
        return [key in self._lru or key in keys[:index] for index, key in enumerate(keys)]

    def touch(self, key: str) -> Entry[V] | None:
        """Make a present key young and return its entry; an absent one changes nothing.

        For a request of this one item, it is all that `move` does with nothing given.
        """
        return self._lru.touch(key)

    def move(self, keys: Sequence[str], given: Sequence[Entry[V] | None]) -> list[Entry[V] | None]:
        """Do all that one request does to the cache.

        Args:
            keys: of the request's items, in prompt order; a key may come more than once.
            given: for each, the entry that came with the request, or None: it should be here.
        Returns:
            for each, its entry; None where nothing was given and nothing is here. The others are kept all the same.
        """
        if len(keys) == 1:
            return [self._move_one(keys[0], given[0])]
        wanted = list(zip(keys, given, strict=True))
        held = {key: entry for key in keys if (entry := self.find(key)) is not None}
        found: list[Entry[V] | None] = []
        for key, fresh in wanted:
            entry = held.get(key) if fresh is None else fresh
            if entry is not None:
                held[key] = entry
                self._put(key, entry)
            found.append(entry)
        return found

    def _move_one(self, key: str, fresh: Entry[V] | None) -> Entry[V] | None:
        """As `move`, for a request of one item: nothing of it can evict what it needs."""
        if fresh is None:
            return self._lru.touch(key)
        self._put(key, fresh)
        return fresh

    def discard(self, key: str) -> None:
        """Forget a key; an absent one changes nothing."""
        self._lru.pop(key)

    def clear(self) -> None:
        self._lru.clear()

    def contents(self) -> list[tuple[str, int]]:
        """Return `(key, bytes)` of all entries, the oldest first: what two ends compare."""
        return [(key, entry.nbytes) for key, entry in self._lru.cache.items()]

    @property
    def capacity(self) -> int:
        """The limit in bytes."""
        return self._lru.capacity

    @property
    def usage(self) -> int:
        """Sum of the sizes in bytes."""
        return self._lru.usage

    def check_integrity(self) -> None:
        self._lru.check_integrity()

    def _put(self, key: str, entry: Entry[V]) -> None:
        if not self._lru.put_if_fits(key, entry):
            self._lru.pop(key)
