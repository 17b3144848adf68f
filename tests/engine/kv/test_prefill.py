"""One group of layers with full attention: which blocks a prompt hits, which are new, and which are given up first.

Sixteen tokens to a block and ten usable blocks where nothing else is said; the prompts share 48 tokens. All block ids
and free orders are figures of vLLM 0.33's own tests (PC1, PC9-PC14, PC19, PC20, PC22, PC59, M5, M6).
"""

from __future__ import annotations

import pytest

from mmcached.cache.hashing.block_hash import block_hasher
from tests.engine.builders import generate
from tests.engine.kv.builders import BLOCK, admit, manager_of, num_hit_tokens, ref_counts, with_tail

AFTER_TWO_REQUESTS = [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]


@pytest.mark.parametrize("algorithm", ["sha256", "blake3", "xxh3"])
def test_prefill_and_two_tier_free_order(algorithm: str) -> None:
    manager, hasher = manager_of(11, caching_hash_algo=algorithm), block_hasher(algorithm)
    pool = manager.block_pool
    r0 = with_tail(0, 7)
    assert num_hit_tokens(manager, r0) == 0
    assert len(r0.block_hashes) == 3
    assert admit(manager, r0) == ([], [1, 2, 3, 4])
    digest = hasher.root
    for block_id, token_id in ((1, 0), (2, 1), (3, 2)):
        digest = hasher.hash_block(digest, [token_id] * BLOCK)
        assert pool.block_key(block_id) == digest
    assert pool.block_key(4) is None
    assert ref_counts(manager, [1, 2, 3, 4]) == [1, 1, 1, 1]

    r1 = with_tail(1, 5)
    assert admit(manager, r1) == ([1, 2, 3], [5])
    assert ref_counts(manager, [1, 2, 3]) == [2, 2, 2]
    assert pool.num_free == 5

    manager.free(r0)
    manager.free(r1)
    assert pool.free_order() == AFTER_TWO_REQUESTS

    r2 = with_tail(2, 6)
    assert admit(manager, r2) == ([1, 2, 3], [5])
    assert pool.num_free == 6
    assert ref_counts(manager, pool.free_order()) == [0] * 6
    manager.free(r2)
    assert admit(manager, generate(3, [99] * 160)) == ([], AFTER_TWO_REQUESTS)
    assert pool.free_order() == []


@pytest.mark.parametrize(("at_most", "num_hit"), [(0, 0), (15, 0), (16, 16), (47, 32), (48, 48), (999, 48)])
def test_a_hit_is_as_long_as_its_caller_can_use(at_most: int, num_hit: int) -> None:
    manager = manager_of(11)
    admit(manager, with_tail(0, 7))
    request = with_tail(1, 5)
    hit, num_tokens = manager.get_computed_blocks(request, at_most)
    assert (num_tokens, list(hit.ids[0])) == (num_hit, [1, 2, 3][: num_hit // BLOCK])
    assert manager.allocate_slots(request, request.num_tokens - num_hit, num_hit, hit) is not None
    assert manager.get_block_ids(1)[0][: num_hit // BLOCK] == list(hit.ids[0])
    manager.check_integrity()
