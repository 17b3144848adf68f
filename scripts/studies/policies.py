"""Caches in plain words, by other policies than ours, and one that knows the future: the peers of `eviction`.

All hold `capacity` bytes exactly, as nothing that has to be laid out can, and every miss brings the object in.

    LRU        out goes what was not asked for the longest
    Fifo       out goes what came first, asked for or not; so does a ring without leases or hits
    Sieve      a hand goes from old to new over the order of arrival, spares once what was hit; nothing ever moves
    S3Fifo     a small queue on probation, a large one for what was hit there or came back soon after it left
    furthest   knows the future: out goes the most bytes × time until the next use. A greedy choice, so no proven bound,
               but what no policy that does not know the future comes near

Invariant: the sizes of what is held never exceed the capacity.

>>> cache = Sieve(3)
>>> [cache.request(key, 1) for key in "abcadb"]  # d pushes out b, since a was hit
[False, False, False, True, False, False]

Source: SIEVE, NSDI '24; S3-FIFO, SOSP '23.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Policy(Protocol):
    def request(self, key: Hashable, size: int) -> bool:
        """Return whether the object of `size` bytes was there; it is now."""


class Lru:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._used = 0
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()

    def request(self, key: Hashable, size: int) -> bool:
        if key in self._sizes:
            self._touch(key)
            return True
        while self._used + size > self.capacity:
            self._used -= self._sizes.popitem(last=False)[1]
        self._sizes[key] = size
        self._used += size
        return False

    def _touch(self, key: Hashable) -> None:
        self._sizes.move_to_end(key)


class Fifo(Lru):
    def _touch(self, key: Hashable) -> None:
        pass


class Sieve:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._used = 0
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()  # ahead of the hand, oldest first, then all behind it
        self._is_hit: dict[Hashable, bool] = {}
        self._behind: OrderedDict[Hashable, int] = OrderedDict()  # the hand has passed them in this round

    def request(self, key: Hashable, size: int) -> bool:
        if key in self._is_hit:
            self._is_hit[key] = True
            return True
        while self._used + size > self.capacity:
            self._evict_one()
        self._sizes[key] = size
        self._is_hit[key] = False
        self._used += size
        return False

    def _evict_one(self) -> None:
        while True:
            if not self._sizes:  # the hand is at the newest and begins again at the oldest
                self._sizes, self._behind = self._behind, self._sizes
            key, size = self._sizes.popitem(last=False)
            if not self._is_hit[key]:
                del self._is_hit[key]
                self._used -= size
                return
            self._is_hit[key] = False
            self._behind[key] = size


class S3Fifo:
    """A tenth of the bytes for the small queue; the ghosts stand for as many bytes as the large one has."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._small = _Queue()
        self._large = _Queue()
        self._ghosts = _Queue()
        self._hits: dict[Hashable, int] = {}

    def request(self, key: Hashable, size: int) -> bool:
        if key in self._hits:
            self._hits[key] = min(self._hits[key] + 1, 3)
            return True
        while self._small.used + self._large.used + size > self.capacity:
            self._evict_one()
        if key in self._ghosts.sizes:
            self._ghosts.remove(key)
            self._large.append(key, size)
        else:
            self._small.append(key, size)
        self._hits[key] = 0
        return False

    def _evict_one(self) -> None:
        if self._small.sizes and (self._small.used >= self.capacity // 10 or not self._large.sizes):
            key, size = self._small.pop()
            if not self._hits[key]:
                del self._hits[key]
                self._ghosts.append(key, size)
                while self._ghosts.used > self.capacity * 9 // 10:
                    self._ghosts.pop()
            else:
                self._hits[key] = 0
                self._large.append(key, size)
            return
        key, size = self._large.pop()
        if not self._hits[key]:
            del self._hits[key]
        else:
            self._hits[key] -= 1
            self._large.append(key, size)


class _Queue:
    def __init__(self) -> None:
        self.used = 0
        self.sizes: OrderedDict[Hashable, int] = OrderedDict()

    def append(self, key: Hashable, size: int) -> None:
        self.sizes[key] = size
        self.used += size

    def pop(self) -> tuple[Hashable, int]:
        key, size = self.sizes.popitem(last=False)
        self.used -= size
        return key, size

    def remove(self, key: Hashable) -> None:
        self.used -= self.sizes.pop(key)


def furthest(
    keys: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    capacity: int,
    weights: npt.NDArray[np.float64] | None = None,
) -> npt.NDArray[np.bool_]:
    """Return which requests hit. A new object may be the one that goes at once.

    Args:
        keys: `(num_requests,)`, each an index into `sizes`.
        sizes: `(num_objects,)` bytes.
        weights: `(num_objects,)`, in place of the sizes for the choice.
    """
    weights = sizes.astype(np.float64) if weights is None else weights
    num_requests, never = len(keys), 1 << 40
    next_uses = np.full(num_requests, never)
    key_to_next: dict[int, int] = {}
    for index in range(num_requests - 1, -1, -1):
        next_uses[index] = key_to_next.get(int(keys[index]), never)
        key_to_next[int(keys[index])] = index
    hits = np.zeros(num_requests, np.bool_)
    key_to_use = np.zeros(len(sizes), np.int64)
    held_sizes = np.zeros(len(sizes), np.int64)  # 0: not held
    used = 0
    for now, key in enumerate(keys):
        hits[now] = held_sizes[key] > 0
        key_to_use[key] = next_uses[now]
        if not hits[now]:
            held_sizes[key] = sizes[key]
            used += int(sizes[key])
        while used > capacity:
            victim = np.argmax((key_to_use - now) * np.where(held_sizes > 0, weights, 0.0))
            used -= int(held_sizes[victim])
            held_sizes[victim] = 0
    return hits


PEERS: dict[str, Callable[[int], Policy]] = {"LRU": Lru, "FIFO": Fifo, "SIEVE": Sieve, "S3-FIFO": S3Fifo}
