"""Models caches in plain words, to compare an eviction policy with: whole objects, and prefixes of blocks.

    LRU        out goes what was not asked for the longest
    Fifo       out goes what came first, asked for or not; so does a ring without leases or hits
    Sieve      a hand goes from old to new over the order of arrival, spares once what was hit; nothing ever moves
    S3Fifo     a small queue on probation, a large one for what was hit there or came back soon after it left
    furthest   knows the future: out goes the most bytes × time until the next use. A greedy choice, so no proven bound,
               but what no policy that does not know the future comes near

All hold `capacity` bytes exactly, as nothing that has to be laid out can, and every miss brings the object in.

Invariant: the sizes of what is held never exceed the capacity.

>>> cache = Sieve(3)
>>> [cache.request(key, 1) for key in "abcadb"]  # d pushes out b, since a was hit
[False, False, False, True, False, False]

Source: SIEVE, NSDI '24; S3-FIFO, SOSP '23.

**Prefixes of blocks.** `ideal_lru` and `belady` hold nothing for running requests: between two prompts, all blocks are
theirs to keep or to give up. A block is found if all blocks before it are (the prefix rule) and it is not the prompt's
last (the last token is always computed).

ideal_lru  gives up tails before heads, like a request that is freed
belady     knows all prompts to come. After each prompt it keeps, of what was there and what the prompt brought, the
           blocks whose next use is nearest; of one prompt's, its head. A block that a prompt will bring anew without
           finding it has no next use before that, and is given up at once

Why Belady is the optimum: leave the prefix rule out. Then a block found is a span kept from the last prompt that
brought it to the one that finds it, and no more spans may lie over any gap between prompts than there are blocks. To
keep as many spans as possible, giving up the one that ends last is optimal. And this choice obeys the prefix rule by
itself: when a tail is found, its head is wanted by the same prompt, and whoever brought the tail brought the head. So
the head's span began no earlier and ends at the same time, and of such spans the tail's is given up first. So no policy
under the rule finds more, not even one that leaves new blocks out; one that holds blocks for running requests can only
find less. It is a bound for blocks found; the best policy for time or for requests would keep others.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Hashable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from scripts.bench.traces import Prompt


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


def furthest(keys: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], capacity: int) -> npt.NDArray[np.bool_]:
    """Return which requests hit. A new object may be the one that goes at once.

    Args:
        keys: `(num_requests,)`, each an index into `sizes`.
        sizes: `(num_objects,)` bytes.
    """
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
            victim = np.argmax((key_to_use - now).astype(np.float64) * held_sizes)
            used -= int(held_sizes[victim])
            held_sizes[victim] = 0
    return hits


NEVER = 1 << 40


def ideal_lru(prompts: Sequence[Prompt], num_blocks: int) -> int:
    """Return how many blocks of the counted prompts are found."""
    cached: OrderedDict[int, None] = OrderedDict()
    found = 0
    for prompt in prompts:
        found += _num_found(prompt, cached)
        for block_id in reversed(prompt.block_ids[: prompt.num_full]):
            cached[block_id] = None
            cached.move_to_end(block_id)
        while len(cached) > num_blocks:
            cached.popitem(last=False)
    return found


def belady(prompts: Sequence[Prompt], num_blocks: int) -> int:
    """Return how many blocks of the counted prompts are found."""
    cached: dict[int, int] = {}  # block: the prompt of its next use
    furthest: list[tuple[int, int, int]] = []  # (-next use, -position, block), perhaps out of date
    found = 0
    for prompt, next_uses in zip(prompts, _next_uses(prompts), strict=True):
        found += _num_found(prompt, cached)
        for position, next_use in enumerate(next_uses):
            block_id = prompt.block_ids[position]
            if next_use == NEVER:
                cached.pop(block_id, None)
            else:
                cached[block_id] = next_use
                heapq.heappush(furthest, (-next_use, -position, block_id))
        while len(cached) > num_blocks:
            next_use, _, block_id = heapq.heappop(furthest)
            if cached.get(block_id) == -next_use:
                del cached[block_id]
    return found


def num_counted(prompts: Sequence[Prompt]) -> int:
    """Return how many blocks the counted prompts have."""
    return sum(len(prompt.block_ids) for prompt in prompts if prompt.is_counted)


def _num_found(prompt: Prompt, cached: Container[int]) -> int:
    if not prompt.is_counted:
        return 0
    for position, block_id in enumerate(prompt.block_ids[:-1]):
        if block_id not in cached:
            return position
    return len(prompt.block_ids) - 1


def _next_uses(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return for each full block of each prompt the index of the next prompt that would find it.

    `NEVER` if none does, or if another prompt brings it before that: as its last block, which is computed in any case,
    or without being counted. Nothing is worth keeping for these.
    """
    next_uses: list[list[int]] = []
    block_to_next: dict[int, int] = {}
    for index in range(len(prompts) - 1, -1, -1):
        prompt = prompts[index]
        brought = prompt.block_ids[: prompt.num_full]
        next_uses.append([block_to_next.get(block_id, NEVER) for block_id in brought])
        block_to_next.update(dict.fromkeys(brought, NEVER))
        if prompt.is_counted:
            block_to_next.update(dict.fromkeys(prompt.block_ids[:-1], index))
    return next_uses[::-1]
