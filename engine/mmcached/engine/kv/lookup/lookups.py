"""Finds the longest cached prefix of a request, and caches the hits of requests that were refused.

The request at the head of the queue asks again at every step until blocks are free, so refused lookups are kept if
there is a single group of full attention. A kept hit is still the longest if none of its blocks was unpublished, the
request has the same number of tokens, and the first missing block is still missing. While no hit has been taken since
the refusal, at least as many of its blocks are free as then.

Invariant: a kept hit equals the result of a new lookup.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from mmcached.engine.kv.blocks import KVCacheBlocks, Version
from mmcached.engine.kv.lookup.coordinator import Coordinator
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.request_hashes import RequestHashes
from mmcached.engine.kv.steps import Steps
from mmcached.engine.steps.request import Request, RequestId

CAPACITY = 8
"""Lookups kept at once: a scheduler asks for the head of its queue, perhaps for a few requests after it."""


@dataclass(slots=True)
class _Kept:
    """Lookup of a refused request.

    Attributes:
        num_request_tokens: length of the request at the lookup.
        missing_key: content key of the first missing block; None if none was missing.
        num_unreferenced: free blocks of the hit when `num_taken` hits had been taken.
        is_intact: whether all blocks of the hit have kept their content.
    """

    hit: KVCacheBlocks
    num_tokens: int
    num_request_tokens: int
    missing_key: bytes | None
    num_unreferenced: int
    num_taken: int
    block_ids: frozenset[int]
    is_intact: bool = True


class PrefixLookups:
    def __init__(
        self, pool: BlockPool, steps: Steps, hashes: RequestHashes, coordinator: Coordinator, nothing: KVCacheBlocks
    ) -> None:
        self._pool = pool
        self._steps = steps
        self._hashes = hashes
        self._coordinator = coordinator
        self._nothing = nothing
        self._kept: OrderedDict[RequestId, _Kept] = OrderedDict()
        self._num_taken = 0
        pool.on_unpublished = self._note_unpublished

    def find(self, request: Request, max_num_tokens: int | None = None) -> tuple[KVCacheBlocks, int]:
        """Return the longest hit of a request and its length in tokens; never includes the last token."""
        kept = self._kept.get(request.request_id) if self._kept and max_num_tokens is None else None
        if kept is not None and self._is_current(kept, request):
            kept.hit.version = self._version(request)
            return kept.hit, kept.num_tokens
        most = request.num_tokens - 1
        if max_num_tokens is not None:
            most = min(most, max_num_tokens)
        ids, num_tokens = self._coordinator.find_longest_cache_hit(self._hashes.of(request), most)
        if not num_tokens:
            return self._nothing, 0
        return KVCacheBlocks(self._pool, ids, self._version(request)), num_tokens

    def check(self, request: Request, hit: KVCacheBlocks, num_hit_tokens: int) -> None:
        """Raise `ValueError` unless a hit has the given length and its blocks still hold the request's content."""
        groups = self._coordinator.groups
        lengths = [len(ids) * group.block_size for ids, group in zip(hit.ids, groups, strict=True)]
        if any(length != num_hit_tokens for length in lengths) or (num_hit_tokens and not lengths):
            raise ValueError(f"new_computed_blocks hold {lengths} tokens, num_new_computed_tokens = {num_hit_tokens}")
        if num_hit_tokens and hit.version != self._version(request) and not self._is_there(request, hit.ids):
            raise ValueError(f"request {request.request_id}: blocks of the hit were evicted since; look it up again")

    def is_computed(self, hit: KVCacheBlocks) -> bool:
        """Return whether the states of a hit exist: a reserved one does only when its step has been committed."""
        return not any(
            group.kind.has_state and ids and self._steps.writes_block(ids[-1])
            for group, ids in zip(self._coordinator.groups, hit.ids, strict=True)
        )

    def fits(self, request: Request, hit: KVCacheBlocks, num_more_blocks: int) -> bool:
        """Return whether `num_more_blocks` blocks are free besides the free blocks of the hit."""
        num_free = self._pool.num_free - num_more_blocks
        if hit is self._nothing:
            return num_free >= 0
        kept = self._kept.get(request.request_id) if self._kept else None
        is_known = kept is not None and kept.hit is hit and kept.num_taken == self._num_taken
        if kept is not None and is_known and kept.num_unreferenced > num_free:
            return False
        return sum(map(self._pool.num_unreferenced, hit.ids)) <= num_free

    def note_refused(self, request: Request, hit: KVCacheBlocks) -> None:
        """Keep the hit of a request that was refused for lack of free blocks and will ask again."""
        kept = self._kept.get(request.request_id)
        if kept is not None and kept.hit is hit and kept.num_taken == self._num_taken:
            return
        self.forget_request(request.request_id)
        groups, ids = self._coordinator.groups, hit.ids[0] if hit.ids else ()
        if len(groups) > 1 or not ids or not groups[0].kind.is_downward_closed or groups[0].kind.num_recomputed:
            return
        if hit.version != self._version(request) or not all(map(self._pool.block_key, ids)):
            return
        self._kept[request.request_id] = _Kept(
            hit,
            len(ids) * groups[0].block_size,
            request.num_tokens,
            self._missing_key(request, len(ids)),
            self._pool.num_unreferenced(ids),
            self._num_taken,
            frozenset(ids),
        )
        if len(self._kept) > CAPACITY:
            self._kept.popitem(last=False)

    def note_admitted(self, request: Request, num_hit_tokens: int) -> None:
        self._num_taken += num_hit_tokens > 0
        self.forget_request(request.request_id)

    def forget_request(self, request_id: RequestId) -> None:
        if self._kept:
            self._kept.pop(request_id, None)

    def _version(self, request: Request) -> Version:
        return request.request_id, self._pool.num_forgotten + self._steps.num_forgotten

    def _is_there(self, request: Request, ids: Sequence[Sequence[int]]) -> bool:
        block_hashes = self._hashes.of(request)
        for group, block_ids in zip(self._coordinator.groups, ids, strict=True):
            keys = group.keys(block_hashes, 0, len(block_ids))
            if len(keys) < len(block_ids):
                return False  # the hit is longer than the request
            for block_id, key in zip(block_ids, keys, strict=True):
                is_here = self._pool.block_key(block_id) == key or self._steps.is_reserved(block_id, key)
                if not is_here and block_id != NULL_BLOCK_ID:
                    return False
        return True

    def _missing_key(self, request: Request, num_found: int) -> bytes | None:
        group = self._coordinator.groups[0]
        num_wanted = min((request.num_tokens - 1) // group.block_size, len(request.block_hashes))
        return group.key_at(request.block_hashes, num_found) if num_found < num_wanted else None

    def _is_current(self, kept: _Kept, request: Request) -> bool:
        if kept.num_request_tokens != request.num_tokens or not kept.is_intact:
            return False
        key = kept.missing_key
        return key is None or (self._pool.find(key) is None and key not in self._steps.reserved)

    def _note_unpublished(self, block_ids: Sequence[int]) -> None:
        for kept in self._kept.values():
            kept.is_intact = kept.is_intact and kept.block_ids.isdisjoint(block_ids)
