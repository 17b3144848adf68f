"""Finds the longest cached prefix of a request, keeps it while the request is blocked, and checks it when it is taken.

A request at the head of the line asks again at every step until blocks are free, so the lookups of those that were
refused are kept, if there is one group of full attention. Such a hit is still the longest if none of its blocks has
lost its content, the request has as many tokens, and the first block that was missing is missing still. As long as
nobody has taken a hit since, at least as many of its blocks are free as at the refusal.

Knows nothing of tables. Invariant: nothing here changes what a lookup finds, and a hit that is kept is what a lookup
would find now.
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
from mmcached.engine.steps.request import Request

CAPACITY = 8
"""Lookups kept at once: a scheduler asks for the head of its line, perhaps for some behind it."""


@dataclass(slots=True)
class _Kept:
    """The lookup of a request that was refused.

    Attributes:
        num_tokens: length of the hit.
        num_request_tokens: length of the request at the lookup.
        missing_key: content key of the first block that was missing; None if all were there.
        num_unreferenced: blocks of the hit that were free when `num_taken` hits had been taken.
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
    """The lookups of one manager.

    Args:
        nothing: blocks returned if nothing is found.
    """

    def __init__(
        self, pool: BlockPool, steps: Steps, hashes: RequestHashes, coordinator: Coordinator, nothing: KVCacheBlocks
    ) -> None:
        self._pool = pool
        self._steps = steps
        self._hashes = hashes
        self._coordinator = coordinator
        self._nothing = nothing
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._num_taken = 0
        pool.on_unpublished = self._note_unpublished

    def find(self, request: Request, max_num_tokens: int | None = None) -> tuple[KVCacheBlocks, int]:
        """Return the longest hit of a request, and its length in tokens; the last token is never in it."""
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
        """Return if a hit is what it is said to be, and is there still.

        Raises:
            ValueError: its blocks do not hold so many tokens, or were evicted since.
        """
        groups = self._coordinator.groups
        lengths = [len(ids) * group.block_size for ids, group in zip(hit.ids, groups, strict=True)]
        if any(length != num_hit_tokens for length in lengths) or (num_hit_tokens and not lengths):
            raise ValueError(f"new_computed_blocks hold {lengths} tokens, num_new_computed_tokens = {num_hit_tokens}")
        if num_hit_tokens and hit.version != self._version(request) and not self._is_there(request, hit.ids):
            raise ValueError(f"request {request.request_id}: blocks of the hit were evicted since; look it up again")

    def fits(self, request: Request, hit: KVCacheBlocks, num_more_blocks: int) -> bool:
        """Return whether so many blocks are free beside those of a hit, some of which may be free themselves."""
        num_free = self._pool.num_free - num_more_blocks
        if hit is self._nothing:
            return num_free >= 0
        kept = self._kept.get(request.request_id) if self._kept else None
        is_known = kept is not None and kept.hit is hit and kept.num_taken == self._num_taken
        if kept is not None and is_known and kept.num_unreferenced > num_free:
            return False
        return sum(map(self._pool.num_unreferenced, hit.ids)) <= num_free

    def was_refused(self, request: Request, hit: KVCacheBlocks) -> None:
        """Keep the hit of a request for which too few blocks are free, because it is going to ask again."""
        kept = self._kept.get(request.request_id)
        if kept is not None and kept.hit is hit and kept.num_taken == self._num_taken:
            return
        self.forget(request.request_id)
        groups, ids = self._coordinator.groups, hit.ids[0] if hit.ids else ()
        if len(groups) > 1 or not ids or not groups[0].kind.is_downward_closed or groups[0].num_recomputed:
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

    def was_taken(self, request: Request, num_hit_tokens: int) -> None:
        """Note that a request was admitted with its hit, so that more blocks are referenced."""
        self._num_taken += num_hit_tokens > 0
        self.forget(request.request_id)

    def forget(self, request_id: int) -> None:
        """Forget what is kept of a request, if anything is."""
        if self._kept:
            self._kept.pop(request_id, None)

    def _version(self, request: Request) -> Version:
        return request.request_id, self._pool.num_forgotten + self._steps.num_forgotten

    def _is_there(self, request: Request, ids: Sequence[Sequence[int]]) -> bool:
        block_hashes = self._hashes.of(request)
        for group, block_ids in zip(self._coordinator.groups, ids, strict=True):
            keys = group.keys(block_hashes, 0, len(block_ids))
            if len(keys) < len(block_ids):
                return False  # of a longer request
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
