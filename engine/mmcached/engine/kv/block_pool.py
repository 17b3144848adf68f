"""The KV blocks of one engine as numbers: who is free, who is referenced, who holds published content.

    free, no content --get--> held --publish--> held, published
          ^                    |                   |
          +------- free -------+                   +--free--> free, published --touch--> held, published
          ^                                                          |
          +------------------------ evict (get, oldest first) -------+

Free blocks are handed out in two tiers: those without published content first, the last freed first (good locality,
spares the cache); then published ones, the longest free first. Block 0 is the null block, which is never handed out,
freed or published. The same content may be published in several blocks (two requests computed it at once): tables are
append-only, so none of them is replaced; a lookup finds the one published first.

>>> pool = BlockPool(5)
>>> pool.get_new_blocks(3)
[1, 2, 3]
>>> pool.publish(1, b"digest")
>>> pool.free_blocks([3, 2, 1])
>>> pool.free_order()
[3, 2, 4, 1]

Knows nothing of requests, tokens or steps. Invariant: free + held + null block = all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from mmcached.wire.errors import InvariantError, LocalProtocolError

NULL_BLOCK_ID = 0
_LOOKUPS_AT_ONCE = 64


class BlockPool:
    """Blocks `0 … num_blocks - 1`, of which block 0 is never used."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._block_hashes: list[bytes | None] = [None] * num_blocks
        self._free_unpublished = list(range(num_blocks - 1, NULL_BLOCK_ID, -1))  # handed out from its end
        self._free_published: OrderedDict[int, None] = OrderedDict()  # handed out from its front
        self._hash_to_block_id: dict[bytes, int] = {}  # the one that a lookup finds
        self._hash_to_others: dict[bytes, list[int]] = {}  # published later under the same digest; rare
        self._num_others = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, published ones included."""
        return len(self._free_unpublished) + len(self._free_published)

    @property
    def num_held(self) -> int:
        return self.num_blocks - 1 - self.num_free

    @property
    def num_published(self) -> int:
        return len(self._hash_to_block_id) + self._num_others

    def ref_cnt(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def block_hash(self, block_id: int) -> bytes | None:
        """Return the digest under which the block is published, or None."""
        return self._block_hashes[block_id]

    def get_cached_block(self, block_hash: bytes) -> int | None:
        """Return the block that holds this content, the first published if there are several. Changes nothing."""
        return self._hash_to_block_id.get(block_hash)

    def get_cached_prefix(self, block_hashes: Iterable[bytes]) -> list[int]:
        """Return the blocks that hold these contents, up to the first that is not there. Changes nothing."""
        find, rest = self._hash_to_block_id.get, iter(block_hashes)
        found: list[int] = []
        while part := list(map(find, islice(rest, _LOOKUPS_AT_ONCE))):
            if None in part:
                found += part[: part.index(None)]  # type: ignore[arg-type]  # up to the first None there is none
                break
            found += part  # type: ignore[arg-type]
        return found

    def num_unreferenced(self, block_ids: Iterable[int]) -> int:
        """Count those that `touch` would take out of the free blocks."""
        return sum(self._ref_counts[block_id] == 0 for block_id in block_ids)

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Hand out free blocks, each with one reference and no content.

        Raises:
            LocalProtocolError: more than are free; nothing has changed.
        """
        if num_blocks > self.num_free:
            raise LocalProtocolError(f"{num_blocks} blocks asked for, {self.num_free} free; ask num_free first")
        num_unpublished = min(num_blocks, len(self._free_unpublished))
        first = len(self._free_unpublished) - num_unpublished
        block_ids = self._free_unpublished[first:][::-1]
        del self._free_unpublished[first:]
        for _ in range(num_blocks - num_unpublished):
            block_id, _ = self._free_published.popitem(last=False)
            self._unpublish(block_id)
            block_ids.append(block_id)
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add a reference to published blocks, reviving those that are free."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._free_published[block_id]
            self._ref_counts[block_id] += 1

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Take back one reference each; the first in the list is the first to be handed out or evicted again.

        Raises:
            InvariantError: a block has no reference to take back; nothing has changed.
        """
        ref_counts, block_hashes, free_published = self._ref_counts, self._block_hashes, self._free_published
        if len(set(block_ids)) < len(block_ids) or not all(map(ref_counts.__getitem__, block_ids)):
            for block_id, count in Counter(block_ids).items():
                if ref_counts[block_id] < count:
                    raise InvariantError(f"block {block_id} freed {count}x, referenced {ref_counts[block_id]}x")
        unpublished = []
        for block_id in block_ids:
            ref_counts[block_id] -= 1
            if not ref_counts[block_id]:
                if block_hashes[block_id] is None:
                    unpublished.append(block_id)
                else:
                    free_published[block_id] = None
        self._free_unpublished += unpublished[::-1]

    def publish(self, block_id: int, block_hash: bytes) -> None:
        """Make a held block's content findable.

        Raises:
            InvariantError: the block is not held, or is published already.
        """
        if self._ref_counts[block_id] == 0 or self._block_hashes[block_id] is not None:
            raise InvariantError(f"block {block_id} cannot be published: not held, or published before")
        self._block_hashes[block_id] = block_hash
        if self._hash_to_block_id.setdefault(block_hash, block_id) != block_id:
            self._hash_to_others.setdefault(block_hash, []).append(block_id)
            self._num_others += 1

    def unpublish_all(self) -> None:
        """Forget all content. Free blocks keep their order; held blocks stay with their holders."""
        self._free_unpublished = self.free_order()[::-1]
        self._free_published.clear()
        self._hash_to_block_id.clear()
        self._hash_to_others.clear()
        self._num_others = 0
        self._block_hashes = [None] * self.num_blocks

    def free_order(self) -> list[int]:
        """Return all free blocks in the order in which they would be handed out."""
        return [*reversed(self._free_unpublished), *self._free_published]

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Compare all books with each other and with the tables of those who hold blocks.

        Raises:
            InvariantError: they differ; the text says where.
        """
        held = Counter(block_id for table in tables for block_id in table)
        free = self.free_order()
        if len(free) != len(set(free)) or {*free, *held, NULL_BLOCK_ID} != set(range(self.num_blocks)):
            raise InvariantError(
                f"free {free} + held {sorted(held)} + null is not 0 … {self.num_blocks - 1}, each once"
            )
        for block_id in range(self.num_blocks):
            if self._ref_counts[block_id] != held[block_id]:
                raise InvariantError(
                    f"block {block_id}: {self._ref_counts[block_id]} references, in {held[block_id]} table(s)"
                )
        if any(self._ref_counts[block_id] for block_id in free) or self._block_hashes[NULL_BLOCK_ID] is not None:
            raise InvariantError("a free block is referenced, or the null block is published")
        for block_id in free:
            if (self._block_hashes[block_id] is not None) != (block_id in self._free_published):
                raise InvariantError(f"block {block_id} is free in the wrong tier")
        by_hash = {(block_id, key) for key, block_id in self._hash_to_block_id.items()}
        by_hash |= {(block_id, key) for key, others in self._hash_to_others.items() for block_id in others}
        by_block = {(block_id, key) for block_id, key in enumerate(self._block_hashes) if key is not None}
        if not self._hash_to_others.keys() <= self._hash_to_block_id.keys() or [] in self._hash_to_others.values():
            raise InvariantError("a digest has further blocks, but no first, or an empty list of them")
        if by_hash != by_block or len(by_hash) != self.num_published:
            raise InvariantError(f"map and blocks disagree on what is published: {by_hash ^ by_block}")

    def _unpublish(self, block_id: int) -> None:
        block_hash = self._block_hashes[block_id]
        if block_hash is None:
            raise InvariantError(f"block {block_id} was free as published, but has no content")
        self._block_hashes[block_id] = None
        if self._num_others and block_hash in self._hash_to_others:
            self._unpublish_one_of_several(block_id, block_hash)
        else:
            del self._hash_to_block_id[block_hash]

    def _unpublish_one_of_several(self, block_id: int, block_hash: bytes) -> None:
        """A lookup finds the next that was published, if this was the first."""
        others = self._hash_to_others[block_hash]
        if self._hash_to_block_id[block_hash] == block_id:
            self._hash_to_block_id[block_hash] = others.pop(0)
        else:
            others.remove(block_id)
        if not others:
            del self._hash_to_others[block_hash]
        self._num_others -= 1
