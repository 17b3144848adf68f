"""Block tables, prefix hits and what a step publishes. Block ids in the figures are those of vLLM's own tests."""

from __future__ import annotations

import pytest

from mmcached.engine import KVCacheBlocks, KVCacheConfig, KVCacheManager, Request
from mmcached.engine.kv.block_hash import ROOT_HASH, hash_block
from mmcached.engine.kv.block_keys import MultiModalKey
from mmcached.wire.errors import ConfigError, LocalProtocolError
from mmcached.wire.stats import KVCacheStats
from tests.engine.builders import generate, image

BLOCK = 16
COMMON = [i for i in range(3) for _ in range(BLOCK)]  # 48 tokens, block i filled with token i


def with_tail(request_id: int, num_tail: int, *, skip_reading_prefix_cache: bool = False) -> Request:
    token_ids = COMMON + [100 + request_id] * num_tail
    return generate(request_id, token_ids, skip_reading_prefix_cache=skip_reading_prefix_cache)


def ids(blocks: KVCacheBlocks | None) -> list[int]:
    assert blocks is not None
    (group,) = blocks.get_block_ids()
    return group


def admit(manager: KVCacheManager, request: Request) -> tuple[list[int], list[int]]:
    """Look a request up, give it all its slots; return the ids that were hit and those that are new."""
    hit, num_hit = manager.get_computed_blocks(request)
    assert num_hit == len(ids(hit)) * manager.block_size
    new = manager.allocate_slots(request, request.num_tokens - num_hit, num_hit, hit)
    request.num_computed_tokens = request.num_tokens
    manager.check_integrity()
    return ids(hit), ids(new)


def ref_counts(manager: KVCacheManager, block_ids: list[int]) -> list[int]:
    return [manager.block_pool.ref_cnt(block_id) for block_id in block_ids]


def test_prefill_and_two_tier_free_order() -> None:
    manager = KVCacheManager(11, BLOCK)
    r0 = with_tail(0, 7)
    assert admit(manager, r0) == ([], [1, 2, 3, 4])
    parent = ROOT_HASH
    for block_id, token_id in ((1, 0), (2, 1), (3, 2)):
        parent = hash_block(parent, [token_id] * BLOCK)
        assert manager.block_pool.block_hash(block_id) == parent
    assert manager.block_pool.block_hash(4) is None
    assert ref_counts(manager, [1, 2, 3, 4]) == [1, 1, 1, 1]

    r1 = with_tail(1, 5)
    assert admit(manager, r1) == ([1, 2, 3], [5])
    assert ref_counts(manager, [1, 2, 3]) == [2, 2, 2]
    assert manager.block_pool.num_free == 5

    manager.free(r0)
    manager.free(r1)
    assert manager.block_pool.free_order() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]

    r2 = with_tail(2, 6)
    assert admit(manager, r2) == ([1, 2, 3], [5])
    assert manager.block_pool.num_free == 6
    manager.free(r2)
    assert admit(manager, generate(3, [99] * 160)) == ([], [5, 4, 6, 7, 8, 9, 10, 3, 2, 1])
    assert manager.block_pool.num_free == 0


def test_request_that_does_not_read_still_publishes() -> None:
    manager = KVCacheManager(11, BLOCK)
    r0 = with_tail(0, 7, skip_reading_prefix_cache=True)
    assert admit(manager, r0) == ([], [1, 2, 3, 4])
    r1 = with_tail(1, 5)
    assert admit(manager, r1) == ([1, 2, 3], [5])
    manager.free(r0)
    manager.free(r1)
    assert manager.block_pool.free_order() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    r2 = with_tail(2, 7, skip_reading_prefix_cache=True)
    hit, new = admit(manager, r2)
    assert hit == []
    assert {1, 2, 3}.isdisjoint(new)
    assert [manager.block_pool.block_hash(block_id) for block_id in new[:3]] == r2.block_hashes
    assert ref_counts(manager, new) == [1, 1, 1, 1]


def test_decode_takes_a_block_when_the_last_is_full() -> None:
    manager = KVCacheManager(11, BLOCK)
    request = with_tail(0, 7)
    admit(manager, request)

    for _ in range(4):
        request.append_output_token(8)
    assert ids(manager.allocate_slots(request, 4)) == []
    request.num_computed_tokens += 4
    (table,) = manager.get_block_ids(0)
    assert manager.block_pool.block_hash(table[-1]) is None

    for _ in range(19):
        request.append_output_token(9)
    assert ids(manager.allocate_slots(request, 19)) == [5]
    (table,) = manager.get_block_ids(0)
    assert [manager.block_pool.block_hash(block_id) is None for block_id in table] == [False] * 4 + [True]
    manager.check_integrity()


def test_eviction_order_of_two_freed_requests() -> None:
    manager = KVCacheManager(11, BLOCK)
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
    manager = KVCacheManager(2, BLOCK)
    first = generate(0, 16)
    assert admit(manager, first) == ([], [1])
    manager.free(first)
    assert manager.block_pool.block_hash(1) is not None
    assert admit(manager, generate(1, 15)) == ([], [1])
    assert manager.block_pool.block_hash(1) is None


def test_a_hit_is_not_evicted_for_its_own_request() -> None:
    manager = KVCacheManager(3, BLOCK)
    a, b = generate(0, 16), generate(1, 16)
    admit(manager, a)
    admit(manager, b)
    manager.free(a)
    manager.free(b)
    assert admit(manager, generate(2, a.token_ids + b.token_ids)) == ([1], [2])


def test_without_caching_nothing_is_found() -> None:
    manager = KVCacheManager(5, 4, enable_caching=False)
    first = generate(0, range(10))
    assert admit(manager, first) == ([], [1, 2, 3])
    manager.free(first)
    second = generate(1, range(16))
    hit, new = admit(manager, second)
    assert (hit, len(new)) == ([], 4)
    second.token_ids += range(4)
    assert manager.allocate_slots(second, 4) is None
    assert manager.stats().blocks_cached == 0


def test_cache_blocks_publishes_only_what_is_full_and_new() -> None:
    manager = KVCacheManager(5, 4)
    request = generate(0, 14)
    manager.begin_step(0)
    manager.allocate_slots(request, 14)
    manager.withdraw(0)
    for num_computed_tokens, num_published in ((0, 0), (8, 2), (8, 2), (4, 2), (12, 3), (14, 3)):
        manager.cache_blocks(request, num_computed_tokens)
        assert manager.stats().blocks_cached == num_published
        manager.check_integrity()


def test_multimodal_items_decide_hits() -> None:
    def request_with(request_id: int, *mm_hashes: str) -> Request:
        a, b, c = mm_hashes
        return generate(request_id, range(59), [image(a, 11, 10), image(b, 30, 18), image(c, 48, 7)])

    manager = KVCacheManager(20, BLOCK)
    first = request_with(0, "aaa", "bbb", "ccc")
    assert admit(manager, first) == ([], [1, 2, 3, 4])
    for token_id in range(5):
        first.append_output_token(token_id)
    assert ids(manager.allocate_slots(first, 5)) == []
    assert manager.block_pool.block_hash(4) == hash_block(
        first.block_hashes[2], first.token_ids[48:64], [MultiModalKey("ccc", 0)]
    )
    assert admit(manager, request_with(1, "aaa", "bbb", "ccc"))[0] == [1, 2, 3]
    assert admit(manager, request_with(2, "aaa", "bbb", "other"))[0] == [1, 2, 3]
    assert admit(manager, request_with(3, "aaa", "other", "ccc"))[0] == [1]
    assert admit(manager, request_with(4, "other", "bbb", "ccc"))[0] == []


def test_tenants_do_not_share() -> None:
    manager = KVCacheManager(20, BLOCK)
    for request_id, tenant, expected in ((0, "a", []), (1, "a", [1, 2, 3]), (2, "b", []), (3, "", [])):
        request = generate(request_id, COMMON + [request_id] * 8, tenant=tenant)
        assert admit(manager, request)[0] == expected


def test_refusal_with_hits_changes_nothing() -> None:
    manager = KVCacheManager(11, BLOCK)
    r0 = generate(0, COMMON)
    assert admit(manager, r0)[1] == [1, 2, 3]
    r1 = generate(1, COMMON * 2)
    assert admit(manager, r1) == ([1, 2, 3], [4, 5, 6])
    manager.free(r1)
    assert ref_counts(manager, [1, 2, 3, 4, 5, 6]) == [1, 1, 1, 0, 0, 0]
    r2 = generate(2, 17)
    assert len(admit(manager, r2)[1]) == 2
    assert manager.block_pool.num_free == 5

    order = manager.block_pool.free_order()
    r3 = generate(3, COMMON * 3)
    hit, num_hit = manager.get_computed_blocks(r3)
    assert num_hit == 96
    # Three more blocks are needed and five are free, but three of these are the hit's own.
    assert manager.allocate_slots(r3, 48, num_hit, hit) is None
    assert ref_counts(manager, [1, 2, 3, 4, 5, 6]) == [1, 1, 1, 0, 0, 0]
    assert manager.block_pool.free_order() == order
    assert manager.get_block_ids(3) == ([],)
    assert manager.holders() == {0, 2}
    manager.check_integrity()


def test_reset_only_when_nothing_is_held() -> None:
    manager = KVCacheManager(11, BLOCK)
    r0, r1 = with_tail(0, 7), with_tail(1, 5)
    admit(manager, r0)
    admit(manager, r1)
    manager.free(r0)
    assert manager.reset_prefix_cache() is False
    assert manager.stats().blocks_cached == 3
    manager.free(r1)
    assert manager.reset_prefix_cache() is True
    assert manager.stats().blocks_cached == 0
    assert manager.get_computed_blocks(r0)[1] == 0
    manager.check_integrity()


@pytest.mark.parametrize(("num_tokens", "num_hit"), [(48, 32), (49, 48), (16, 0), (17, 16), (15, 0)])
def test_the_last_token_is_always_computed(num_tokens: int, num_hit: int) -> None:
    manager = KVCacheManager(20, BLOCK)
    admit(manager, generate(0, COMMON + [7] * BLOCK))
    assert manager.get_computed_blocks(generate(1, (COMMON + [7] * BLOCK)[:num_tokens]))[1] == num_hit


def test_a_resumed_request_finds_its_own_output() -> None:
    manager = KVCacheManager(11, 4)
    request = generate(0, [1, 2, 3])
    admit(manager, request)
    for token_id in (4, 5, 6, 7, 8, 9):
        request.append_output_token(token_id)
        manager.allocate_slots(request, request.num_tokens - request.num_computed_tokens)
        request.num_computed_tokens = request.num_tokens
    manager.free(request)
    assert manager.get_computed_blocks(request)[1] == 8


def test_the_same_content_computed_twice_is_kept_twice() -> None:
    manager = KVCacheManager(11, 4)
    requests = [generate(0, range(8)), generate(1, range(8))]
    manager.begin_step(0)
    tables = [ids(manager.allocate_slots(request, 8)) for request in requests]
    manager.commit(0)
    manager.check_integrity()
    assert tables == [[1, 2], [3, 4]]
    assert manager.stats().blocks_cached == 4
    assert ids(manager.get_computed_blocks(generate(2, range(9)))[0]) == [1, 2]


# ---- steps


def test_a_step_publishes_at_commit() -> None:
    manager = KVCacheManager(11, BLOCK)
    request = with_tail(0, 7)
    manager.begin_step(5)
    assert ids(manager.allocate_slots(request, 55)) == [1, 2, 3, 4]
    assert manager.get_computed_blocks(with_tail(1, 7))[1] == 0
    manager.check_integrity()
    manager.commit(5)
    assert manager.get_computed_blocks(with_tail(1, 7))[1] == 48
    manager.check_integrity()


def test_a_withdrawn_step_publishes_nothing_and_can_be_done_again() -> None:
    manager = KVCacheManager(11, BLOCK)
    request = with_tail(0, 7)
    manager.begin_step(0)
    manager.allocate_slots(request, 55)
    manager.withdraw(0)
    assert manager.get_computed_blocks(with_tail(1, 7))[1] == 0
    manager.check_integrity()

    manager.begin_step(1)
    assert ids(manager.allocate_slots(request, 55)) == []  # it still has the slots, with nothing in them
    manager.commit(1)
    assert manager.get_computed_blocks(with_tail(1, 7))[1] == 48


def test_blocks_freed_within_their_step_are_never_published() -> None:
    """A victim of preemption may have been given slots in the same step; nobody computes them."""
    manager = KVCacheManager(11, BLOCK)
    request = generate(0, 128)
    manager.begin_step(0)
    manager.allocate_slots(request, 128)
    manager.free(request)
    manager.commit(0)
    assert manager.get_computed_blocks(request)[1] == 0
    assert manager.stats().blocks_cached == 0


def test_steps_do_not_overlap() -> None:
    manager = KVCacheManager(11, BLOCK)
    with pytest.raises(LocalProtocolError):
        manager.commit(0)
    manager.begin_step(0)
    with pytest.raises(LocalProtocolError, match="step 0 has not ended"):
        manager.begin_step(1)
    with pytest.raises(LocalProtocolError):
        manager.withdraw(1)
    manager.commit(0)
    manager.begin_step(1)


# ---- small things


def test_wrong_arguments_are_refused() -> None:
    manager = KVCacheManager(11, BLOCK)
    request = with_tail(0, 7)
    with pytest.raises(ValueError, match="at least 1"):
        manager.allocate_slots(request, 0)
    admit(manager, request)
    hit, num_hit = manager.get_computed_blocks(with_tail(1, 7))
    with pytest.raises(ValueError, match="no prefix hit"):
        manager.allocate_slots(request, 1, num_hit, hit)
    with pytest.raises(ValueError, match="3 blocks found are not 47 tokens"):
        manager.allocate_slots(with_tail(1, 7), 1, 47, hit)


def test_freeing_what_holds_nothing_changes_nothing() -> None:
    manager = KVCacheManager(11, BLOCK)
    request = with_tail(0, 7)
    manager.free(request)
    admit(manager, request)
    manager.free(request)
    manager.free(request)
    assert manager.block_pool.num_free == 10


def test_usage_does_not_count_the_null_block() -> None:
    manager = KVCacheManager(11, BLOCK)
    assert manager.usage == 0.0
    admit(manager, generate(0, 80))
    assert manager.usage == 0.5
    assert KVCacheManager(1, BLOCK).usage == 0.0


def test_stats_count_first_admissions_of_those_who_read() -> None:
    manager = KVCacheManager(11, BLOCK)
    request = with_tail(0, 7)
    manager.record_admission(request, 0)
    request.was_admitted = True
    manager.record_admission(request, 48)
    manager.record_admission(with_tail(1, 7, skip_reading_prefix_cache=True), 0)
    manager.record_admission(with_tail(2, 5), 48)
    admit(manager, request)
    assert manager.stats() == KVCacheStats(queries=108, hits=48, blocks_used=4, blocks_cached=3, blocks_total=10)


def test_blocks_are_views_of_the_pool() -> None:
    manager = KVCacheManager(11, BLOCK)
    request = with_tail(0, 7)
    blocks = manager.allocate_slots(request, 55)
    assert blocks is not None
    ((first, *_, last),) = blocks.blocks
    assert (first.block_id, first.ref_cnt, first.is_null) == (1, 1, False)
    assert (first.block_hash, last.block_hash) == (request.block_hashes[0], None)
    assert blocks.get_unhashed_block_ids() == [4]
    assert (blocks + blocks).get_block_ids() == ([1, 2, 3, 4] * 2,)
    assert blocks.new_empty().get_block_ids() == ([],)
    manager.free(request)
    assert first.ref_cnt == 0


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ConfigError):
        KVCacheConfig(0, 16)
    with pytest.raises(ConfigError):
        KVCacheManager(16, 0)
