"""Managers of any mix of groups, what is put into their cache by hand, and their books as one value to compare.

A spec is written as short as its drawing: `16` is full attention with blocks of 16 tokens, `(16, 32)` a sliding window
of 32 tokens over the same blocks; other kinds are their own specs. What is cached is written as a pattern for each
group: `"TTFT"` says that the third block of that group is missing.
"""

from __future__ import annotations

from typing import Any

from mmcached.cache.hashing.block_hash import extend_block_hashes
from mmcached.engine import KVCacheBlocks, KVCacheManager, Request
from mmcached.engine.kv.config import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from tests.engine.builders import generate
from tests.engine.kv.integrity import check_kv

BLOCK = 16
COMMON = [i for i in range(3) for _ in range(BLOCK)]  # 48 tokens, block i filled with token i
NULL = 0

Spec = int | tuple[int, int] | KVCacheSpec
Table = list[int]
Tables = tuple[Table, ...]


def config_of(num_blocks: int, *specs: Spec) -> KVCacheConfig:
    """Return a configuration with one group of layers for each spec."""
    groups = [
        KVCacheGroupSpec(
            [f"layer {number}"],
            _spec_of(spec),
        )
        for number, spec in enumerate(specs)
    ]
    return KVCacheConfig(num_blocks, groups)


def _spec_of(spec: Spec) -> KVCacheSpec:
    if isinstance(spec, int):
        return FullAttentionSpec(spec)
    return SlidingWindowSpec(spec[0], sliding_window=spec[1]) if isinstance(spec, tuple) else spec


def manager_of(num_blocks: int, *specs: Spec, max_model_len: int = 1 << 20, **options: Any) -> KVCacheManager:
    """Return a manager; without specs, of one group of layers with full attention and blocks of 16 tokens."""
    return KVCacheManager(config_of(num_blocks, *(specs or (BLOCK,))), max_model_len, **options)


def with_tail(request_id: int, num_tail: int, **options: Any) -> Request:
    """Return a request of the 48 common tokens and a tail of its own."""
    return generate(request_id, COMMON + [100 + request_id] * num_tail, **options)


# ---- results


def ids(blocks: KVCacheBlocks | None) -> Table:
    """Return the ids of the only group."""
    (group,) = tables(blocks)
    return group


def tables(blocks: KVCacheBlocks | None) -> Tables:
    assert blocks is not None, "refused"
    return blocks.get_block_ids()


def admit(manager: KVCacheManager, request: Request) -> tuple[Table, Table]:
    """Look a request up, give it all its slots; return the ids that were hit and those that are new, of one group."""
    (hit,), (new,) = admit_to_groups(manager, request)
    return hit, new


def admit_to_groups(manager: KVCacheManager, request: Request) -> tuple[Tables, Tables]:
    """Look a request up, give it all its slots, and let them be computed."""
    hit, num_hit_tokens = manager.get_computed_blocks(request)
    new = manager.allocate_slots(request, request.num_tokens - num_hit_tokens, num_hit_tokens, hit)
    request.num_computed_tokens = request.num_tokens
    check_kv(manager)
    return tables(hit), tables(new)


def run(manager: KVCacheManager, request: Request, num_tokens: int) -> Table:
    """Compute that many more tokens of a running request; return the new ids of its only group."""
    new = ids(manager.allocate_slots(request, num_tokens))
    request.num_computed_tokens += num_tokens
    check_kv(manager)
    return new


def schedule(manager: KVCacheManager, request: Request, num_tokens: int | None = None) -> tuple[Table, Table]:
    """Look a request up and give it slots for so many tokens, or all, without letting them be computed."""
    hit, num_hit = manager.get_computed_blocks(request)
    new = manager.allocate_slots(request, num_tokens or request.num_tokens - num_hit, num_hit, hit)
    check_kv(manager)
    return ids(hit), ids(new)


def num_hit_tokens(manager: KVCacheManager, request: Request) -> int:
    return manager.get_computed_blocks(request)[1]


# ---- the pool


def ref_counts(manager: KVCacheManager, block_ids: Table) -> list[int]:
    return [manager.block_pool.ref_cnt(block_id) for block_id in block_ids]


def books(manager: KVCacheManager) -> dict[str, object]:
    """Return all that a refused call must not change."""
    pool = manager.block_pool
    all_ids = range(pool.num_blocks)
    return {
        "free order": pool.free_order(),
        "references": [pool.ref_cnt(block_id) for block_id in all_ids],
        "published": [pool.block_key(block_id) for block_id in all_ids],
        "tables": {request_id: manager.get_block_ids(request_id) for request_id in manager.holders()},
        "stats": manager.stats(),
    }


def content_key(digest: bytes, group: int) -> bytes:
    """Return the key under which a group publishes a block: the digest, and the group's number unless it is 0."""
    return digest + group.to_bytes(2, "little") if group else digest


def plant(manager: KVCacheManager, request: Request, *patterns: str) -> Tables:
    """Publish the blocks of a request that are marked T, and free them; return the ids by position, null elsewhere.

    Args:
        patterns: for each group, one letter for each of its blocks.
    """
    pool, config = manager.block_pool, manager.config
    extend_block_hashes(request, config.hash_block_size)
    planted = []
    for number, (pattern, block_size) in enumerate(zip(patterns, config.block_sizes, strict=True)):
        ratio = block_size // config.hash_block_size  # a block's digest is the last of those that end inside it
        table = [pool.get_new_blocks(1)[0] if letter == "T" else NULL for letter in pattern]
        found = [(block_id, index) for index, block_id in enumerate(table) if block_id != NULL]
        keys = [content_key(request.block_hashes[(index + 1) * ratio - 1], number) for _, index in found]
        pool.publish([block_id for block_id, _ in found], keys)
        pool.free_blocks([block_id for block_id, _ in reversed(found)])
        planted.append(table)
    return tuple(planted)
