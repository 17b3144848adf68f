"""Moves an LRU cache of sized values by whole requests: the one move that both ends of a mirrored cache make.

    pass 1   remember what is there of the request's keys
    pass 2   in prompt order, put each item: the one given, else the one remembered

The first pass makes a request get what it had when it came, whatever its own items evict. A touch besides would change
nothing, so a caller may touch, on one end or both, as the two-pass rule is usually told.

Both ends make this same move with the same sizes, so they hold the same keys in the same order without a word between
them. Nothing here depends on whether an item was given or remembered; so these cases too come out alike on both ends:

    larger than the capacity           served, not kept; an older value of its key goes, for it is not the newest
    together larger than the capacity  the last items stay, in prompt order; one that an earlier item of the request
                                       evicted is served from what pass 1 remembered, and put back
    a key twice in one request         the second is served what the first brought, whether that was kept or not
    a key that comes again with data   the new value takes the place of the old, with its own size

Invariant: the sizes of all entries sum up to `usage`, which is at most the capacity. Not thread-safe.

Source: the two rounds of vLLM's processor caches; there a key that its own request evicts is a miss.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mmcached.wire.errors import InvariantError

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Entry(Generic[V]):
    """A value and the bytes it counts for, which both ends of a mirror must know alike."""

    nbytes: int
    value: V


class RequestLRU(Generic[V]):
    """Key -> entry, at most `capacity` bytes in sum; the least recently used go first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.usage = 0
        self._entries: OrderedDict[str, Entry[V]] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def find(self, key: str) -> Entry[V] | None:
        """Return the entry of a key; changes nothing."""
        return self._entries.get(key)

    def touch(self, key: str) -> Entry[V] | None:
        """Make a present key young and return its entry: `move` of this one item, with nothing given."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def move(self, keys: Sequence[str], given: Sequence[Entry[V] | None]) -> list[Entry[V] | None]:
        """Do all that one request does to the cache.

        Args:
            keys: of the request's items, in prompt order; a key may come more than once.
            given: for each, the entry that came with the request, or None: it should be here.
        Returns:
            for each, its entry; None where nothing was given and nothing is here. The others are kept all the same.
        """
        if len(keys) == len(given) == 1:  # nothing of it can evict what it needs
            fresh = given[0]
            if fresh is None:
                return [self.touch(keys[0])]
            self._put(keys[0], fresh)
            return [fresh]
        wanted = list(zip(keys, given, strict=True))
        held = {key: entry for key in keys if (entry := self._entries.get(key)) is not None}
        found: list[Entry[V] | None] = []
        for key, fresh in wanted:
            entry = held.get(key) if fresh is None else fresh
            if entry is not None:
                held[key] = entry
                self._put(key, entry)
            found.append(entry)
        return found

    def discard(self, key: str) -> None:
        """Forget a key; an absent one changes nothing."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.usage -= entry.nbytes

    def clear(self) -> None:
        self._entries.clear()
        self.usage = 0

    def contents(self) -> list[tuple[str, int]]:
        """Return `(key, bytes)` of all entries, the oldest first: what two ends compare."""
        return [(key, entry.nbytes) for key, entry in self._entries.items()]

    def check_integrity(self) -> None:
        """Raise InvariantError when the sizes do not sum up to the usage, or exceed the capacity."""
        total = sum(entry.nbytes for entry in self._entries.values())
        if total != self.usage or total > max(self.capacity, 0):
            raise InvariantError(f"LRU cache: sizes sum to {total}, usage {self.usage}, capacity {self.capacity}")

    def _put(self, key: str, entry: Entry[V]) -> None:
        """Make an entry the youngest, and evict the oldest for it; one larger than the capacity only replaces."""
        self.discard(key)
        if entry.nbytes > self.capacity:
            return
        self.usage += entry.nbytes
        while self.usage > self.capacity:
            _, evicted = self._entries.popitem(last=False)
            self.usage -= evicted.nbytes
        self._entries[key] = entry
