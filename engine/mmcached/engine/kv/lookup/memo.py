"""The lookups of requests that were refused for lack of blocks, kept until they could turn out differently.

A request at the head of the line asks again at every step until blocks are free. With one group of full attention, its
hit is still the longest if none of its blocks has lost its content, its own tokens are the same, and the first block
that was missing is missing still; otherwise, if nothing at all was published or forgotten since. Its refusal stands if
it needs as many blocks as before, or more, and no more are free. A block of a hit that nobody held may be held since,
but only by a request that has taken a hit itself.

Knows nothing of tables. Invariant: what it returns is what a lookup would return now.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from mmcached.engine.kv.blocks import KVCacheBlocks, Origin
from mmcached.engine.kv.groups import Group
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.pool.published import Watch
from mmcached.engine.kv.publisher import Publisher
from mmcached.engine.kv.steps import Steps
from mmcached.engine.steps.request import Request

CAPACITY = 8
"""Lookups kept at once: a scheduler asks for the head of its line, perhaps for some behind it."""


@dataclass(slots=True)
class Memo:
    """One lookup.

    Attributes:
        found, num_tokens: its result; `found.origin` says when it was found.
        num_request_tokens: length of the request when it was made.
        missing_key: content key of the first block that was missing; None if all were there.
        num_unreferenced: blocks of the hit that were free, after `num_touches` hits had been taken.
    """

    found: KVCacheBlocks
    num_tokens: int
    num_request_tokens: int
    missing_key: bytes | None
    num_unreferenced: int
    num_touches: int
    watch: Watch


class Memos:
    """The last few, by request.

    Args:
        num_recomputed: blocks at the end of what is found that are left out of a hit.
    """

    def __init__(
        self, pool: BlockPool, steps: Steps, publisher: Publisher, groups: Sequence[Group], *, num_recomputed: int
    ) -> None:
        self._pool = pool
        self._steps = steps
        self._publisher = publisher
        self._groups = groups
        self._missing_key_says_all = len(groups) == 1 and groups[0].kind.is_downward_closed and not num_recomputed
        self._by_request: OrderedDict[int, Memo] = OrderedDict()
        self._num_touches = 0

    def origin(self, request: Request) -> Origin:
        """Return whose a hit is that is found now, and when that is: as long as this is the same, it is found again."""
        num_forgotten = self._pool.num_forgotten + self._steps.num_forgotten
        return request.request_id, num_forgotten, self._publisher.num_publications

    def __len__(self) -> int:
        return len(self._by_request)

    def find(self, request: Request) -> Memo | None:
        """Return what a lookup of this request would return, if that is known."""
        memo = self._by_request.get(request.request_id)
        return memo if memo is not None and self._is_current(memo, request) else None

    def vouches_for(self, request: Request, hit: KVCacheBlocks) -> bool:
        """Return whether a hit is known to be there still."""
        memo = self._by_request.get(request.request_id)
        return memo is not None and memo.found is hit and memo.watch.is_intact

    def num_surely_unreferenced(self, request: Request, hit: KVCacheBlocks) -> int:
        """Return a number of blocks of a hit of which at least so many are free; without a memo, 0."""
        memo = self._by_request.get(request.request_id)
        if memo is not None and memo.found is hit and memo.num_touches == self._num_touches:
            return memo.num_unreferenced
        return 0

    def remember(self, request: Request, hit: KVCacheBlocks, num_hit_tokens: int) -> None:
        """A request was refused: keep its hit, if all of it is published."""
        memo = self._by_request.get(request.request_id)
        if memo is not None and memo.found is hit and memo.num_touches == self._num_touches:
            return
        self.drop(request.request_id)
        if not num_hit_tokens or hit.origin != self.origin(request) or not self._is_published(hit):
            return
        self._by_request[request.request_id] = Memo(
            hit,
            num_hit_tokens,
            request.num_tokens,
            self._missing_key(request, len(hit.ids[0])),
            sum(map(self._pool.num_unreferenced, hit.ids)),
            self._num_touches,
            self._pool.watch(frozenset(block_id for ids in hit.ids for block_id in ids)),
        )
        if len(self._by_request) > CAPACITY:
            self.drop(next(iter(self._by_request)))

    def hit_was_taken(self) -> None:
        """Blocks of a hit are referenced that were not, or not as often."""
        self._num_touches += 1

    def drop(self, request_id: int) -> None:
        """Forget one, if it is there."""
        memo = self._by_request.pop(request_id, None)
        if memo is not None:
            self._pool.unwatch(memo.watch)

    def clear(self) -> None:
        for request_id in list(self._by_request):
            self.drop(request_id)

    def _is_published(self, hit: KVCacheBlocks) -> bool:
        key_of = self._pool.block_key
        return all(key_of(block_id) is not None for ids in hit.ids for block_id in ids if block_id != NULL_BLOCK_ID)

    def _missing_key(self, request: Request, num_found: int) -> bytes | None:
        group = self._groups[0]
        num_wanted = min((request.num_tokens - 1) // group.block_size, len(request.block_hashes) // group.ratio)
        return group.key_at(request.block_hashes, num_found) if num_found < num_wanted else None

    def _is_current(self, memo: Memo, request: Request) -> bool:
        if memo.num_request_tokens != request.num_tokens:
            return False
        if memo.found.origin == self.origin(request):
            return True
        return self._missing_key_says_all and memo.watch.is_intact and not self._can_be_found(memo.missing_key)

    def _can_be_found(self, key: bytes | None) -> bool:
        return key is not None and (self._pool.find(key) is not None or key in self._steps.reserved)
