"""Blocks of a store: their holders, their hashes, and the order in which they are evicted.

A block has the same place in the arena of every key; for its states see the package docstring. Ids are assigned from 0
on, free blocks before new ones, so memory of unused ids is never touched.

Invariant: a block is free, or it has a hash or a holder; at most `capacity` blocks are not free.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from mmcached.wire.errors import InvariantError


class RowBlockPool:
    """Blocks of one store.

    Attributes:
        capacity: number of blocks that may be in use.
        hashes: hash of each block; None if it is open or free.
        is_sealed: `(num_blocks,)` bool; an announced block has a hash, but is not sealed.
        changed: hashes of blocks that were evicted or changed since it was last cleared.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.capacity = num_blocks
        self.hashes: list[bytes | None] = []
        self.is_sealed = np.zeros(num_blocks, dtype=np.bool_)
        self.changed: dict[bytes, None] = {}
        self.num_evictions = 0
        self._refs: list[int] = []
        self._free: list[int] = []
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[bytes, int] = {}

    @property
    def num_used(self) -> int:
        return len(self._refs) - len(self._free)

    @property
    def num_sealed(self) -> int:
        return len(self._block_of)

    @property
    def num_evictable(self) -> int:
        return len(self._evictable)

    @property
    def free(self) -> list[int]:
        """Free blocks that were in use once; the next to be taken is last."""
        return list(self._free)

    def find(self, block_hash: bytes) -> int | None:
        return self._block_of.get(block_hash)

    def take_block(self) -> int | None:
        """Return an open block with one holder, evicting if necessary; None if all blocks are held."""
        if self.num_used >= self.capacity and not self.evict():
            return None
        if self._free:
            block_id = self._free.pop()
        elif len(self._refs) < self.num_blocks:
            block_id = len(self._refs)
            self._refs.append(0)
            self.hashes.append(None)
        else:
            return None
        self._refs[block_id] = 1
        return block_id

    def announce(self, block_id: int, block_hash: bytes) -> None:
        """Make an open block findable by a new hash. Its rows are not final until `seal`."""
        self.hashes[block_id] = block_hash
        self._block_of[block_hash] = block_id
        self.changed[block_hash] = None

    def seal(self, block_id: int, block_hash: bytes) -> None:
        self.announce(block_id, block_hash)
        self.is_sealed[block_id] = True

    def note_changed(self, block_ids: np.ndarray) -> None:
        """Note that rows of these blocks may have changed; ignores negative ids."""
        for block_id in block_ids[self.is_sealed[block_ids] & (block_ids >= 0)].tolist() if self.hashes else ():
            self.changed[self.hashes[block_id] or b""] = None

    def note_all_changed(self) -> None:
        self.changed.update(dict.fromkeys(self._block_of))

    def hold(self, block_id: int) -> None:
        if not self._refs[block_id]:
            del self._evictable[block_id]
        self._refs[block_id] += 1

    def let_go(self, block_id: int) -> None:
        """Remove a holder. Without holders a sealed block becomes evictable, an open block free."""
        self._refs[block_id] -= 1
        if not self._refs[block_id]:
            if self.hashes[block_id] is None:
                self._free.append(block_id)
            else:
                self._evictable[block_id] = None

    def evict(self) -> bool:
        """Free the block that has been evictable longest; return whether there was one."""
        if not self._evictable:
            return False
        block_id, _ = self._evictable.popitem(last=False)
        block_hash = self.hashes[block_id]
        if block_hash is None:
            raise InvariantError(f"block {block_id} is evictable but has no hash")
        del self._block_of[block_hash]
        self.changed[block_hash] = None
        self.hashes[block_id] = None
        self.is_sealed[block_id] = False
        self._free.append(block_id)
        self.num_evictions += 1
        return True

    def resize(self, num_blocks: int) -> None:
        if self.num_used:
            raise InvariantError(f"{self.num_used} blocks are in use: cannot resize")
        self.num_blocks = self.capacity = num_blocks
        self.hashes.clear()
        self._refs.clear()
        self._free.clear()
        self.is_sealed = np.zeros(num_blocks, dtype=np.bool_)

    def clear(self) -> None:
        """Drop all hashes, also in `changed`; no block may have a holder."""
        self._evictable.clear()
        self._block_of.clear()
        self.changed.clear()
        self._free = list(range(len(self._refs) - 1, -1, -1))
        self.hashes = [None] * len(self._refs)
        self.is_sealed[:] = False
