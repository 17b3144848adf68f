"""The longest prefix hit that all groups agree on.

    NoPrefixCache   nothing is ever found; any number of groups, none included
    Unitary         one group: what it finds
    Hybrid          several: a length at which every group can go on

A hit of L tokens is valid if every group has what a request needs that goes on at L, and L is a multiple of all block
sizes. With `num_recomputed` 1 each group must also have the block behind L, which is computed again all the same: a
drafter of the EAGLE kind wants the hidden state before the point where the request goes on.

A hybrid starts from the longest length that the prompt allows and asks group by group; one that cannot serve the
length shortens it, and the others are asked again. The length only shrinks, so this ends, at the longest valid one.
Groups with full attention are asked once: of their hits every part is one.

Knows nothing of requests or references. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.kv.groups import Group, make_groups
from mmcached.engine.kv.pool.block_pool import BlockPool
from mmcached.engine.kv.steps import Steps

Hit = tuple[tuple[Sequence[int], ...], int]


class CachedBlocks:
    """`CachedPrefix` of one sequence in one group: what is published, and what open steps are going to write."""

    __slots__ = ("_digests", "_group", "_pool", "_steps")

    def __init__(self, pool: BlockPool, steps: Steps, group: Group, digests: Sequence[bytes]) -> None:
        self._pool = pool
        self._steps = steps
        self._group = group
        self._digests = digests

    def leading(self, num_blocks: int) -> list[int]:
        found = self._pool.find_prefix(self._group.iter_keys(self._digests, 0, num_blocks))
        if len(found) < num_blocks and self._steps.newest is not None and self._steps.reserved:
            for key in self._group.keys(self._digests, len(found), num_blocks):
                block_id = self._find(key)
                if block_id is None:
                    break
                found.append(block_id)
        return found

    def at(self, index: int) -> int | None:
        return self._find(self._group.key_at(self._digests, index))

    def is_at(self, block_id: int, index: int) -> bool:
        """Return whether a block holds what belongs at a position, or will."""
        key = self._group.key_at(self._digests, index)
        return self._pool.block_key(block_id) == key or self._steps.is_reserved(block_id, key)

    def _find(self, key: bytes) -> int | None:
        block_id = self._pool.find(key)
        if block_id is None and self._steps.newest is not None:
            block_id = self._steps.reserved.get(key)
        return block_id


class Coordinator(Protocol):
    """Attributes: `groups`, in the order of the configuration."""

    groups: tuple[Group, ...]

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        """Return blocks by group, and the length in tokens, of the longest hit.

        Args:
            block_hashes: digests of the sequence, `hash_block_size` tokens each.
            max_cache_hit_length: tokens; what is found ends here at the latest.
        """


class NoPrefixCache:
    """`Coordinator` that finds nothing."""

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self.groups = groups
        self._nothing: Hit = (tuple(() for _ in groups), 0)

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        return self._nothing


class Unitary:
    """`Coordinator` of one group."""

    def __init__(self, pool: BlockPool, steps: Steps, groups: tuple[Group, ...]) -> None:
        self.groups = groups
        (self._group,) = groups
        self._pool = pool
        self._steps = steps
        self._needs_first = self._group.kind.is_downward_closed
        self._nothing: Hit = ([],), 0

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        group = self._group
        max_blocks = min(max_cache_hit_length // group.block_size, len(block_hashes))
        if self._needs_first and (not max_blocks or self._is_unknown(block_hashes[0])):
            return self._nothing  # as for most requests, so nothing else is looked at
        cached = CachedBlocks(self._pool, self._steps, group, block_hashes)
        found = group.kind.longest_hit(cached, max_blocks)
        return (found,), len(found) * group.block_size

    def _is_unknown(self, key: bytes) -> bool:
        steps = self._steps
        return self._pool.find(key) is None and (steps.newest is None or key not in steps.reserved)


class Hybrid:
    """`Coordinator` of several groups.

    Args:
        alignment: tokens; every hit is a multiple of it, and it is one of every block size.
        hash_block_size: tokens under one digest.
    """

    def __init__(
        self,
        pool: BlockPool,
        steps: Steps,
        groups: tuple[Group, ...],
        num_recomputed: int,
        *,
        alignment: int,
        hash_block_size: int,
    ) -> None:
        self.groups = groups
        self._full = [group for group in groups if group.kind.is_downward_closed]
        self._others = [group for group in groups if not group.kind.is_downward_closed]
        self._pool = pool
        self._steps = steps
        self._num_recomputed = num_recomputed
        self._alignment = alignment
        self._hash_block_size = hash_block_size

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_cache_hit_length: int) -> Hit:
        limit = min(max_cache_hit_length, len(block_hashes) * self._hash_block_size)
        longest_per_group = [limit // g.block_size - self._num_recomputed for g in self.groups]
        length = self._aligned(min(n * g.block_size for n, g in zip(longest_per_group, self.groups, strict=True)))
        hits: list[list[int]] = [[] for _ in self.groups]
        for group in self._full:
            length = self._ask(group, block_hashes, length, hits)
        is_settled = False
        while not is_settled:
            before = length
            for group in self._others:
                length = self._ask(group, block_hashes, length, hits)
            is_settled = length == before
        return tuple(hits[group.index][: length // group.block_size] for group in self.groups), length

    def _ask(self, group: Group, digests: Sequence[bytes], length: int, hits: list[list[int]]) -> int:
        """Let a group say how much of a length it can serve; note its blocks."""
        if length <= 0:
            return 0
        cached = CachedBlocks(self._pool, self._steps, group, digests)
        max_blocks = length // group.block_size + self._num_recomputed
        found = group.kind.longest_hit(cached, max_blocks)
        hits[group.index] = found
        return self._aligned(len(found) * group.block_size)

    def _aligned(self, length: int) -> int:
        return max(0, length) // self._alignment * self._alignment


def make_coordinator(
    config: KVCacheConfig, pool: BlockPool, steps: Steps, *, enable_caching: bool, num_recomputed: int
) -> Coordinator:
    """Return the coordinator that a configuration needs.

    Args:
        num_recomputed: blocks at the end of what is found that are computed again.
    """
    groups = make_groups(config, num_recomputed=num_recomputed)
    if not enable_caching or not groups:
        return NoPrefixCache(groups)
    if len(groups) == 1:
        return Unitary(pool, steps, groups)
    return Hybrid(
        pool,
        steps,
        groups,
        num_recomputed,
        alignment=config.scheduler_block_size,
        hash_block_size=config.hash_block_size,
    )
