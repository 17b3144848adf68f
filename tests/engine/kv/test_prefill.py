"""One group of layers with full attention: which blocks a prompt hits, which are new, and which are given up first.

Sixteen tokens to a block and ten usable blocks where nothing else is said; the prompts share 48 tokens. All block ids
and free orders are figures of vLLM 0.33's own tests (PC1, PC9-PC14, PC19, PC20, PC22, PC59, M5, M6).
"""

from __future__ import annotations

import pytest

from mmcached.engine.kv.hashing.block_hash import block_hasher
from tests.engine.builders import generate
from tests.engine.kv.builders import BLOCK, COMMON, admit, books, manager_of, num_hit_tokens, ref_counts, run, with_tail

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


def test_request_that_does_not_read_still_publishes() -> None:
    manager = manager_of(11)
    r0, r1, r2 = (with_tail(i, 7, skip_reading_prefix_cache=i != 1) for i in range(3))
    assert admit(manager, r0) == ([], [1, 2, 3, 4])
    assert admit(manager, r1) == ([1, 2, 3], [5])
    assert ref_counts(manager, [1, 2, 3]) == [2, 2, 2]
    assert manager.block_pool.num_free == 5
    manager.free(r0)
    manager.free(r1)
    assert manager.block_pool.free_order() == AFTER_TWO_REQUESTS
    hit, new = admit(manager, r2)
    assert hit == []
    assert {1, 2, 3}.isdisjoint(new)
    assert [manager.block_pool.block_key(block_id) for block_id in new[:3]] == r1.block_hashes[:3]
    assert ref_counts(manager, new) == [1, 1, 1, 1]


def test_decode_takes_a_block_when_the_last_is_full() -> None:
    manager = manager_of(11)
    request = with_tail(0, 7)
    admit(manager, request)
    for token_id, num_tokens, new_ids, is_published in ((8, 4, [], "111-"), (9, 19, [5], "1111-")):
        for _ in range(num_tokens):
            request.append_output_token(token_id)
        assert run(manager, request, num_tokens) == new_ids
        (table,) = manager.get_block_ids(0)
        assert "".join("-1"[manager.block_pool.block_key(block_id) is not None] for block_id in table) == is_published


def test_eviction_order_of_two_freed_requests() -> None:
    manager = manager_of(11)
    r0, r1 = generate(0, 87), generate(1, 48)
    assert admit(manager, r0)[1] == [1, 2, 3, 4, 5, 6]
    assert admit(manager, r1)[1] == [7, 8, 9]
    assert manager.block_pool.num_free == 1
    manager.free(r0)
    assert manager.block_pool.free_order() == [6, 10, 5, 4, 3, 2, 1]
    manager.free(r1)
    assert manager.block_pool.free_order() == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]
    assert admit(manager, generate(2, r0.token_ids[:35])) == ([1, 2], [6])
    assert manager.block_pool.num_free == 7


def test_reused_block_loses_its_content() -> None:
    manager = manager_of(2)
    first = generate(0, 16)
    assert admit(manager, first) == ([], [1])
    manager.free(first)
    assert manager.block_pool.block_key(1) is not None
    assert admit(manager, generate(1, 15)) == ([], [1])
    assert manager.block_pool.block_key(1) is None
    assert num_hit_tokens(manager, generate(2, [*first.token_ids, 1])) == 0


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


def test_a_hit_is_not_evicted_for_its_own_request() -> None:
    manager = manager_of(3)
    a, b = generate(0, 16), generate(1, 16)
    assert admit(manager, a)[1] == [1]
    assert admit(manager, b)[1] == [2]
    manager.free(a)
    manager.free(b)
    assert admit(manager, generate(2, a.token_ids + b.token_ids)) == ([1], [2])


def test_without_caching_nothing_is_found() -> None:
    manager = manager_of(5, 4, enable_caching=False)
    first = generate(0, range(10))
    assert admit(manager, first) == ([], [1, 2, 3])
    manager.free(first)
    assert manager.block_pool.free_order() == [3, 2, 1, 4]
    second = generate(1, range(16))
    assert admit(manager, second) == ([], [3, 2, 1, 4])
    second.token_ids += range(4)
    assert manager.allocate_slots(second, 4) is None
    assert manager.block_pool.num_published == 0


def test_refusal_with_hits_changes_nothing() -> None:
    manager = manager_of(11)
    assert admit(manager, generate(0, COMMON))[1] == [1, 2, 3]
    r1 = generate(1, COMMON * 2)
    assert admit(manager, r1) == ([1, 2, 3], [4, 5, 6])
    manager.free(r1)
    assert ref_counts(manager, [1, 2, 3, 4, 5, 6]) == [1, 1, 1, 0, 0, 0]
    assert len(admit(manager, generate(2, 17))[1]) == 2
    assert manager.block_pool.num_free == 5

    r3 = generate(3, COMMON * 3)
    hit, num_hit = manager.get_computed_blocks(r3)
    assert num_hit == 96
    before = books(manager)
    # Three more blocks are needed and five are free, but three of these are the hit's own.
    assert manager.allocate_slots(r3, 48, num_hit, hit) is None
    assert books(manager) == before
    assert manager.holders() == {0, 2}


def test_what_never_fits_is_refused() -> None:
    manager = manager_of(5)
    before = books(manager)
    assert manager.allocate_slots(generate(0, 256), 256) is None
    assert books(manager) == before


def test_reset_only_when_nothing_is_held() -> None:
    manager = manager_of(11)
    r0, r1 = with_tail(0, 7), with_tail(1, 5)
    assert admit(manager, r0)[1] == [1, 2, 3, 4]
    assert admit(manager, r1)[1] == [5]
    manager.free(r0)
    before = books(manager)
    assert manager.reset_prefix_cache() is False
    assert books(manager) == before
    assert num_hit_tokens(manager, r0) == 48

    manager.free(r1)
    order = manager.block_pool.free_order()
    assert manager.reset_prefix_cache() is True
    assert manager.block_pool.num_published == 0
    assert {manager.block_pool.block_key(block_id) for block_id in range(11)} == {None}
    assert manager.block_pool.free_order() == order
    assert num_hit_tokens(manager, r0) == 0
    manager.check_integrity()


def test_content_is_found_until_its_last_copy_is_evicted() -> None:
    manager = manager_of(5)
    twins = [generate(i, [7] * BLOCK, skip_reading_prefix_cache=True) for i in range(2)]
    others = [generate(i, BLOCK) for i in (2, 3)]
    for block_id, request in enumerate([*twins, *others], start=1):
        assert admit(manager, request) == ([], [block_id])
    for request in (*others, *twins):
        manager.free(request)
    assert manager.block_pool.free_order() == [3, 4, 1, 2]

    reader = generate(4, [7] * 17)
    for request_id, evicted, hit in ((5, 3, [1]), (6, 4, [1]), (7, 1, [2]), (8, 2, [])):
        assert admit(manager, generate(request_id, 5)) == ([], [evicted])
        assert manager.get_computed_blocks(reader)[0].get_block_ids() == (hit,)


def test_the_same_content_computed_twice_is_kept_twice() -> None:
    manager = manager_of(11, 4)
    twins = [generate(i, range(8), skip_reading_prefix_cache=True) for i in range(2)]
    assert [admit(manager, request) for request in twins] == [([], [1, 2]), ([], [3, 4])]
    assert manager.block_pool.num_published == 4
    assert admit(manager, generate(2, range(9))) == ([1, 2], [5])


@pytest.mark.parametrize(
    ("num_tokens", "num_hit"), [(1, 0), (15, 0), (16, 0), (17, 16), (48, 32), (49, 48), (64, 48), (65, 64), (80, 64)]
)
def test_the_last_token_is_always_computed(num_tokens: int, num_hit: int) -> None:
    manager = manager_of(20)
    admit(manager, generate(0, COMMON + [7] * BLOCK))
    prompt = (COMMON + [7] * 32)[:num_tokens]
    assert num_hit_tokens(manager, generate(1, prompt)) == num_hit


def test_a_lookup_changes_nothing() -> None:
    manager = manager_of(11)
    r0, r1 = with_tail(0, 7), with_tail(1, 5)
    admit(manager, r0)
    manager.free(r0)
    before = books(manager)
    for _ in range(3):
        assert num_hit_tokens(manager, r1) == 48
    assert books(manager) == before
