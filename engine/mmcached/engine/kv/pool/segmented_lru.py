"""Orders blocks by segmented LRU: content asked for again outlives content used once, so that scans pass by.

    new content                                    asked for again: found by a lookup, or
         |                                         published once more soon after it was evicted
         v add                                              v add
    | probation, first ... last | then | protected, first ... last |   first to be given up: the left end
                             ^                        |
                             +------- the oldest -----+   when more than a third of the pool is protected

A long prompt that nobody repeats, or a batch of them, pushes out what is on probation; what is protected goes only when
running requests hold all the rest. Protection ends: what is not asked for any longer becomes the oldest protected
block, and is on probation again. The third is a compromise: a smaller one protects less, a larger one leaves new
content too little time to be asked for again.

>>> order = SegmentedLruOrder(9)  # room for 3 protected blocks
>>> order.stored([1, 2, 3, 4, 5, 6], [b"one", b"two", b"three", b"four", b"five", b"six"])
>>> order.hit([1, 2])
>>> order.add([2, 1])
>>> order.add([6, 5, 4, 3])
>>> order.order()  # the two that were found wait behind a longer and younger prompt
[6, 5, 4, 3, 2, 1]
>>> order.remove([4, 3]); order.hit([4, 3]); order.add([4, 3])
>>> order.order()  # a fourth protected block is one too many: 2 is on probation again
[6, 5, 2, 1, 4, 3]
>>> order.take(1)
[6]
>>> order.forgotten([b"six"])
>>> order.stored([6], [b"six"])  # it left too early
>>> order.add([6])
>>> order.order()
[5, 2, 1, 4, 3, 6]

What is remembered of evicted content are its keys: those of the last evictions, as many as the pool has blocks, and at
times twice as many (about 120 bytes each). It does not help against a loop over more than the pool holds: all of it
comes back, so all of it is protected in turn, and nothing is found, as with LRU.

Knows nothing of requests or tokens. Invariant: a block in the order is in one segment, protected exactly if its content
was asked for again since it was stored or last on probation. If callers add a sequence's tail before its head, tails
are given up before heads here too: whoever asks for a tail asks for its head.

Source: segmented LRU, Karedla et al., Computer 27 (3), 1994; remembered keys as in 2Q, VLDB '94.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmcached.engine.kv.pool.eviction import LruOrder

PROTECTED_PART = 3  # one in so many blocks of the pool can be protected


class SegmentedLruOrder:
    """The free published blocks of a pool of `num_blocks`, which hears of content itself.

    Every operation is one or two of plain LRU and, for what is hit, stored or forgotten, one of a set.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_protected_max = num_blocks // PROTECTED_PART
        self._probation = LruOrder()
        self._protected = LruOrder()
        self._wanted: set[int] = set()  # blocks, held or free, whose content was asked for again
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
        """Return those for probation and those to be protected, each in the order given. Changes nothing."""
        wanted = self._wanted
        if wanted.isdisjoint(block_ids):
            return block_ids, ()
        on_probation = [block_id for block_id in block_ids if block_id not in wanted]
        if not on_probation:
            return (), block_ids
        return on_probation, [block_id for block_id in block_ids if block_id in wanted]


class _LastKeys:
    """At least the last `num_keys` different keys that were added, in two generations.

        | older | newer <- add        when the newer one is full, it becomes the older one, which is dropped

    Neither grows beyond `num_keys` and what one call adds.
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
