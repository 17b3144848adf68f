"""The longest cached prefix of a request: looked up, remembered while the request is blocked, and checked when taken.

Knows nothing of free blocks or tables. Invariant: nothing here changes what a lookup finds.
"""

from __future__ import annotations

from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.lookup.coordinator import CachedBlocks, Coordinator
from mmcached.engine.kv.lookup.memo import Memos
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.publisher import Publisher
from mmcached.engine.kv.steps import Steps
from mmcached.engine.steps.request import Request


class PrefixLookups:
    """Lookups of one manager.

    Args:
        nothing: what is returned if nothing is found.
        num_recomputed: blocks at the end of what is found that are left out of a hit.
    """

    def __init__(
        self,
        pool: BlockPool,
        steps: Steps,
        publisher: Publisher,
        coordinator: Coordinator,
        *,
        nothing: KVCacheBlocks,
        num_recomputed: int,
    ) -> None:
        self._pool = pool
        self._steps = steps
        self._publisher = publisher
        self._coordinator = coordinator
        self._groups = coordinator.groups
        self._memos = Memos(pool, steps, publisher, self._groups, num_recomputed=num_recomputed)
        self._nothing = nothing

    def find(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Return the longest hit of a request, and its length in tokens; the last token is never in it."""
        memo = self._memos.find(request) if self._memos else None
        if memo is not None:
            return memo.found, memo.num_tokens
        digests = self._publisher.digests(request)
        ids, num_tokens = self._coordinator.find_longest_cache_hit(digests, request.num_tokens - 1)
        if not num_tokens:
            return self._nothing, 0
        return KVCacheBlocks(self._pool, ids, self._memos.origin(request)), num_tokens

    def find_up_to(self, request: Request, max_num_tokens: int) -> tuple[KVCacheBlocks, int]:
        """As `find`, of at most so many tokens; looked up anew each time, and checked where it is taken."""
        digests = self._publisher.digests(request)
        ids, num_tokens = self._coordinator.find_longest_cache_hit(digests, min(request.num_tokens - 1, max_num_tokens))
        return (KVCacheBlocks(self._pool, ids), num_tokens) if num_tokens else (self._nothing, 0)

    def check(self, request: Request, hit: KVCacheBlocks, num_hit_tokens: int) -> None:
        """Return if a hit is what it is said to be, and is there still.

        Raises:
            ValueError: its blocks do not hold so many tokens, or were evicted since.
        """
        lengths = [len(ids) * group.block_size for ids, group in zip(hit.ids, self._groups, strict=True)]
        if any(length != num_hit_tokens for length in lengths) or (num_hit_tokens and not lengths):
            raise ValueError(f"new_computed_blocks hold {lengths} tokens, num_new_computed_tokens = {num_hit_tokens}")
        if not num_hit_tokens or (hit.origin is not None and hit.origin[:2] == self._memos.origin(request)[:2]):
            return  # nothing was forgotten since
        if not self._memos.vouches_for(request, hit) and not self._is_there(request, hit):
            raise ValueError(f"request {request.request_id}: blocks of the hit were evicted since; look it up again")

    def fits(self, request: Request, hit: KVCacheBlocks, num_more_blocks: int) -> bool:
        """Whether so many blocks are free beside those of a hit, which leave the free blocks if nobody holds them."""
        num_free = self._pool.num_free - num_more_blocks
        if hit is self._nothing:
            return num_free >= 0
        if self._memos and self._memos.num_surely_unreferenced(request, hit) > num_free:
            return False
        return sum(map(self._pool.num_unreferenced, hit.ids)) <= num_free

    def was_refused(self, request: Request, hit: KVCacheBlocks, num_hit_tokens: int) -> None:
        """There were too few free blocks behind a hit: it will be asked for again."""
        self._memos.remember(request, hit, num_hit_tokens)

    def was_taken(self, request: Request, num_hit_tokens: int) -> None:
        """A request was admitted with its hit."""
        if num_hit_tokens:
            self._memos.hit_was_taken()
        if self._memos:
            self._memos.drop(request.request_id)

    def forget(self, request_id: int) -> None:
        """Forget what is remembered of a request, if anything is."""
        if self._memos:
            self._memos.drop(request_id)

    def clear(self) -> None:
        """Forget all that is remembered."""
        self._memos.clear()

    def _is_there(self, request: Request, hit: KVCacheBlocks) -> bool:
        digests = self._publisher.digests(request)
        for group, ids in zip(self._groups, hit.ids, strict=True):
            keys, num_null = group.keys(digests, 0, len(ids)), ids.count(NULL_BLOCK_ID)
            if len(keys) < len(ids):
                return False  # of a longer request
            if self._pool.holds(ids[num_null:], keys[num_null:]):
                continue
            cached = CachedBlocks(self._pool, self._steps, group, digests)
            if not all(cached.is_at(ids[index], index) for index in range(num_null, len(ids))):
                return False
        return True
