"""Finds the longest prefix hit that is valid in all groups of layers.

A hit of L tokens is valid if L is a multiple of all block sizes and every group has cached the blocks that a request
continuing at L needs. With `num_recomputed` 1 each group with KV must also have the block after L, which is recomputed
nevertheless: an EAGLE drafter needs the hidden state before the first new token.

The search starts from the longest length that the prompt allows. Each group shortens it to what it can serve, until all
agree; the length only shrinks, so the search ends, at the longest valid length. Groups with full attention are asked
once, because every prefix of their hits is a hit.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.kv.groups import CachedPrefix, Group, make_groups
from mmcached.engine.kv.pool.block_pool import BlockPool
from mmcached.engine.kv.steps import Steps

Hit = tuple[tuple[Sequence[int], ...], int]


class Coordinator:
    """Looks up cached prefixes in all groups; the last `num_recomputed` blocks of a match are left out of the hit."""

    def __init__(self, config: KVCacheConfig, pool: BlockPool, steps: Steps, num_recomputed: int) -> None:
        self.groups = make_groups(config, num_recomputed=num_recomputed)
        self.num_recomputed = num_recomputed
        self._pool = pool
        self._steps = steps
        self._full = [group for group in self.groups if group.kind.is_downward_closed]
        self._others = [group for group in self.groups if not group.kind.is_downward_closed]
        self._hash_block_size = config.hash_block_size
        self._alignment = config.scheduler_block_size
        self._reserve = max((group.kind.num_recomputed * group.block_size for group in self.groups), default=0)
        self._nothing: Hit = (tuple(() for _ in self.groups), 0)

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        """Return the block ids of the longest hit, by group, and its length in tokens.

        The match, recomputed blocks included, ends at `max_cache_hit_length` tokens at the latest.
        """
        limit = min(max_cache_hit_length, len(block_hashes) * self._hash_block_size)
        length = self._aligned(limit - self._reserve)
        if length <= 0 or not self.groups:
            return self._nothing
        reserved = self._steps.reserved
        if self._full:  # most requests find nothing, so check the first block before anything else
            first_key = self._full[0].key_at(block_hashes, 0)
            if self._pool.find(first_key) is None and first_key not in reserved:
                return self._nothing
        hits: list[Sequence[int]] = [()] * len(self.groups)
        for group in self._full:
            length = self._ask(group, block_hashes, length, hits)
        is_settled = not self._others
        while not is_settled:
            before = length
            for group in self._others:
                length = self._ask(group, block_hashes, length, hits)
            is_settled = length == before or len(self._others) == 1
        if len(hits) > 1:
            hits = [found[: length // group.block_size] for found, group in zip(hits, self.groups, strict=True)]
        return (tuple(hits), length) if length else self._nothing

    def _ask(self, group: Group, block_hashes: Sequence[bytes], length: int, hits: list[Sequence[int]]) -> int:
        if not length:
            return 0
        cached = CachedPrefix(self._pool, self._steps.reserved, group, block_hashes)
        found = group.kind.longest_hit(cached, length // group.block_size + group.kind.num_recomputed)
        hits[group.index] = found
        return self._aligned(len(found) * group.block_size)

    def _aligned(self, length: int) -> int:
        return length // self._alignment * self._alignment
