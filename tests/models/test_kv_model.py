"""The plain model against published figures: what it says of block ids, hits, free order and refusals is right.

The figures are those of vLLM's own tests for the same histories; full attention, blocks of 16, unless a test says else.
"""

from __future__ import annotations

import doctest
from collections.abc import Sequence
from typing import Any

import pytest

from mmcached.engine.kv.block_keys import LoraKey
from mmcached.engine.request import Request
from tests.engine.builders import generate, image
from tests.models import kv_model
from tests.models.kv_model import KVModel, WindowModel

BLOCK = 16
COMMON = [i for i in range(3) for _ in range(BLOCK)]  # 48 tokens, block i filled with token i


def with_tail(request_id: int, num_tail: int, *, skip_reading_prefix_cache: bool = False) -> Request:
    token_ids = COMMON + [100 + request_id] * num_tail
    return generate(request_id, token_ids, skip_reading_prefix_cache=skip_reading_prefix_cache)


def admit(model: KVModel, request: Request) -> tuple[list[int], list[int]]:
    """Look a request up, give it all its slots; return the ids that were hit and those that are new."""
    hit = model.lookup(request)
    new = model.allocate(request, request.num_tokens - len(hit) * model.block_size, hit)
    assert new is not None
    request.num_computed_tokens = request.num_tokens
    return hit, new


def test_its_doctest_says_what_it_does() -> None:
    results = doctest.testmod(kv_model)
    assert results.attempted > 0
    assert results.failed == 0


def test_two_requests_share_a_prefix_and_go_back_in_two_tiers() -> None:
    model = KVModel(11, BLOCK)
    r0, r1, r2 = with_tail(0, 7), with_tail(1, 5), with_tail(2, 6)
    assert admit(model, r0) == ([], [1, 2, 3, 4])
    assert list(model.published) == [1, 2, 3]
    assert admit(model, r1) == ([1, 2, 3], [5])
    assert [model.ref_cnt(block_id) for block_id in (1, 2, 3, 4, 5)] == [2, 2, 2, 1, 1]
    assert len(model.free_order) == 5
    model.free(r0)
    model.free(r1)
    assert model.free_order == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]

    assert admit(model, r2) == ([1, 2, 3], [5])
    assert len(model.free_order) == 6
    model.free(r2)
    assert admit(model, generate(3, [99] * 160)) == ([], [5, 4, 6, 7, 8, 9, 10, 3, 2, 1])
    assert model.free_order == []


def test_the_longest_free_is_evicted_first_and_tails_before_heads() -> None:
    model = KVModel(11, BLOCK)
    r0, r1 = generate(0, 87), generate(1, 48)
    assert admit(model, r0)[1] == [1, 2, 3, 4, 5, 6]
    assert admit(model, r1)[1] == [7, 8, 9]
    model.free(r0)
    assert model.free_order == [6, 10, 5, 4, 3, 2, 1]
    model.free(r1)
    assert model.free_order == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]
    assert admit(model, generate(2, r0.token_ids[:35])) == ([1, 2], [6])
    assert len(model.free_order) == 7


@pytest.mark.parametrize(
    ("num_tokens", "usable", "usable_with_eagle"), [(48, 32, 16), (37, 32, 16), (49, 48, 32), (17, 16, 0), (16, 0, 0)]
)
def test_the_last_token_is_computed_and_eagle_gives_up_one_block_more(
    num_tokens: int, usable: int, usable_with_eagle: int
) -> None:
    for use_eagle, expected in ((False, usable), (True, usable_with_eagle)):
        model = KVModel(20, BLOCK, use_eagle=use_eagle)
        admit(model, with_tail(0, 16))
        request = generate(1, (COMMON + [100] * 16)[:num_tokens])
        assert len(model.lookup(request)) * BLOCK == expected


def test_a_refusal_touches_nothing() -> None:
    model = KVModel(11, BLOCK)
    r1 = generate(1, COMMON * 2)
    assert admit(model, generate(0, COMMON))[1] == [1, 2, 3]
    assert admit(model, r1) == ([1, 2, 3], [4, 5, 6])
    model.free(r1)
    assert len(admit(model, generate(2, 17))[1]) == 2
    assert len(model.free_order) == 5

    r3 = generate(3, COMMON * 3)
    hit = model.lookup(r3)
    assert len(hit) * BLOCK == 96
    before = list(model.free_order), dict(model.published), dict(model.tables)
    # Three more blocks are needed and five are free, but three of these are the hit's own.
    assert model.allocate(r3, 48, hit) is None
    assert (model.free_order, model.published, model.tables) == before
    assert [model.ref_cnt(block_id) for block_id in hit] == [1, 1, 1, 0, 0, 0]
    assert KVModel(5, BLOCK).allocate(generate(4, 256), 256) is None


def test_a_hit_is_not_evicted_for_its_own_request() -> None:
    model = KVModel(3, BLOCK)
    a, b = generate(0, 16), generate(1, 16)
    for request in (a, b):
        admit(model, request)
    for request in (a, b):
        model.free(request)
    assert admit(model, generate(2, a.token_ids + b.token_ids)) == ([1], [2])
    assert list(model.published) == [1, 2]


def test_a_block_that_is_handed_out_again_holds_nothing() -> None:
    model = KVModel(2, BLOCK)
    first = generate(0, 16)
    admit(model, first)
    model.free(first)
    assert admit(model, generate(1, 15)) == ([], [1])
    assert model.published == {}


def test_who_does_not_read_publishes_all_the_same() -> None:
    model = KVModel(11, BLOCK)
    r0 = with_tail(0, 7, skip_reading_prefix_cache=True)
    admit(model, r0)
    assert admit(model, with_tail(1, 5)) == ([1, 2, 3], [5])
    hit, new = admit(model, with_tail(2, 7, skip_reading_prefix_cache=True))
    assert hit == []
    assert [model.published[block_id] for block_id in new[:3]] == [model.published[i] for i in (1, 2, 3)]


def test_without_caching_nothing_is_published() -> None:
    model = KVModel(5, 4, enable_caching=False)
    first, second = generate(0, range(10)), generate(1, range(16))
    assert admit(model, first)[1] == [1, 2, 3]
    model.free(first)
    assert model.free_order == [3, 2, 1, 4]
    assert admit(model, second) == ([], [3, 2, 1, 4])
    second.token_ids += range(4)
    assert model.allocate(second, 4) is None
    assert model.published == {}


def test_decode_and_lookahead_take_a_block_when_the_last_is_full() -> None:
    model = KVModel(11, BLOCK)
    request = with_tail(0, 7)
    admit(model, request)
    request.token_ids += [8] * 4
    assert model.allocate(request, 4) == []
    request.num_computed_tokens += 4
    request.token_ids += [9] * 19
    assert model.allocate(request, 19) == [5]
    assert list(model.published) == [1, 2, 3, 4]

    for num_lookahead_tokens, expected in ((2, [1, 2]), (4, [1, 2])):
        model = KVModel(11, 4)
        assert model.allocate(generate(0, 3), 3, num_lookahead_tokens=num_lookahead_tokens) == expected
        assert model.published == {}


def test_what_decides_which_contents_are_equal() -> None:
    def request_with(a: str, b: str, c: str, tenant: str = "", **changes: Any) -> Request:
        request = generate(0, range(59), [image(a, 11, 10), image(b, 30, 18), image(c, 48, 7)], tenant=tenant)
        for name, value in changes.items():
            setattr(request, name, value)
        return request

    model = KVModel(20, BLOCK)
    admit(model, request_with("aaa", "bbb", "ccc"))
    for expected, other in (
        ([1, 2, 3], request_with("aaa", "bbb", "ccc")),
        ([1, 2, 3], request_with("aaa", "bbb", "other")),
        ([1], request_with("aaa", "other", "ccc")),
        ([], request_with("other", "bbb", "ccc")),
        ([], request_with("aaa", "bbb", "ccc", tenant="a")),
        ([], request_with("aaa", "bbb", "ccc", lora=LoraKey("name", "path"))),
        ([1], request_with("aaa", "bbb", "ccc", prompt_embeds={16: b"row"})),
    ):
        assert model.lookup(other) == expected


def test_reset_only_when_nothing_is_held() -> None:
    model = KVModel(11, BLOCK)
    r0, r1 = with_tail(0, 7), with_tail(1, 5)
    admit(model, r0)
    admit(model, r1)
    model.free(r0)
    assert not model.reset()
    assert list(model.published) == [1, 2, 3]
    model.free(r1)
    order = list(model.free_order)
    assert model.reset()
    assert (model.published, model.free_order) == ({}, order)


def test_a_step_publishes_at_commit_and_nothing_if_it_is_withdrawn() -> None:
    model = KVModel(30, BLOCK)
    request = with_tail(0, 0)
    model.begin_step()
    assert model.allocate(request, 48) == [1, 2, 3]
    assert model.lookup(with_tail(1, 1)) == []
    model.withdraw()
    assert model.published == {}

    model.begin_step()
    assert model.allocate(request, 48) == []  # it still has the slots, with nothing in them
    assert model.published == {}
    model.commit()
    assert model.lookup(with_tail(1, 1)) == [1, 2, 3]


def test_a_victim_of_its_own_step_finds_only_what_was_computed() -> None:
    model = KVModel(30, BLOCK)
    victim = generate(0, 112)
    model.begin_step()
    model.allocate(victim, 96)
    model.commit()
    victim.num_computed_tokens = 96
    model.begin_step()
    assert model.allocate(victim, 16) == [7]
    model.free(victim)
    model.commit()
    victim.token_ids += [7]
    assert len(model.lookup(victim)) * BLOCK == 96
    assert model.free_order[:2] == [7, 8]


def test_the_same_content_twice_is_found_until_its_second_block_goes() -> None:
    model = KVModel(5, 4)
    requests = [generate(i, range(8)) for i in range(2)]
    model.begin_step()
    assert [model.allocate(request, 8) for request in requests] == [[1, 2], [3, 4]]
    model.commit()
    assert model.lookup(generate(2, range(9))) == [1, 2]
    for request in requests:
        model.free(request)
    other = generate(3, 8)
    assert admit(model, other)[1] == [2, 1]
    assert model.lookup(generate(2, range(9))) == [3, 4]


# ---- sliding window

T, F = True, False


@pytest.mark.parametrize(
    ("are_cached", "num_hit"),
    [
        ([F] * 10, 0),
        ([T], 1),
        ([T, F], 1),
        ([T, T], 2),
        ([T, T, F], 2),
        ([T, T, T], 3),
        ([T, T, T, F], 3),
        ([T, T, F, T, F, F, T, T, F, T, T, T], 12),
        ([T, T, F, T, F, F, T, T, F, F, F], 8),
        ([T, T, F, T, F, F, T, T, F, F, F, T], 8),
    ],
)
def test_a_window_needs_only_what_the_next_token_looks_at(are_cached: Sequence[bool], num_hit: int) -> None:
    found = [100 + index if is_cached else None for index, is_cached in enumerate(are_cached)]
    hit = WindowModel(2, 2, window=4).longest_hit(found)
    assert hit == [0] * max(0, num_hit - 2) + [100 + i for i in range(max(0, num_hit - 2), num_hit)]


def test_a_window_leaves_blocks_behind() -> None:
    model = WindowModel(12, 2, window=4)
    request = generate(0, 30)
    assert model.allocate(request, 22) == list(range(1, 12))
    for num_computed_tokens, num_left_behind in ((0, 0), (4, 0), (5, 1), (6, 1), (7, 2), (11, 4)):
        request.num_computed_tokens = num_computed_tokens
        assert model.allocate(request, 1) == []
        assert model.tables[0] == [0] * num_left_behind + list(range(num_left_behind + 1, 12))
    assert 0 not in model.published
    assert model.free_order == [1, 2, 4, 3]  # of those left behind at once, the higher position first


def test_the_null_blocks_of_a_hit_cost_nothing() -> None:
    for hit, num_needed in ((list(range(1, 11)), 20), ([0] * 5 + list(range(1, 6)), 15)):
        for num_free, is_refused in ((num_needed - 1, True), (num_needed, False)):
            model = WindowModel(num_free + 1, 2, window=12)
            model.published.update(dict.fromkeys(range(1, 11), ("some", "content")))
            assert (model.allocate(generate(0, 40), 20, hit) is None) == is_refused


def test_a_window_with_eagle_needs_one_block_more() -> None:
    model = WindowModel(11, BLOCK, window=BLOCK, use_eagle=True)
    admit(model, generate(0, range(37)))
    again = generate(1, range(37))
    assert model.lookup(again) == [1]
    del model.published[1]
    assert model.lookup(again) == []


def test_what_a_window_left_behind_is_still_found_and_goes_after_what_is_not_published() -> None:
    model = WindowModel(11, 4, window=4)
    request = generate(0, range(18))
    assert admit(model, request)[1] == [1, 2, 3, 4, 5]
    request.token_ids += [18]
    assert model.allocate(request, 1) == []
    assert model.tables[0] == [0, 0, 0, 4, 5]
    assert model.free_order == [6, 7, 8, 9, 10, 3, 2, 1]
    model.free(request)
    assert model.free_order == [5, 6, 7, 8, 9, 10, 3, 2, 1, 4]
    assert model.lookup(generate(1, range(18))) == [0, 0, 0, 4]
