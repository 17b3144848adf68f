"""Blocks that are given back while a step in flight uses them: they become free when the newest such step has ended.

Sixteen tokens to a block where nothing else is said. Cases of vLLM 0.33's deferred frees (DF1-DF13); that a withdrawn
step lifts its fence, and what that means for windows, is our own.
"""

from __future__ import annotations

import pytest

from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    NULL,
    admit,
    go_on,
    ids,
    manager_of,
    num_hit_tokens,
    ref_counts,
    schedule,
    with_tail,
)


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [([16], 1), ([16, 16], 2), ([16, 16, 16], 3), ([20, 1, 1], 2)])
def test_blocks_wait_for_the_newest_step_in_flight_that_uses_them(num_tokens: list[int], num_blocks: int) -> None:
    manager = manager_of(11)
    request, bystander, num_computed = with_tail(0, 7), generate(1, 16), 0
    for step_id, num in enumerate(num_tokens):
        manager.begin_step(step_id)
        go_on(manager, request, num_computed, num)
        num_computed += num
    last = len(num_tokens)
    manager.begin_step(last)
    schedule(manager, bystander)
    manager.launch_step(last)
    num_free = manager.block_pool.num_free
    manager.free(request)
    assert manager.holders() == {1}
    for step_id in range(last):
        assert (manager.num_fenced, manager.block_pool.num_free) == (num_blocks, num_free)
        manager.check_integrity()
        manager.commit(step_id)
    assert (manager.num_fenced, manager.block_pool.num_free) == (0, num_free + num_blocks)
    num_full = num_computed // 16
    assert manager.block_pool.num_published == num_full  # they were computed: others may find them
    assert manager.block_pool.free_order()[-num_full:] == list(range(num_full, 0, -1))
    manager.commit(last)
    manager.check_integrity()


def test_who_takes_part_in_no_step_in_flight_is_freed_at_once() -> None:
    manager = manager_of(11)
    idle, busy = with_tail(0, 7), generate(1, 40)
    admit(manager, idle)
    manager.begin_step(0)
    schedule(manager, busy)
    manager.launch_step(0)
    manager.free(idle)
    assert (manager.num_fenced, manager.block_pool.num_free) == (0, 7)
    manager.commit(0)
    manager.free(busy)
    assert (manager.num_fenced, manager.block_pool.num_free) == (0, 10)


def test_leaving_the_step_being_built_does_not_lift_the_fence_of_the_one_before() -> None:
    manager = manager_of(11)
    request = with_tail(0, 40)
    manager.begin_step(0)
    go_on(manager, request, 0, 48)
    manager.begin_step(1)
    go_on(manager, request, 48, 40)
    manager.free(request)
    assert manager.num_fenced == 6
    manager.commit(0)
    assert (manager.num_fenced, manager.block_pool.num_free) == (0, 10)
    manager.commit(1)
    assert manager.block_pool.num_published == 3
    manager.check_integrity()


def test_fenced_blocks_cannot_be_handed_out() -> None:
    manager = manager_of(5)
    request, waiting = with_tail(0, 7), generate(1, 64)
    manager.begin_step(0)
    schedule(manager, request)
    manager.launch_step(0)
    manager.free(request)
    assert manager.reset_prefix_cache() is False
    manager.begin_step(1)
    assert manager.allocate_slots(waiting, 1) is None
    manager.commit(0)
    assert len(ids(manager.allocate_slots(waiting, 64))) == 4
    manager.check_integrity()


def test_a_preempted_request_may_share_its_own_fenced_blocks() -> None:
    manager = manager_of(11)
    request = with_tail(0, 7)
    manager.begin_step(0)
    schedule(manager, request)
    manager.begin_step(1)
    manager.free(request)
    assert schedule(manager, request) == ([1, 2, 3], [5])
    assert ref_counts(manager, [1, 2, 3, 4, 5]) == [2, 2, 2, 1, 1]
    manager.commit(0)
    assert ref_counts(manager, [1, 2, 3, 4, 5]) == [1, 1, 1, 0, 1]
    assert manager.num_fenced == 0
    manager.commit(1)
    manager.check_integrity()


def test_a_withdrawn_step_lifts_its_fence_and_publishes_nothing() -> None:
    manager = manager_of(11)
    request = with_tail(0, 7)
    manager.begin_step(0)
    schedule(manager, request)
    manager.launch_step(0)
    manager.free(request)
    manager.withdraw(0)
    assert (manager.num_fenced, manager.block_pool.num_free) == (0, 10)
    assert manager.block_pool.num_published == 0
    assert num_hit_tokens(manager, request) == 0
    manager.check_integrity()


def test_a_withdrawn_step_leaves_the_fence_of_the_one_before() -> None:
    manager = manager_of(11)
    request, late = with_tail(0, 40), generate(1, 32)
    for step_id in range(2):
        manager.begin_step(step_id)
        go_on(manager, request, 32 * step_id, 32)
    schedule(manager, late)
    manager.launch_step(1)
    manager.free(request)
    manager.free(late)
    assert (manager.num_fenced, manager.block_pool.num_free) == (6, 4)
    manager.withdraw(1)
    assert (manager.num_fenced, manager.block_pool.num_free) == (4, 6)
    manager.check_integrity()
    manager.commit(0)
    assert (manager.num_fenced, manager.block_pool.num_free) == (0, 10)
    assert num_hit_tokens(manager, with_tail(0, 40)) == 32
    manager.check_integrity()


# ---- windows


def test_what_a_window_leaves_behind_waits_for_steps_in_flight() -> None:
    manager = manager_of(20, (2, 4))
    request = generate(0, 30)
    manager.begin_step(0)
    go_on(manager, request, 0, 8)
    manager.begin_step(1)
    # The scheduler counts on step 0; what it computes still looks at the blocks that are now of no use.
    assert go_on(manager, request, 8, 4) == [5, 6]
    assert manager.get_block_ids(0) == ([NULL, NULL, 3, 4, 5, 6],)
    assert (manager.num_fenced, manager.block_pool.num_free) == (2, 13)
    manager.free(request)
    assert (manager.num_fenced, manager.block_pool.num_free) == (6, 13)  # null blocks are nobody's
    manager.commit(0)
    assert (manager.num_fenced, manager.block_pool.num_free) == (0, 19)
    assert manager.block_pool.num_published == 4
    manager.commit(1)
    assert num_hit_tokens(manager, generate(0, 30)) == 8
    manager.check_integrity()


def test_a_window_does_not_move_back() -> None:
    """It had moved on because a step was going to compute what then lay behind it; that step was withdrawn."""
    manager = manager_of(20, 2, (2, 4))
    request = generate(0, 30)
    for step_id, (start, num_tokens) in enumerate([(0, 8), (8, 4), (12, 2)]):
        manager.begin_step(step_id)
        request.num_computed_tokens = start
        assert manager.allocate_slots(request, num_tokens) is not None
    manager.commit(0)
    assert manager.withdraw(2) == []
    request.num_computed_tokens = 12
    manager.begin_step(2)
    assert manager.allocate_slots(request, 2) is not None
    assert manager.get_block_ids(0)[1][:5] == [NULL] * 4 + [manager.get_block_ids(0)[1][4]]
    assert manager.withdraw(1) == [0]  # the window had left tokens 4 to 8 behind, as if 8 to 11 had been computed
    manager.check_integrity()
    manager.begin_step(1)
    with pytest.raises(LocalProtocolError, match="0"):
        manager.allocate_slots(request, 2)
    manager.free(request)
    assert (manager.num_fenced, manager.block_pool.num_free) == (0, 19)
    manager.check_integrity()
