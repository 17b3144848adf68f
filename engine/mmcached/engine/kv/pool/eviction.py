"""Orders the published blocks that nobody holds for eviction: the seam, and exact LRU.

           add (freed)                                    take (evicted)
    pool ---------------> | last in ... order() ... first | ---------------> pool
          <---------------
            remove (found again by a lookup, and referenced)

The pool puts every published block without a holder in, and takes each out once: by `take`, when room is needed and no
unpublished block is left, or by `remove`, when a request shares it again. An order that judges by more than age names
an observer, which hears what is published, found and forgotten; without one, the pool pays nothing for it.

Knows nothing of references, requests or tokens. Invariant: what was added and neither removed nor taken since is in
`order()` once, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_TOLERATED_WASTE = 1024  # entries; below that, dropping them is not worth a call


class ContentObserver(Protocol):
    """Hears what happens to content. Calls come in bulk, at least one block or key at a time.

    What becomes of one block: `stored`, then `hit` any number of times; `add` when its last holder leaves; then either
    `remove` and `hit` (in this order), from where it goes on as before, or `take` and, if no other block holds the same
    content, `forgotten`. `clear` ends all of it for every block, also for those that are held.
    """

    def stored(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> None:
        """Note that held blocks were published under these keys, in pairs; copies of older content are among them."""
        ...

    def hit(self, block_ids: Sequence[int]) -> None:
        """Note that a request has found these published blocks and shares them from now on."""
        ...

    def forgotten(self, keys: Sequence[bytes]) -> None:
        """Note that no block holds these contents any longer. Follows the `take` that evicted them."""
        ...


class EvictionOrder(Protocol):
    """The free published blocks of one pool. Every operation costs O(1) per block, on average at least."""

    @property
    def observer(self) -> ContentObserver | None:
        """The observer of content, mostly the order itself; None makes hearing cost nothing. Read once."""
        ...

    def __len__(self) -> int: ...

    def add(self, block_ids: Sequence[int]) -> None:
        """Put in blocks that are not there. Of these, the first is the first to be given up, all else being equal."""
        ...

    def remove(self, block_ids: Sequence[int]) -> None:
        """Take out these, which are there."""
        ...

    def take(self, num_blocks: int) -> list[int]:
        """Take out and return the first of `order()`, at most `len(self)` and at least one."""
        ...

    def order(self) -> list[int]:
        """Return what successive calls of `take` would return. Changes nothing; for tests and checks."""
        ...

    def clear(self) -> None:
        """Forget all blocks and whatever is remembered of any content."""
        ...


class LruOrder:
    """Exact LRU: the block that was freed the longest ago goes first.

    Entries are only ever appended, and read in slices:

        | taken before | live, and stale ones among them |
        0              _head                             ^ add

    `remove` searches nothing. It makes the block's oldest entry stale, to be skipped when it is reached; should the
    block be freed again, it has a second entry behind that one. Once more entries are taken or stale than live, all of
    them are dropped: memory stays below a fixed multiple of the largest number of live entries, and each entry pays a
    constant share. The call that does it takes about 40 ns per entry, 8 ms in a pool of 100,000 blocks, once per
    100,000 hits.
    """

    observer = None

    def __init__(self) -> None:
        self._entries: list[int] = []
        self._head = 0
        self._stale: dict[int, int] = {}  # by block: how many of its entries are stale, which are its oldest
        self._num_stale = 0

    def __len__(self) -> int:
        return len(self._entries) - self._head - self._num_stale

    def add(self, block_ids: Sequence[int]) -> None:
        self._entries += block_ids

    def remove(self, block_ids: Sequence[int]) -> None:
        stale = self._stale
        for block_id in block_ids:
            if block_id in stale:
                stale[block_id] += 1
            else:
                stale[block_id] = 1
        self._num_stale += len(block_ids)
        self._drop_waste()

    def take(self, num_blocks: int) -> list[int]:
        end = self._head + num_blocks
        taken = self._entries[self._head : end]
        if self._stale and not self._stale.keys().isdisjoint(taken):
            taken = self._take_around_stale(num_blocks)
        else:
            self._head = end
        self._drop_waste()
        return taken

    def order(self) -> list[int]:
        to_skip = dict(self._stale)
        live = []
        for block_id in self._entries[self._head :]:
            if block_id in to_skip:
                num_more = to_skip.pop(block_id) - 1
                if num_more:
                    to_skip[block_id] = num_more
            else:
                live.append(block_id)
        return live

    def clear(self) -> None:
        self._entries = []
        self._head = 0
        self._stale.clear()
        self._num_stale = 0

    def _take_around_stale(self, num_blocks: int) -> list[int]:
        entries, stale = self._entries, self._stale
        taken: list[int] = []
        while len(taken) < num_blocks:
            block_id = entries[self._head]
            self._head += 1
            if block_id in stale:
                num_more = stale.pop(block_id) - 1
                if num_more:
                    stale[block_id] = num_more
                self._num_stale -= 1
            else:
                taken.append(block_id)
        return taken

    def _drop_waste(self) -> None:
        num_wasted = self._head + self._num_stale
        if 2 * num_wasted > len(self._entries) + _TOLERATED_WASTE:
            self._entries = self.order() if self._stale else self._entries[self._head :]
            self._head = 0
            self._stale.clear()
            self._num_stale = 0
