"""LRU cache with a capacity in sizes, pins, and hit statistics.

    keys   oldest … newest        evicts the oldest keys that are not pinned, as few as the new value needs
    sizes  key -> size            measured once, when the value was put; later growth of a value is not noticed
    usage  = sum of sizes <= capacity

Not thread-safe. A refused `put` changes nothing.

Source: the behaviour of vLLM's `utils/cache.py`, with two differences: replacing a key counts its old size as freed,
and a put that cannot succeed evicts nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, KeysView, Mapping
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar, overload

from mmcached.wire.errors import CacheFull, InvariantError, ItemTooLarge

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class CacheInfo(NamedTuple):
    hits: int
    total: int

    @property
    def hit_ratio(self) -> float:
        return self.hits / self.total if self.total else 0.0

    def __sub__(self, other: CacheInfo) -> CacheInfo:
        return CacheInfo(self.hits - other.hits, self.total - other.total)


class LRUCache(Generic[K, V]):
    """Key -> value, with a limited sum of sizes.

    Args:
        capacity: The limit, in the unit of `getsizeof`.
        getsizeof: Returns the size of a value, at least 0; without it each value counts 1.
    """

    def __init__(self, capacity: int, getsizeof: Callable[[V], int] | None = None) -> None:
        self._capacity = capacity
        self._getsizeof = getsizeof
        self._values: OrderedDict[K, V] = OrderedDict()
        self._sizes: dict[K, int] = {}
        self._pinned: set[K] = set()
        self._usage = 0
        self._num_hits = self._num_queries = 0
        self._last_info = CacheInfo(0, 0)

    # ---- reading

    def __getitem__(self, key: K) -> V:
        """Return the value and mark it as most recently used; counts a hit. A miss raises KeyError, uncounted."""
        value = self._values[key]
        self._values.move_to_end(key)
        self._num_hits += 1
        self._num_queries += 1
        return value

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: D | None = None) -> V | D | None:
        """Return the value and mark it as most recently used, or the default; counts a hit or a miss."""
        self._num_queries += 1
        try:
            value = self._values[key]
        except KeyError:
            return default
        self._values.move_to_end(key)
        self._num_hits += 1
        return value

    def __contains__(self, key: object) -> bool:
        """Return whether the key is present; changes neither order nor statistics."""
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, oldest first."""
        return iter(self._values)

    # ---- order

    def touch(self, key: K) -> V | None:
        """Mark a present key as most recently used and return its value, else return None. Counts nothing."""
        value = self._values.get(key)
        if value is not None or key in self._values:
            self._values.move_to_end(key)
        return value

    def pin(self, key: K) -> None:
        """Protect a present key from eviction until `unpin`.

        Raises:
            ValueError: The key is absent.
        """
        if key not in self._values:
            raise ValueError(f"cannot pin {key!r}: it is not in the cache")
        self._pinned.add(key)

    def unpin(self, key: K) -> None:
        """Undo `pin`; a key that is not pinned changes nothing."""
        self._pinned.discard(key)

    # ---- writing

    def put(self, key: K, value: V) -> None:
        """Store the value as the most recently used; evict the oldest keys as far as necessary.

        A replaced key counts as freed, stays pinned if it was, and is not evicted for its own sake.

        Raises:
            ItemTooLarge: The value exceeds the capacity.
            CacheFull: It does not fit beside the pinned values.
        """
        size = 1 if self._getsizeof is None else self._getsizeof(value)
        if size > self._capacity:
            raise ItemTooLarge(size, self._capacity)
        for victim in self._victims(key, size):
            self._evict(victim)
        self._usage += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self._values[key] = value
        self._values.move_to_end(key)

    __setitem__ = put

    def put_if_fits(self, key: K, value: V) -> bool:
        """Store the value as `put` does; return False, unchanged, if it exceeds the capacity."""
        try:
            self.put(key, value)
        except ItemTooLarge:
            return False
        return True

    @overload
    def pop(self, key: K) -> V | None: ...
    @overload
    def pop(self, key: K, default: D) -> V | D: ...
    def pop(self, key: K, default: D | None = None) -> V | D | None:
        """Remove a key, pinned or not, and return its value, or return the default. Counts nothing."""
        if key not in self._values:
            return default
        return self._evict(key)

    def __delitem__(self, key: K) -> None:
        """Remove a key, pinned or not; raise KeyError if it is absent."""
        if key not in self._values:
            raise KeyError(key)
        self._evict(key)

    def popitem(self, remove_pinned: bool = False) -> tuple[K, V]:
        """Remove and return the oldest entry that is not pinned, or with `remove_pinned` the oldest.

        Raises:
            KeyError: The cache is empty.
            CacheFull: All keys are pinned.
        """
        if not self._values:
            raise KeyError("the cache is empty")
        for key in self._values:
            if remove_pinned or key not in self._pinned:
                return key, self._evict(key)
        raise CacheFull(0, self._capacity, self._usage)

    def remove_oldest(self) -> None:
        """Call `popitem`, unless the cache is empty."""
        if self._values:
            self.popitem()

    def clear(self) -> None:
        """Remove all entries, pinned or not, and restart the statistics."""
        while self._values:
            self.popitem(remove_pinned=True)
        self._num_hits = self._num_queries = 0
        self._last_info = CacheInfo(0, 0)

    # ---- views

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def usage(self) -> int:
        return self._usage

    @property
    def cache(self) -> Mapping[K, V]:
        """A read-only view, oldest first; looking into it changes neither order nor statistics."""
        return MappingProxyType(self._values)

    @property
    def order(self) -> KeysView[K]:
        """A view of the keys, oldest first."""
        return self._values.keys()

    @property
    def pinned_items(self) -> frozenset[K]:
        return frozenset(self._pinned)

    def stat(self, delta: bool = False) -> CacheInfo:
        """Return hits and queries since the last `clear`, or with `delta` since the last call with `delta`."""
        info = CacheInfo(self._num_hits, self._num_queries)
        if not delta:
            return info
        difference = info - self._last_info
        self._last_info = info
        return difference

    def check_integrity(self) -> None:
        if self._values.keys() != self._sizes.keys() or not self._pinned <= self._values.keys():
            raise InvariantError("LRU cache: values, sizes and pins do not name the same keys")
        if sum(self._sizes.values()) != self._usage or self._usage > max(self._capacity, 0):
            total = sum(self._sizes.values())
            raise InvariantError(f"LRU cache: sizes sum to {total}, usage {self._usage}, capacity {self._capacity}")
        if not self._num_hits <= self._num_queries:
            raise InvariantError(f"LRU cache: {self._num_hits} hits of {self._num_queries} queries")

    # ---- helpers

    def _on_remove(self, key: K, value: V) -> None:
        """Called after a key was evicted, popped, deleted or cleared; not when its value is replaced."""

    def _victims(self, key: K, size: int) -> list[K]:
        """Return the keys to evict so that `key` can have `size`, oldest first; changes nothing."""
        missing = self._usage - self._sizes.get(key, 0) + size - self._capacity
        if missing <= 0:
            return []
        victims: list[K] = []
        for candidate in self._values:
            if missing <= 0:
                break
            if candidate not in self._pinned and candidate != key:
                victims.append(candidate)
                missing -= self._sizes[candidate]
        if missing > 0:
            raise CacheFull(size, self._capacity, sum(self._sizes[pinned] for pinned in self._pinned))
        return victims

    def _evict(self, key: K) -> V:
        value = self._values.pop(key)
        self._usage -= self._sizes.pop(key)
        self._pinned.discard(key)
        self._on_remove(key, value)
        return value
