"""Pool of KV block ids: reference counts, free blocks, and published content.

    free, no content --get--> held --publish--> held, published <--touch--+
          ^                    |                       |                  |
          +------- free -------+                       +------free--> free, published
          ^                                                               |
          +--------------- evict (get, least recently freed) ------------+

Free blocks are handed out in two tiers: first unpublished blocks, last freed first (for locality, and to spare the
cache); then published blocks, least recently freed first. Block 0 is the null block, a placeholder in tables:
it is never handed out, published or referenced.

>>> pool = BlockPool(5)
>>> pool.get_new_blocks(3)
[1, 2, 3]
>>> pool.publish([1], [b"digest"])
()
>>> pool.free_blocks([3, 2, 1])
>>> pool.free_order()
[3, 2, 4, 1]

Failed calls change nothing. Invariant: free + held + null block = all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from typing import Protocol

from mmcached.engine.kv.pool.eviction import LruOrder
from mmcached.engine.kv.pool.published import PublishedBlocks
from mmcached.wire.errors import InvariantError, LocalProtocolError

NULL_BLOCK_ID = 0


class ChangeLog(Protocol):
    """Log of contents that are no longer cached."""

    def removed(self, keys: list[bytes]) -> None:
        """Log that no block holds these contents any longer. `keys` is not empty; the callee may keep the list."""
        ...

    def cleared(self) -> None: ...


class BlockPool:
    """Pool of the blocks `0 … num_blocks - 1`, of which block 0 is never used.

    Attributes:
        find, find_prefix: `PublishedBlocks.find` and `find_prefix`.
        on_unpublished: called with blocks that have lost their content; may be None.
    """

    def __init__(self, num_blocks: int, *, log: ChangeLog | None = None) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._num_free = num_blocks - 1
        self._free_unpublished = list(range(num_blocks - 1, NULL_BLOCK_ID, -1))  # handed out from its end
        self._free_published = LruOrder()
        self._published = PublishedBlocks(self._ref_counts)
        self._log = log
        self.find = self._published.find
        self.find_prefix = self._published.find_prefix
        self.on_unpublished: Callable[[Sequence[int]], None] | None = None

    @property
    def num_free(self) -> int:
        """Number of blocks that can be handed out, published blocks included."""
        return self._num_free

    @property
    def num_held(self) -> int:
        return self.num_blocks - 1 - self._num_free

    @property
    def num_published(self) -> int:
        return len(self._published)

    @property
    def num_forgotten(self) -> int:
        """Counter that grows whenever a key no longer leads to the same block."""
        return self._published.num_forgotten

    def ref_cnt(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def block_key(self, block_id: int) -> bytes | None:
        return self._published.key_of[block_id]

    def num_unreferenced(self, block_ids: Sequence[int]) -> int:
        """Return the number of blocks that `touch` would remove from the free blocks."""
        num_unreferenced = list(map(self._ref_counts.__getitem__, block_ids)).count(0)
        return num_unreferenced - block_ids.count(NULL_BLOCK_ID) if num_unreferenced else 0

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Hand out free blocks with one reference each; raises `LocalProtocolError` if too few are free."""
        if num_blocks > self._num_free:
            raise LocalProtocolError(f"{num_blocks} blocks requested, {self._num_free} free; check num_free first")
        free, ref_counts = self._free_unpublished, self._ref_counts
        block_ids = free[: -num_blocks - 1 : -1]
        if block_ids:
            del free[-len(block_ids) :]
        if len(block_ids) < num_blocks:
            evicted = self._free_published.take_blocks(num_blocks - len(block_ids))
            self._forget(evicted)
            block_ids += evicted
        for block_id in block_ids:
            ref_counts[block_id] = 1
        self._num_free -= num_blocks
        return block_ids

    def touch(self, block_ids: Sequence[int]) -> None:
        """Add a reference to each block, removing free blocks from the eviction order. Skips the null block.

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

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop one reference per block. Blocks listed first are reused or evicted first; the null block is skipped.

        Raises:
            InvariantError: a block has no reference to drop; nothing has changed.
        """
        ref_counts, key_of, rest = self._ref_counts, self._published.key_of, iter(block_ids)
        for block_id in rest:
            if ref_counts[block_id] != 1 or key_of[block_id] is None:
                self._free_mixed(block_ids, len(block_ids) - 1 - length_hint(rest))
                return
            ref_counts[block_id] = 0
        if block_ids:  # all of them published, with no other reference
            self._num_free += len(block_ids)
            self._free_published.add(block_ids)

    def publish(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> Sequence[int]:
        """Make the contents of held blocks findable under `keys`, one non-empty key per block.

        Returns:
            The indices of the blocks whose content was published before in another block; usually the empty tuple.

        Raises:
            InvariantError: a block is not held or already published, or there is not one key per block; nothing has
                changed.
        """
        return self._published.add(block_ids, keys)

    def unpublish(self, block_ids: Iterable[int]) -> None:
        """Drop the content of blocks; skips blocks without content. Free blocks among them are handed out next."""
        published = [block_id for block_id in dict.fromkeys(block_ids) if self.block_key(block_id) is not None]
        free = [block_id for block_id in published if not self._ref_counts[block_id]]
        self._free_published.remove(free)
        self._forget(published)
        self._free_unpublished += free

    def unpublish_all(self) -> None:
        """Drop all content. Free blocks keep their order; held blocks stay held."""
        self._free_unpublished = self.free_order()[::-1]
        self._free_published.clear()
        self._published.clear()
        if self.on_unpublished is not None:
            self.on_unpublished(range(self.num_blocks))
        if self._log is not None:
            self._log.cleared()

    def free_order(self) -> list[int]:
        return [*reversed(self._free_unpublished), *self._free_published.order()]

    def _forget(self, block_ids: list[int]) -> None:
        """Unpublish published blocks, and notify the log and `on_unpublished`."""
        if self.on_unpublished is not None:
            self.on_unpublished(block_ids)
        if self._log is None:
            self._published.remove(block_ids)
        elif gone := self._published.remove_and_return_keys(block_ids):
            self._log.removed(gone)

    def _free_mixed(self, block_ids: Sequence[int], num_done: int) -> None:
        """Continue `free_blocks` after `num_done` blocks that were published and had a single reference."""
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
        num_freed, ref_counts = Counter(filter(None, block_ids)), self._ref_counts
        return {
            block_id: f"{num}x, referenced {ref_counts[block_id]}x"
            for block_id, num in num_freed.items()
            if num > ref_counts[block_id]
        }
