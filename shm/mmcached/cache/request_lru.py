"""An LRU cache of sized values that is updated by whole requests, identically at both ends of a mirrored cache.

    pass 1   remember the present entries of the request's keys
    pass 2   in prompt order, put each item: the given entry, else the remembered one

Because of the first pass a request gets the entries that were present when it came, whatever its own items evict. An
additional touch would change nothing, so either end may touch, as the two-pass rule is usually described.

Both ends make the same update with the same sizes, so they hold the same keys in the same order without a message.
Nothing depends on whether an entry was given or remembered, so these cases are the same on both ends, too:

    larger than the capacity           served, not kept; an older value of its key is dropped, as it is outdated
    together larger than the capacity  the last items stay, in prompt order; one that an earlier item of the request
                                       evicted is served from pass 1, and put back
    a key twice in one request         the second is served the first one's entry, whether that was kept or not
    a key that comes again with data   the new value replaces the old, with its own size

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
    """A value and the bytes it counts for, which must be equal at both ends of a mirror."""

    nbytes: int
    value: V


class RequestLRU(Generic[V]):
    """Key -> entry, at most `capacity` bytes in total; the least recently used are evicted first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.usage = 0
        self._entries: OrderedDict[str, Entry[V]] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def find(self, key: str) -> Entry[V] | None:
        """Return the entry of a key, without touching it."""
        return self._entries.get(key)

    def touch(self, key: str) -> Entry[V] | None:
        """Touch a present key and return its entry: `move` of this one item without a given entry."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def move(self, keys: Sequence[str], given: Sequence[Entry[V] | None]) -> list[Entry[V] | None]:
        """Make the whole update of one request.

        Args:
            keys: Keys of the request's items, in prompt order; a key may occur more than once.
            given: For each, the entry that came with the request, or None if it should be here.

        Returns:
            For each, its entry; None where it was neither given nor here. The others are kept all the same.
        """
        if len(keys) == len(given) == 1:  # a single item cannot evict an entry that it needs
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
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.usage -= entry.nbytes

    def clear(self) -> None:
        self._entries.clear()
        self.usage = 0

    def contents(self) -> list[tuple[str, int]]:
        """Return `(key, bytes)` of all entries, the oldest first, for comparing both ends."""
        return [(key, entry.nbytes) for key, entry in self._entries.items()]

    def check_integrity(self) -> None:
        """Raise InvariantError if the sizes do not sum up to the usage, or exceed the capacity."""
        total = sum(entry.nbytes for entry in self._entries.values())
        if total != self.usage or total > max(self.capacity, 0):
            raise InvariantError(f"LRU cache: sizes sum to {total}, usage {self.usage}, capacity {self.capacity}")

    def _put(self, key: str, entry: Entry[V]) -> None:
        """Make an entry the youngest, evicting the oldest; one larger than the capacity only drops the old value."""
        self.discard(key)
        if entry.nbytes > self.capacity:
            return
        self.usage += entry.nbytes
        while self.usage > self.capacity:
            _, evicted = self._entries.popitem(last=False)
            self.usage -= evicted.nbytes
        self._entries[key] = entry
