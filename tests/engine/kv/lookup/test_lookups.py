"""A request that is refused asks again at every step: what it is told is what a first lookup would find then.

Four tokens to a block, and ten of them: request 9 holds the two that are missing for request 0 to be admitted.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.engine import KVCacheManager, Request
from tests.engine.builders import generate
from tests.engine.kv.builders import Spec, books, manager_of, plant, tables
from tests.engine.kv.integrity import check_kv

NUM_TOKENS = 33
HIT = "TTTFFFFF"


def blocked(*specs: Spec) -> tuple[KVCacheManager, Request]:
    """Return a manager that has refused request 0, of which it has three blocks cached; and that request."""
    manager, request = manager_of(1 + 10 * len(specs), *specs), generate(0, NUM_TOKENS)
    plant(manager, request, *[HIT] * len(specs))
    manager.begin_step(0)
    assert manager.allocate_slots(generate(9, 8), 8) is not None
    assert not admits(manager, request)
    return manager, request


def admits(manager: KVCacheManager, request: Request) -> bool:
    hit, num_hit = manager.get_computed_blocks(request)
    is_admitted = manager.allocate_slots(request, request.num_tokens - num_hit, num_hit, hit) is not None
    check_kv(manager)
    return is_admitted


def told_anew(manager: KVCacheManager, request: Request) -> tuple[tuple[list[int], ...], int]:
    """Return what a request is told that has never asked."""
    hit, num_hit = manager.get_computed_blocks(generate(99, request.token_ids))
    return tables(hit), num_hit


def evict(manager: KVCacheManager, num_blocks: int) -> None:
    other = generate(50, 4 * num_blocks)
    assert manager.allocate_slots(other, 4 * num_blocks) is not None
    manager.free(other)


def reserve(manager: KVCacheManager, token_ids: list[int]) -> Request:
    """Let another request be scheduled."""
    other = generate(51, token_ids)
    hit, num_hit = manager.get_computed_blocks(other)
    assert manager.allocate_slots(other, len(token_ids) - num_hit, num_hit, hit) is not None
    return other


def publish(manager: KVCacheManager, token_ids: list[int]) -> None:
    reserve(manager, token_ids)
    manager.commit(0)
    manager.begin_step(1)


def withdraw_what_was_shared(manager: KVCacheManager, request: Request) -> None:
    other = reserve(manager, request.token_ids[:20])
    assert manager.get_computed_blocks(request)[1] == 20
    assert not admits(manager, request)
    manager.free(other)


CHANGES: dict[str, tuple[Callable[[KVCacheManager, Request], object], int]] = {
    "nothing": (lambda kv, request: None, 12),
    "a block of the hit is evicted": (lambda kv, request: evict(kv, 6), 8),
    "all are": (lambda kv, request: evict(kv, 8), 0),
    "the first that was missing is published": (lambda kv, request: publish(kv, request.token_ids[:16]), 16),
    "more than the first": (lambda kv, request: publish(kv, request.token_ids[:24]), 24),
    "it is reserved": (lambda kv, request: reserve(kv, request.token_ids[:16]), 16),
    "it was reserved, and is withdrawn": (withdraw_what_was_shared, 12),
    "its step is withdrawn": (lambda kv, request: kv.withdraw(0), 12),
    "an unrelated prompt is published": (lambda kv, request: publish(kv, [1] * 8), 12),
    "all is forgotten": (lambda kv, request: kv.new_epoch(), 0),
    "the request grows": (lambda kv, request: request.append_output_token(1), 12),
}


@pytest.mark.parametrize("specs", [(4,), (4, (4, 1000)), (4, 4)], ids=str)
@pytest.mark.parametrize(("change", "num_hit"), CHANGES.values(), ids=CHANGES.keys())
def test_what_is_told_again(
    change: Callable[[KVCacheManager, Request], object], num_hit: int, specs: tuple[Spec, ...]
) -> None:
    manager, request = blocked(*specs)
    change(manager, request)
    for _ in range(3):
        found, num_found = manager.get_computed_blocks(request)
        assert (tables(found), num_found) == told_anew(manager, request)
        if len(specs) == 1:  # with more groups, eviction goes through them in turn
            assert num_found == num_hit
        before = books(manager)
        assert not admits(manager, request)
        assert books(manager) == before


@pytest.mark.parametrize("specs", [(4,), (4, (4, 1000)), (4, 4)], ids=str)
@pytest.mark.parametrize("num_refusals", [1, 3])
def test_it_is_admitted_when_there_is_room(num_refusals: int, specs: tuple[Spec, ...]) -> None:
    manager, request = blocked(*specs)
    for _ in range(num_refusals - 1):
        assert not admits(manager, request)
    manager.free(generate(9, 8))
    told = told_anew(manager, request)
    hit, num_hit = manager.get_computed_blocks(request)
    assert (tables(hit), num_hit) == told
    assert admits(manager, request)
    assert [len(table) for table in manager.get_block_ids(0)] == [9] * len(specs)
    assert [table[:3] for table in manager.get_block_ids(0)] == list(told[0])


@pytest.mark.parametrize("is_asked_in_between", [False, True])
def test_a_hit_that_others_share_meanwhile_costs_less(is_asked_in_between: bool) -> None:
    """What kept the request out were the free blocks of its own hit; somebody holds most of them now."""
    manager, request = manager_of(12, 4), generate(0, 36)
    plant(manager, request, "TTTTTT")
    other = generate(1, 12)
    assert admits(manager, other)
    assert manager.get_computed_blocks(request)[1] == 24
    assert not admits(manager, request)  # six blocks of the hit and three new ones, of eight that are free
    assert admits(manager, generate(2, request.token_ids[:21]))
    if is_asked_in_between:
        assert not admits(manager, request)
    manager.free(other)
    assert manager.block_pool.num_free == 5
    assert admits(manager, request)  # one block of the hit and three new ones
    assert manager.get_block_ids(0)[0][:6] == [1, 2, 3, 4, 5, 6]


def test_a_longer_prompt_may_have_a_longer_hit() -> None:
    manager, request = manager_of(5, 4), generate(0, 16)
    plant(manager, request, "TTTT")
    hit, num_hit = manager.get_computed_blocks(request)
    assert num_hit == 12
    assert manager.allocate_slots(request, 4, num_hit, hit, num_lookahead_tokens=4) is None
    request.append_output_token(1)
    assert manager.get_computed_blocks(request)[1] == 16


def test_a_window_may_find_more_behind_a_block_that_is_still_missing() -> None:
    manager, prompt = manager_of(12, (4, 5)), list(range(17))
    request, writer = generate(0, prompt), generate(1, prompt, skip_reading_prefix_cache=True)
    assert admits(manager, generate(2, [*prompt[:4], 9]))
    hit, num_hit = manager.get_computed_blocks(request)
    assert (tables(hit), num_hit) == (([1],), 4)
    assert manager.allocate_slots(request, 13, num_hit, hit, num_lookahead_tokens=50) is None

    assert manager.allocate_slots(writer, 16) is not None
    writer.num_computed_tokens = 16
    assert manager.allocate_slots(writer, 1) is not None
    assert admits(manager, generate(3, 24))  # evicts what the writer's window has left behind, the last first
    assert [manager.block_pool.find(digest) is not None for digest in request.block_hashes] == [
        True,
        False,
        False,
        True,
    ]
    assert (tables(manager.get_computed_blocks(request)[0]), 16) == told_anew(manager, request)


def test_a_blocked_request_is_not_admitted_on_what_was_free_when_it_was_refused() -> None:
    """While it waits, the holder of its hit frees that: as many blocks as its own admission then takes away."""
    manager = manager_of(6, 1)
    holder, waiting = generate(0, [1, 2, 3]), generate(1, [1, 2, 3, 20, 21, 22])
    assert admits(manager, holder)
    assert not admits(manager, waiting)
    manager.free(holder)
    assert not admits(manager, waiting), "three of five free blocks are its hit's, and it needs three more"


def test_a_blocked_request_whose_tokens_have_changed_is_looked_up_anew() -> None:
    manager, request = blocked(4)
    request.token_ids[5] += 1
    manager.free_block_hashes(request)
    assert (tables(manager.get_computed_blocks(request)[0]), 4) == told_anew(manager, request)
