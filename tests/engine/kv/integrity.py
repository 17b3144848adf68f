"""Checks that block pool, block tables and steps of a KV cache agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mmcached.engine.kv.groups import Group
from mmcached.engine.kv.kv_cache import KVCache
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.pool.published import PublishedBlocks
from mmcached.engine.kv.request_blocks import RequestBlocks


def check_kv(cache: KVCache) -> None:
    pool, steps, requests = cache.block_pool, cache._steps, cache._held
    check_pool(pool, [*(table for held in requests.values() for table in held.tables), *steps.fenced])
    reserved = {block_id for each in steps.reservations for block_id in each.block_ids if each.keys}
    for request_id, held in requests.items():
        assert held.request_id == request_id
        for group in cache._groups:
            _check_table(pool, reserved, held, group)
    assert reserved.isdisjoint(pool.free_order()), "a block is free, although a step will fill it"


def _check_table(pool: BlockPool, reserved: set[int], held: RequestBlocks, group: Group) -> None:
    table = held.tables[group.index]
    num_published, num_left = held.num_published[group.index], held.num_left_behind[group.index]
    assert num_published <= len(table)
    assert num_left <= len(table)
    assert not any(table[:num_left]), "blocks before the window are not null"
    for position, block_id in enumerate(table):
        is_findable = pool.block_key(block_id) is not None or block_id in reserved
        is_for_hits = any(group.kind.runs_for_hits(position, position + 1))
        is_final = position < num_published and held.can_publish and is_for_hits
        if group.kind.has_state and not is_findable:
            continue  # a state that computing has run past is not published
        where = f"request {held.request_id}, group {group.index}: block {block_id} at {position}"
        assert block_id == NULL_BLOCK_ID or held.is_lost or is_findable == is_final, where


def check_pool(pool: BlockPool, tables: Iterable[Sequence[int]]) -> None:
    """Check that every block is free or held, as often as the block tables name it."""
    held = Counter(block_id for table in tables for block_id in filter(None, table))
    for block_id, ref_count in enumerate(pool._ref_counts):
        assert ref_count == held[block_id], f"block {block_id}"
    free, published = pool.free_order(), pool._free_published.order()
    assert pool._num_free == len(free) == len(set(free))
    assert len(published) == len(pool._free_published)
    usable = set(range(NULL_BLOCK_ID + 1, pool.num_blocks))
    assert held.keys().isdisjoint(free)
    assert held.keys() | set(free) == usable
    assert {block_id for block_id in free if pool.block_key(block_id) is not None} == set(published)
    assert pool.block_key(NULL_BLOCK_ID) is None
    check_published(pool._published)


def check_published(blocks: PublishedBlocks) -> None:
    assert blocks._copies.keys() <= blocks._first.keys()
    assert {} not in blocks._copies.values()
    by_key = {(block_id, key) for key, block_id in blocks._first.items()}
    by_key |= {(block_id, key) for key, copies in blocks._copies.items() for block_id in copies}
    by_block = {(block_id, key) for block_id, key in enumerate(blocks.key_of) if key is not None}
    assert by_key == by_block
    assert len(by_key) == len(blocks)
