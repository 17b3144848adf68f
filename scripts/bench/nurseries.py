"""Plays a store as a cache: nurseries of some writers beside a main ring, whose books are the product's.

    a miss, recently evicted     → main ring, proven, if the ring admits the return
    a miss, small or large       → main ring, on probation: below `DIRECT_BYTES`, or above a quarter of the nurseries
    a miss else                  → its writer's nursery: a FIFO queue; all share one budget of bytes
    the oldest over the budget   → main ring, proven, if it was hit; on probation, if it has room without an eviction;
                                   else evicted

Which writer puts a record is drawn. Over the budget the nursery that holds most loses its oldest record. A nursery has
bytes, no places: its records lie in the order in which they leave it, so no holes stay between them.

Invariant: nurseries and main ring together hold `capacity` bytes at most.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial

from mmcached.shm.ring.allocator import RingAllocator
from mmcached.shm.ring.departed import Departed

NURSERY_SHARE = 0.25
LARGEST_SHARE = 0.25
"""Of the nurseries' budget, that a record in one of them may take."""
DIRECT_BYTES = 64 << 10
NUM_SLOTS = 1 << 15


class StoreCache:
    """A store of `capacity` bytes.

    Args:
        num_writers: nurseries; 0: all records go into the main ring.
    Attributes:
        copied_bytes: what was copied from a nursery into the main ring.
    """

    def __init__(self, capacity: int, num_writers: int = 1) -> None:
        self._budget = int(NURSERY_SHARE * capacity) if num_writers else 0
        self._allocator = RingAllocator(capacity - self._budget, NUM_SLOTS)
        self._departed = Departed(capacity, NUM_SLOTS)
        self._key_to_slot: dict[Hashable, int] = {}
        self._slot_to_key: dict[int, Hashable] = {}
        self._nurseries = [_Nursery() for _ in range(num_writers)]
        self._key_to_nursery: dict[Hashable, _Nursery] = {}
        self._rng = random.Random(0)
        self.copied_bytes = 0

    def request(self, key: Hashable, size: int) -> bool:
        slot = self._key_to_slot.get(key)
        if slot is not None:
            self._allocator.hit(slot)
            return True
        nursery = self._key_to_nursery.get(key)
        if nursery is not None:
            nursery.hit_keys.add(key)
            return True
        if self._departed.take(key) and self._allocator.admits_return():
            self._place(key, size, is_proven=True)
        elif not DIRECT_BYTES <= size <= LARGEST_SHARE * self._budget:
            self._place(key, size, is_proven=False)
        else:
            self._lay(key, size)
        return False

    def _lay(self, key: Hashable, size: int) -> None:
        while sum(nursery.used for nursery in self._nurseries) + size > self._budget:
            fullest = max(self._nurseries, key=_used)
            oldest, its_size = fullest.sizes.popitem(last=False)
            fullest.used -= its_size
            del self._key_to_nursery[oldest]
            if oldest in fullest.hit_keys:
                fullest.hit_keys.remove(oldest)
                self.copied_bytes += its_size
                self._place(oldest, its_size, is_proven=True)
            elif self._place(oldest, its_size, is_proven=False, may_evict=False):
                self.copied_bytes += its_size
            else:
                self._departed.add(oldest, its_size)
        nursery = self._key_to_nursery[key] = self._rng.choice(self._nurseries)
        nursery.sizes[key] = size
        nursery.used += size

    def _place(self, key: Hashable, size: int, *, is_proven: bool, may_evict: bool = True) -> bool:
        """Put a record into the main ring; return whether there is room."""
        plan = self._allocator.plan(size, lambda slot: False)
        if plan is None or (plan.victims and not may_evict):
            return False
        for victim in plan.victims:
            gone = self._slot_to_key.pop(victim.slot)
            del self._key_to_slot[gone]
            self._departed.add(gone, victim.size)
        self._allocator.apply(plan)
        if is_proven:
            self._allocator.prove(plan.extent.slot)
        self._key_to_slot[key] = plan.extent.slot
        self._slot_to_key[plan.extent.slot] = key
        return True


class _Nursery:
    def __init__(self) -> None:
        self.used = 0
        self.sizes: OrderedDict[Hashable, int] = OrderedDict()
        self.hit_keys: set[Hashable] = set()


def _used(nursery: _Nursery) -> int:
    return nursery.used


STORES: dict[str, Callable[[int], StoreCache]] = {
    "1 writer": StoreCache,
    "4 writers": partial(StoreCache, num_writers=4),
    "no nurseries": partial(StoreCache, num_writers=0),
}
