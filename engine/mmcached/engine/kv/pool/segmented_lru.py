"""Segmented LRU: content requested twice outlives content used once, which makes eviction scan-resistant.

    new content                                    asked for again: found by a lookup, or
         |                                         published once more soon after it was evicted
         v add                                              v add
    | probation, first ... last | then | protected, first ... last |   first to be evicted: the left end
                             ^                        |
                             +------- the oldest -----+   when more than a third of the pool is protected

A long prompt that is not repeated evicts probation blocks; protected blocks are evicted only when running requests hold
all others. The oldest protected blocks return to probation. A third is a compromise: less protects little, more leaves
new content too little time to be requested again.

>>> order = SegmentedLruOrder(9)  # at most 3 protected blocks
>>> order.stored([1, 2, 3, 4, 5, 6], [b"one", b"two", b"three", b"four", b"five", b"six"])
>>> order.hit([1, 2])
>>> order.add([2, 1])
>>> order.add([6, 5, 4, 3])
>>> order.order()  # the two blocks that were hit come after a longer and younger prompt
[6, 5, 4, 3, 2, 1]
>>> order.remove([4, 3]); order.hit([4, 3]); order.add([4, 3])
>>> order.order()  # a fourth protected block exceeds the limit: 2 is on probation again
[6, 5, 2, 1, 4, 3]
>>> order.take(1)
[6]
>>> order.forgotten([b"six"])
>>> order.stored([6], [b"six"])  # evicted too early, so protected now
>>> order.add([6])
>>> order.order()
[5, 2, 1, 4, 3, 6]

Remembers the keys of the last evictions: as many as the pool has blocks, at times twice as many (about 120 bytes each).
Like LRU, finds nothing in a loop over more content than the pool holds.

Invariant: a block is in one segment; it is protected exactly if its content was requested again since it was stored or
last on probation. Tails are evicted before heads if callers add them in that order.

Source: segmented LRU, Karedla et al., Computer 27 (3), 1994; remembered keys as in 2Q, VLDB '94.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmcached.engine.kv.pool.eviction import LruOrder

PROTECTED_PART = 3  # at most 1 / PROTECTED_PART of the pool's blocks are protected


class SegmentedLruOrder:
    """Segmented-LRU eviction order for a pool of `num_blocks` blocks; its own content observer."""

    def __init__(self, num_blocks: int) -> None:
        self.num_protected_max = num_blocks // PROTECTED_PART
        self._probation = LruOrder()
        self._protected = LruOrder()
        self._wanted: set[int] = set()  # blocks, held or free, whose content was requested again
        self._forgotten = _LastKeys(num_blocks)

    @property
    def observer(self) -> SegmentedLruOrder:
        return self

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def add(self, block_ids: Sequence[int]) -> None:
        probation, protected = self._split(block_ids)
        self._probation.add(probation)
        self._protected.add(protected)
        num_too_many = len(self._protected) - self.num_protected_max
        if num_too_many > 0:
            demoted = self._protected.take(num_too_many)
            self._wanted.difference_update(demoted)
            self._probation.add(demoted)

    def remove(self, block_ids: Sequence[int]) -> None:
        probation, protected = self._split(block_ids)
        self._probation.remove(probation)
        self._protected.remove(protected)

    def take(self, num_blocks: int) -> list[int]:
        num_on_probation = min(num_blocks, len(self._probation))
        taken = self._probation.take(num_on_probation) if num_on_probation else []
        if num_on_probation < num_blocks:
            protected = self._protected.take(num_blocks - num_on_probation)
            self._wanted.difference_update(protected)
            taken += protected
        return taken

    def order(self) -> list[int]:
        return self._probation.order() + self._protected.order()

    def clear(self) -> None:
        self._probation.clear()
        self._protected.clear()
        self._wanted.clear()
        self._forgotten.clear()

    def stored(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> None:
        if not self._forgotten.is_disjoint(keys):
            known = map(self._forgotten.has, keys)
            self._wanted.update(block_id for block_id, is_known in zip(block_ids, known, strict=True) if is_known)

    def hit(self, block_ids: Sequence[int]) -> None:
        self._wanted.update(block_ids)

    def forgotten(self, keys: Sequence[bytes]) -> None:
        self._forgotten.add(keys)

    def _split(self, block_ids: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Split blocks into those for probation and those to be protected, each in the given order."""
        wanted = self._wanted
        if wanted.isdisjoint(block_ids):
            return block_ids, ()
        on_probation = [block_id for block_id in block_ids if block_id not in wanted]
        if not on_probation:
            return (), block_ids
        return on_probation, [block_id for block_id in block_ids if block_id in wanted]


class _LastKeys:
    """The last `num_keys` or more distinct keys, in two generations: when the newer is full, it replaces the older.

    Neither grows beyond `num_keys` plus the keys of one call.
    """

    def __init__(self, num_keys: int) -> None:
        self._num_keys = num_keys
        self._newer: set[bytes] = set()
        self._older: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def add(self, keys: Iterable[bytes]) -> None:
        self._newer.update(keys)
        if len(self._newer) >= self._num_keys:
            self._newer, self._older = set(), self._newer

    def has(self, key: bytes) -> bool:
        return key in self._newer or key in self._older

    def is_disjoint(self, keys: Sequence[bytes]) -> bool:
        return self._newer.isdisjoint(keys) and self._older.isdisjoint(keys)

    def clear(self) -> None:
        self._newer = set()
        self._older = set()
