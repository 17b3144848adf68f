"""The plain model against published figures: what it says of block ids, hits, free order and refusals is right.

The figures are those of vLLM's own tests for the same histories; one group with full attention, blocks of 16, unless a
test says else. What vLLM does not have (steps, fences, epochs) is compared with the manager only; its tests tell
that as short stories.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from mmcached.cache.hashing.block_keys import LoraKey
from mmcached.engine.steps.request import Request
from tests.engine.builders import generate, image
from tests.models.kv_model import NULL, Group, KVModel

BLOCK = 16
COMMON = [i for i in range(6) for _ in range(BLOCK)]  # block i filled with token i
FULL = Group(BLOCK)


def with_tail(request_id: int, num_tail: int, num_common: int = 3, **changes: Any) -> Request:
    return generate(request_id, COMMON[: num_common * BLOCK] + [100 + request_id] * num_tail, **changes)


def model_of(num_blocks: int, block_size: int = BLOCK, **settings: Any) -> KVModel:
    return KVModel(num_blocks, [Group(block_size)], **settings)


def admit_to_all(model: KVModel, request: Request) -> tuple[list[list[int]], list[list[int]]]:
    """Look a request up, give it all its slots; return by group the ids that were hit and those that are new."""
    hit = model.lookup(request)
    new = model.allocate(request, request.num_tokens - hit[1], hit)
    assert new is not None
    request.num_computed_tokens = request.num_tokens
    return hit[0], new


def admit(model: KVModel, request: Request) -> tuple[list[int], list[int]]:
    """The same for one group."""
    (hit,), (new,) = admit_to_all(model, request)
    return hit, new


def num_hit(model: KVModel, request: Request) -> int:
    return model.lookup(request)[1]


def num_hit_without(model: KVModel, forgotten: Iterable[tuple[int, int]], tables: Any, request: Request) -> int:
    """Return the length of a hit, as if what these blocks hold, by group and position, were not published at all."""
    published = model.published
    contents = [published[tables[group][position]] for group, position in forgotten]
    model.published = {block_id: held for block_id, held in published.items() if held not in contents}
    found = num_hit(model, request)
    model.published = published
    return found


# ---- one group with full attention


def test_two_requests_share_a_prefix_and_go_back_in_two_tiers() -> None:
    model = model_of(11)
    r0, r1, r2 = with_tail(0, 7), with_tail(1, 5), with_tail(2, 6)
    assert admit(model, r0) == ([], [1, 2, 3, 4])
    assert list(model.published) == [1, 2, 3]
    assert admit(model, r1) == ([1, 2, 3], [5])
    assert [model.ref_cnt(block_id) for block_id in (1, 2, 3, 4, 5)] == [2, 2, 2, 1, 1]
    assert [model.num_common_prefix_blocks(r0, num_running) for num_running in (1, 2)] == [[0], [3]]
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
    model = model_of(11)
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
        model = model_of(20, use_eagle=use_eagle)
        admit(model, with_tail(0, 16))
        assert num_hit(model, generate(1, [*COMMON[:48], *[100] * 16][:num_tokens])) == expected


def test_a_refusal_touches_nothing() -> None:
    model = model_of(11)
    r0, r1 = with_tail(0, 0), generate(1, COMMON[:48] * 2)
    assert admit(model, r0)[1] == [1, 2, 3]
    assert admit(model, r1) == ([1, 2, 3], [4, 5, 6])
    model.free(r1)
    assert len(admit(model, generate(2, 17))[1]) == 2
    assert len(model.free_order) == 5

    r3 = generate(3, COMMON[:48] * 3)
    hit = model.lookup(r3)
    assert hit[1] == 96
    before = list(model.free_order), dict(model.published), dict(model.tables)
    # Three more blocks are needed and five are free, but three of these are the hit's own.
    assert model.allocate(r3, 48, hit) is None
    assert (model.free_order, model.published, model.tables) == before
    assert [model.ref_cnt(block_id) for block_id in hit[0][0]] == [1, 1, 1, 0, 0, 0]
    assert model_of(5).allocate(generate(4, 256), 256) is None


def test_what_decides_which_contents_are_equal() -> None:
    def request_with(a: str, b: str, c: str, tenant: str = "", **changes: Any) -> Request:
        request = generate(0, range(59), [image(a, 11, 10), image(b, 30, 18), image(c, 48, 7)], tenant=tenant)
        for name, value in changes.items():
            setattr(request, name, value)
        return request

    model = model_of(20)
    admit(model, request_with("aaa", "bbb", "ccc"))
    for expected, other in (
        (48, request_with("aaa", "bbb", "ccc")),
        (48, request_with("aaa", "bbb", "other")),
        (16, request_with("aaa", "other", "ccc")),
        (0, request_with("other", "bbb", "ccc")),
        (0, request_with("aaa", "bbb", "ccc", tenant="a")),
        (0, request_with("aaa", "bbb", "ccc", lora=LoraKey("name", "path"))),
        (16, request_with("aaa", "bbb", "ccc", prompt_embeds={16: b"row"})),
    ):
        assert num_hit(model, other) == expected


def test_reset_only_when_nothing_is_held() -> None:
    model = model_of(11)
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


# ---- the token axis


def test_guesses_and_lookahead_have_slots_and_are_not_published() -> None:
    for num_lookahead_tokens in (2, 4):
        model = model_of(11, 4)
        assert model.allocate(generate(0, 3), 3, num_lookahead_tokens=num_lookahead_tokens) == [[1, 2]]
        assert model.published == {}
    model = model_of(11, 4)
    known = generate(0, 8)
    assert model.allocate(known, 8, num_draft_tokens=1) == [[1, 2]]
    assert list(model.published) == [1]
    unknown = generate(1, 6)
    assert model.allocate(unknown, 6 + 3, num_draft_tokens=3) == [[3, 4, 5]]
    assert list(model.published) == [1, 3]
    unknown.num_computed_tokens = 6
    unknown.append_output_token(0)
    assert model.allocate(unknown, 1) == [[]]  # fewer are needed than it has


def test_what_is_delivered_from_outside_lies_behind_the_hit_and_may_be_published_later() -> None:
    model = KVModel(30, [Group(4), Group(4, window=6)])
    first, second = generate(0, range(9)), generate(1, range(20))
    assert admit_to_all(model, first)[1] == [[1, 2, 3], [4, 5, 6]]
    hit = model.lookup(second)
    assert hit == ([[1, 2], [4, 5]], 8)
    given = model.allocate(second, 0, hit, num_external_tokens=8, delay_cache_blocks=True)
    assert given == [[7, 8], [9, 10]]
    assert len(model.published) == 4
    model.cache_blocks(second, 12)
    assert list(model.published)[4:] == [7, 9]
    second.num_computed_tokens = 16
    assert model.allocate(second, 4) == [[11], [12]]
    assert model.tables[1] == [[1, 2, 7, 8, 11], [NULL, NULL, 9, 10, 12]]
    for request in (first, second):
        model.free(request)
    assert sorted(model.free_order) == list(range(1, 30))

    both = KVModel(30, [Group(4), Group(4, window=6)])
    assert both.allocate(generate(0, 9), 1, num_external_tokens=8) == [[1, 2, 3], [4, 5, 6]]
    assert len(both.published) == 4
    with pytest.raises(ValueError, match="nothing"):
        both.allocate(generate(1, 9), 0)


# ---- what a block holds includes tokens behind it


@pytest.mark.parametrize(("num_tokens", "expected"), [(48, 32), (37, 32), (49, 48)])
def test_with_hash_lookahead_nothing_is_given_up(num_tokens: int, expected: int) -> None:
    model = model_of(20, num_hash_lookahead_tokens=1)
    admit(model, with_tail(0, 16))
    assert num_hit(model, generate(1, [*COMMON[:48], *[100] * 16][:num_tokens])) == expected


@pytest.mark.parametrize("num_lookahead", [1, 2, 3])
@pytest.mark.parametrize("num_equal", [0, 1, 2, 3])
def test_a_block_is_found_if_so_many_tokens_behind_it_are_the_same(num_lookahead: int, num_equal: int) -> None:
    model = model_of(20, num_hash_lookahead_tokens=num_lookahead)
    admit(model, generate(0, range(BLOCK + 4)))
    other = generate(1, [*range(BLOCK + num_equal), *[99] * 4])
    assert num_hit(model, other) == (BLOCK if num_equal >= num_lookahead else 0)


def test_a_block_is_published_when_the_token_behind_it_is_known() -> None:
    model = model_of(20, 2, num_hash_lookahead_tokens=1)
    request = generate(0, range(4))
    admit(model, request)
    assert num_hit(model, generate(1, [0, 1, 2, 3, 5])) == 2
    request.append_output_token(5)
    assert model.allocate(request, 1) == [[3]]
    assert num_hit(model, generate(1, [0, 1, 2, 3, 5])) == 4
    assert num_hit(model, generate(1, [0, 1, 2, 3, 6])) == 2


# ---- sliding window

T, F = True, False


@pytest.mark.parametrize(
    ("are_cached", "num_blocks"),
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
def test_a_window_needs_only_what_the_next_token_looks_at(are_cached: Sequence[bool], num_blocks: int) -> None:
    model = KVModel(30, [Group(2, window=4)])
    request = generate(0, 2 * len(are_cached) + 1)
    admit(model, request)
    for position, is_cached in enumerate(are_cached):
        if not is_cached:
            del model.published[model.tables[0][0][position]]
    first = max(0, num_blocks - 2)
    assert model.lookup(request) == ([[NULL] * first + list(range(first + 1, num_blocks + 1))], 2 * num_blocks)


def test_the_null_blocks_of_a_hit_cost_nothing() -> None:
    for window, num_null in ((None, 0), (12, 4), (10, 5)):
        for num_free in (19, 20, 19 - num_null, 20 - num_null):
            model = KVModel(num_free + 1, [Group(2, window)])
            admit(model, generate(0, range(21)))
            model.free(generate(0, 0))
            hit = model.lookup(generate(1, range(40)))
            assert hit[0][0].count(NULL) == num_null
            assert (model.allocate(generate(1, range(40)), 20, hit) is None) == (num_free < 20 - num_null)


def test_a_window_with_eagle_needs_one_block_more() -> None:
    model = KVModel(11, [Group(BLOCK, window=BLOCK)], use_eagle=True)
    admit(model, generate(0, range(37)))
    again = generate(1, range(37))
    assert model.lookup(again) == ([[1]], 16)
    del model.published[1]
    assert num_hit(model, again) == 0


# ---- several groups


def test_three_groups_hit_what_all_of_them_have() -> None:
    model = KVModel(21, [FULL, Group(BLOCK, window=2 * BLOCK), Group(BLOCK, window=2 * BLOCK)])
    r0, r1 = with_tail(0, 7), with_tail(1, 5)
    assert admit_to_all(model, r0)[1] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    tables = model.tables[0]
    assert admit_to_all(model, r1) == ([[1, 2, 3], [0, 6, 7], [0, 10, 11]], [[13], [14], [15]])
    model.free(r0)
    model.free(r1)
    for num_blocks, forgotten in (
        (3, [(1, 0), (2, 0)]),
        (0, [(0, 0)]),
        (2, [(0, 2), (1, 2), (2, 2)]),
        (2, [(0, 2)]),
        (2, [(1, 2)]),
        (2, [(2, 2)]),
        (0, [(0, 2), (1, 0), (2, 0)]),
    ):
        assert num_hit_without(model, forgotten, tables, with_tail(2, 6)) == num_blocks * BLOCK


def test_three_groups_with_eagle_need_the_next_block_too() -> None:
    groups = [FULL, Group(BLOCK, window=3 * BLOCK), Group(BLOCK, window=3 * BLOCK)]
    model = KVModel(31, groups, use_eagle=True)
    r0, r1 = with_tail(0, 7, 6), with_tail(1, 5, 6)
    assert admit_to_all(model, r0)[1] == [list(range(1, 8)), list(range(8, 15)), list(range(15, 22))]
    tables = model.tables[0]
    hit = [[1, 2, 3, 4, 5], [0, 0, 10, 11, 12], [0, 0, 17, 18, 19]]
    assert admit_to_all(model, r1) == (hit, [[22, 23], [24, 25], [26, 27]])
    model.free(r0)
    model.free(r1)
    for num_blocks, forgotten in (
        (5, [(1, 0), (2, 0)]),
        (0, [(0, 0)]),
        (4, [(0, 5), (1, 5), (2, 5)]),
        (4, [(0, 5)]),
        (3, [(1, 4)]),
        (3, [(2, 4)]),
        (4, [(0, 5), (1, 0), (2, 0)]),
    ):
        assert num_hit_without(model, forgotten, tables, with_tail(2, 6, 6)) == num_blocks * BLOCK


def test_blocks_of_different_sizes_hit_at_common_multiples() -> None:
    model = KVModel(30, [Group(32), Group(16, window=32)])
    r0 = generate(0, range(112))
    assert admit_to_all(model, r0)[1] == [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11]]
    for num_tokens in (113, 97):
        hit, num_hit_tokens = model.lookup(generate(1, range(num_tokens)))
        assert (hit, num_hit_tokens) == ([[1, 2, 3], [0, 0, 0, 0, 9, 10]], 96)
    assert num_hit_without(model, [(1, 5)], model.tables[0], generate(1, range(113))) == 64
    assert num_hit(KVModel(30, [Group(32), Group(16, window=32)]), generate(1, range(113))) == 0


@pytest.mark.parametrize("use_eagle", [False, True])
@pytest.mark.parametrize("kinds", ["fs", "sf", "fsS", "fSfs", "sS", "fff", "sfSf", "Ffs", "fFsS"])
def test_any_mixture_finds_what_was_computed_in_two_chunks(kinds: str, *, use_eagle: bool) -> None:
    """f, F: full attention, with blocks of 16, 32; s, S: windows of 2, 4 blocks."""
    kind_of = {"f": FULL, "F": Group(32), "s": Group(16, window=32), "S": Group(16, window=64)}
    model = KVModel(100, [kind_of[kind] for kind in kinds], use_eagle=use_eagle)
    first, second = with_tail(0, 7, 4), with_tail(1, 5, 4)
    assert model.allocate(first, 64) is not None
    first.num_computed_tokens = 64
    assert model.allocate(first, 7) is not None
    stride = max(group.block_size for group in model.groups)
    given_up = stride if use_eagle else 0
    hit, num_hit_tokens = model.lookup(second)
    assert num_hit_tokens == 64 - given_up
    assert [len(table) * group.block_size for table, group in zip(hit, model.groups, strict=True)] == [
        num_hit_tokens
    ] * len(kinds)
    admit_to_all(model, second)
    for request in (first, second):
        model.free(request)
    assert sorted(model.free_order) == list(range(1, 100))
    assert math.lcm(*(group.block_size for group in model.groups)) == stride
