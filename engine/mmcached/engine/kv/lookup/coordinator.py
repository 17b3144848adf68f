"""Finds the longest prefix hit that all groups of layers agree on.

A hit of L tokens is valid if every group has what a request needs that goes on at L, and L is a multiple of all block
sizes. With `num_recomputed` 1 each group must also have the block behind L, which is computed again all the same: a
drafter of the EAGLE kind wants the hidden state before the point where the request goes on.

The search starts from the longest length that the prompt allows and asks group by group; a group that cannot serve the
length shortens it, and the others are asked again. The length only shrinks, so this ends, at the longest valid one.
Groups with full attention are asked once: every part of their hits is a hit.

Knows nothing of requests or references. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.kv.groups import CachedPrefix, Group, make_groups
from mmcached.engine.kv.pool.block_pool import BlockPool
from mmcached.engine.kv.steps import Steps

Hit = tuple[tuple[Sequence[int], ...], int]


class Coordinator:
    """The groups of a configuration, and what is cached of a sequence in all of them.

    Args:
        num_recomputed: blocks at the end of what is found that are computed again.

    Attributes:
        groups: groups in the order of the configuration.
    """

    def __init__(self, config: KVCacheConfig, pool: BlockPool, steps: Steps, num_recomputed: int) -> None:
        self.groups = make_groups(config, num_recomputed=num_recomputed)
        self._pool = pool
        self._steps = steps
        self._num_recomputed = num_recomputed
        self._full = [group for group in self.groups if group.kind.is_downward_closed]
        self._others = [group for group in self.groups if not group.kind.is_downward_closed]
        self._hash_block_size = config.hash_block_size
        self._alignment = config.scheduler_block_size
        self._reserve = num_recomputed * max(config.block_sizes, default=0)
        self._nothing: Hit = (tuple(() for _ in self.groups), 0)

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        """Return blocks by group, and the length in tokens, of the longest hit.

        Args:
            block_hashes: of the sequence, `hash_block_size` tokens each.
            max_cache_hit_length: tokens; what is found ends here at the latest.
        """
        limit = min(max_cache_hit_length, len(block_hashes) * self._hash_block_size)
        length = self._aligned(limit - self._reserve)
        if length <= 0 or not self.groups:
            return self._nothing
        reserved = self._steps.reserved
        if self._full:  # most requests find nothing, so their first block decides before anything else is looked at
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
        """Return how much of a length a group can serve; put its blocks in their place."""
        if not length:
            return 0
        cached = CachedPrefix(self._pool, self._steps.reserved, group, block_hashes)
        found = group.kind.longest_hit(cached, length // group.block_size + self._num_recomputed)
        hits[group.index] = found
        return self._aligned(len(found) * group.block_size)

    def _aligned(self, length: int) -> int:
        return length // self._alignment * self._alignment
