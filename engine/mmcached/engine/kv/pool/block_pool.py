"""Knows the KV blocks of one engine as numbers: free, referenced, with or without published content.

    free, no content --get--> held --publish--> held, published <--touch--+
          ^                    |                       |                  |
          +------- free -------+                       +------free--> free, published
          ^                                                               |
          +--------------- evict (get, in the policy's order) ------------+

Free blocks are handed out in two tiers: those without published content first, the last freed first (good locality,
spares the cache); then published ones, in the order of the eviction policy. Block 0 is the null block, which stands in
tables where no content is needed: it is never handed out or published, and has no references.

>>> pool = BlockPool(5)
>>> pool.get_new_blocks(3)
[1, 2, 3]
>>> pool.publish([1], [b"digest"])
()
>>> pool.free_blocks([3, 2, 1])
>>> pool.free_order()
[3, 2, 4, 1]

All calls take and return many blocks at once, and make one pass over them. Knows nothing of requests, tokens or steps.
Invariant: free + held + null block = all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from typing import Protocol

from mmcached.engine.kv.pool.eviction import EvictionOrder, LruOrder
from mmcached.engine.kv.pool.published import PublishedBlocks
from mmcached.wire.errors import InvariantError, LocalProtocolError

NULL_BLOCK_ID = 0


class ChangeLog(Protocol):
    """Notes which contents are gone."""

    def removed(self, keys: list[bytes]) -> None:
        """These, at least one, were evicted, and no block holds them any longer. The list is the callee's to keep."""
        ...

    def cleared(self) -> None:
        """All content was forgotten at once."""
        ...


class BlockPool:
    """Blocks `0 … num_blocks - 1`, of which block 0 is never used.

    Args:
        num_blocks: at least 1, the null block.
        policy: an empty order in which published blocks are evicted; plain LRU if None.
        log: notes contents that are gone; None costs nothing.

    Attributes:
        find, find_prefix: `PublishedBlocks.find` and `find_prefix`.
        on_unpublished: called with blocks that have lost their content; None costs nothing.
    """

    def __init__(self, num_blocks: int, policy: EvictionOrder | None = None, *, log: ChangeLog | None = None) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._num_free = num_blocks - 1
        self._free_unpublished = list(range(num_blocks - 1, NULL_BLOCK_ID, -1))  # handed out from its end
        self._free_published: EvictionOrder = LruOrder() if policy is None else policy
        self._published = PublishedBlocks(self._ref_counts)
        self._observer = self._free_published.observer
        self._log = log
        self.find = self._published.find
        self.find_prefix = self._published.find_prefix
        self.on_unpublished: Callable[[Sequence[int]], None] | None = None

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, published ones included."""
        return self._num_free

    @property
    def num_held(self) -> int:
        return self.num_blocks - 1 - self._num_free

    @property
    def num_published(self) -> int:
        return len(self._published)

    @property
    def num_forgotten(self) -> int:
        """Grows whenever a key leads to another block than before, or to none."""
        return self._published.num_forgotten

    def ref_cnt(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def block_key(self, block_id: int) -> bytes | None:
        """Return the key under which the block is published, or None."""
        return self._published.key_of[block_id]

    def num_unreferenced(self, block_ids: Sequence[int]) -> int:
        """Count those that `touch` would take out of the free blocks."""
        num_unreferenced = list(map(self._ref_counts.__getitem__, block_ids)).count(0)
        return num_unreferenced - block_ids.count(NULL_BLOCK_ID) if num_unreferenced else 0

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Hand out free blocks, each with one reference and no content.

        Raises:
            LocalProtocolError: more than are free; nothing has changed.
        """
        if num_blocks > self._num_free:
            raise LocalProtocolError(f"{num_blocks} blocks asked for, {self._num_free} free; ask num_free first")
        free, ref_counts = self._free_unpublished, self._ref_counts
        block_ids = free[: -num_blocks - 1 : -1]
        if block_ids:
            del free[-len(block_ids) :]
        if len(block_ids) < num_blocks:
            evicted = self._free_published.take(num_blocks - len(block_ids))
            self._forget(evicted)
            block_ids += evicted
        for block_id in block_ids:
            ref_counts[block_id] = 1
        self._num_free -= num_blocks
        return block_ids

    def touch(self, block_ids: Sequence[int]) -> None:
        """Add a reference to blocks that were found, reviving those that are free. The null block is passed over.

        Raises:
            InvariantError: a block is free and not published; nothing has changed.
        """
        ref_counts, key_of = self._ref_counts, self._published.key_of
        revived = []
        for block_id in block_ids:
            if not ref_counts[block_id]:
                if block_id == NULL_BLOCK_ID:
                    continue
                revived.append(block_id)
            ref_counts[block_id] += 1
        if revived:
            if not all(map(key_of.__getitem__, revived)):
                for block_id in filter(None, block_ids):
                    ref_counts[block_id] -= 1
                raise InvariantError(f"of the free blocks {revived}, not all are published: they cannot be shared")
            self._num_free -= len(revived)
            self._free_published.remove(revived)
        if self._observer is not None:
            # What a step in flight is going to fill is shared before it is published: no content was found there.
            found = [block_id for block_id in block_ids if key_of[block_id] is not None]
            if found:
                self._observer.hit(found)

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Take back one reference each; the first in the list is the first to be handed out or evicted again.

        The null block is passed over.

        Raises:
            InvariantError: a block has no reference to take back; nothing has changed.
        """
        ref_counts, key_of, rest = self._ref_counts, self._published.key_of, iter(block_ids)
        for block_id in rest:
            if ref_counts[block_id] != 1 or key_of[block_id] is None:
                self._free_mixed(block_ids, len(block_ids) - 1 - length_hint(rest))
                return
            ref_counts[block_id] = 0
        if block_ids:  # all of them published, and nobody else's
            self._num_free += len(block_ids)
            self._free_published.add(block_ids)

    def publish(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> Sequence[int]:
        """Make the contents of held blocks findable, each under the key at its place. No key is empty.

        Returns:
            The indices of those whose content was there before, in another block; mostly the empty tuple.

        Raises:
            InvariantError: a block is not held, or published already, or there is not one key per block; nothing has
                changed.
        """
        copies = self._published.add(block_ids, keys)
        if self._observer is not None and block_ids:
            self._observer.stored(block_ids, keys)
        return copies

    def unpublish(self, block_ids: Iterable[int]) -> None:
        """Forget the content of some blocks; those without any are passed over. Free ones are handed out next."""
        published = [block_id for block_id in dict.fromkeys(block_ids) if self.block_key(block_id) is not None]
        free = [block_id for block_id in published if not self._ref_counts[block_id]]
        self._free_published.remove(free)
        self._forget(published)
        self._free_unpublished += free

    def unpublish_all(self) -> None:
        """Forget all content. Free blocks keep their order; held blocks stay with their holders."""
        self._free_unpublished = self.free_order()[::-1]
        self._free_published.clear()
        self._published.clear()
        if self.on_unpublished is not None:
            self.on_unpublished(range(self.num_blocks))
        if self._log is not None:
            self._log.cleared()

    def free_order(self) -> list[int]:
        """Return all free blocks in the order in which they would be handed out."""
        return [*reversed(self._free_unpublished), *self._free_published.order()]

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Compare all books with each other and with the tables of those who hold blocks.

        Raises:
            InvariantError: they differ; the text says where.
        """
        held = Counter(block_id for table in tables for block_id in filter(None, table))
        for block_id, ref_count in enumerate(self._ref_counts):
            if ref_count != held[block_id]:
                raise InvariantError(f"block {block_id}: {ref_count} references, in {held[block_id]} table(s)")
        free, published = self.free_order(), self._free_published.order()
        if not self._num_free == len(free) == len(set(free)) or len(published) != len(self._free_published):
            raise InvariantError(
                f"{self._num_free} blocks are free: {len(free)} in order, {len(set(free))} different ones, of which "
                f"{len(published)} published, {len(self._free_published)} by the policy's count"
            )
        usable = set(range(NULL_BLOCK_ID + 1, self.num_blocks))
        if not held.keys().isdisjoint(free) or held.keys() | set(free) != usable:
            raise InvariantError(
                f"blocks {sorted(held.keys() & set(free))} are free and held, "
                f"blocks {sorted((held.keys() | set(free)) ^ usable)} neither, or do not exist"
            )
        if misplaced := {block_id for block_id in free if self.block_key(block_id) is not None} ^ set(published):
            raise InvariantError(f"blocks {sorted(misplaced)} are free in the wrong tier")
        if self.block_key(NULL_BLOCK_ID) is not None:
            raise InvariantError("the null block is published")
        self._published.check_integrity()

    def _forget(self, block_ids: list[int]) -> None:
        """Unpublish these published blocks, and notify who listens."""
        if self.on_unpublished is not None:
            self.on_unpublished(block_ids)
        if self._log is None and self._observer is None:
            self._published.remove(block_ids)
        elif gone := self._published.remove_and_tell(block_ids):
            if self._observer is not None:
                self._observer.forgotten(gone)
            if self._log is not None:
                self._log.removed(gone)

    def _free_mixed(self, block_ids: Sequence[int], num_done: int) -> None:
        """Go on with `free_blocks`: the first blocks were published and nobody else's, the next one is not."""
        ref_counts, key_of = self._ref_counts, self._published.key_of
        published = list(block_ids[:num_done])
        unpublished: list[int] = []
        is_overdrawn = False
        for block_id in filter(None, block_ids[num_done:]):
            count = ref_counts[block_id] = ref_counts[block_id] - 1
            if count == 0:
                (unpublished if key_of[block_id] is None else published).append(block_id)
            elif count < 0:
                is_overdrawn = True
        if is_overdrawn:
            for block_id in filter(None, block_ids):
                ref_counts[block_id] += 1
            raise InvariantError(f"blocks freed more often than they are referenced: {self._overdrawn(block_ids)}")
        self._num_free += len(published) + len(unpublished)
        if published:
            self._free_published.add(published)
        unpublished.reverse()
        self._free_unpublished += unpublished

    def _overdrawn(self, block_ids: Sequence[int]) -> dict[int, str]:
        """Say of which blocks more references would be taken back than there are."""
        num_freed, ref_counts = Counter(filter(None, block_ids)), self._ref_counts
        return {
            block_id: f"{num}x, referenced {ref_counts[block_id]}x"
            for block_id, num in num_freed.items()
            if num > ref_counts[block_id]
        }
