"""Blocks that are given back while a step in flight uses them: they become free when that step has ended.

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
    manager_of,
    num_hit_tokens,
    schedule,
    with_tail,
)


def test_who_takes_part_in_no_step_in_flight_is_freed_at_once() -> None:
    manager = manager_of(11)
    idle, busy = with_tail(0, 7), generate(1, 40)
    admit(manager, idle)
    manager.begin_step(0)
    schedule(manager, busy)
    manager.launch_step(0)
    manager.free(idle)
    assert manager.block_pool.num_free == 7
    manager.commit(0)
    manager.free(busy)
    assert manager.block_pool.num_free == 10


def test_a_withdrawn_step_lifts_its_fence_and_publishes_nothing() -> None:
    manager = manager_of(11)
    request = with_tail(0, 7)
    manager.begin_step(0)
    schedule(manager, request)
    manager.launch_step(0)
    manager.free(request)
    manager.withdraw(0)
    assert manager.block_pool.num_free == 10
    assert manager.block_pool.num_published == 0
    assert num_hit_tokens(manager, request) == 0


@pytest.mark.parametrize("num_tokens", [16, 40, 55])
def test_blocks_wait_for_the_step_in_flight_that_uses_them(num_tokens: int) -> None:
    manager = manager_of(7)
    request, bystander = with_tail(0, 7), generate(1, 16)
    num_blocks, num_full = -(-num_tokens // 16), num_tokens // 16
    manager.begin_step(0)
    go_on(manager, request, 0, num_tokens)
    schedule(manager, bystander)
    manager.launch_step(0)
    num_free = manager.block_pool.num_free
    manager.free(request)
    assert manager.holders() == {1}
    assert manager.block_pool.num_free == num_free
    assert not manager.reset_prefix_cache()
    manager.commit(0)
    assert manager.block_pool.num_free == num_free + num_blocks
    assert manager.block_pool.num_published == num_full + 1  # they were computed: others may find them
    assert manager.block_pool.free_order()[-num_full:] == list(range(num_full, 0, -1))


# ---- windows


def test_what_a_window_leaves_behind_waits_for_the_step() -> None:
    manager = manager_of(20, (2, 4))
    request = generate(0, 30)
    manager.begin_step(0)
    go_on(manager, request, 0, 8)
    # What the step computes still looks at the blocks that are of no use behind it.
    assert go_on(manager, request, 8, 4) == [5, 6]
    assert manager.get_block_ids(0) == ([NULL, NULL, 3, 4, 5, 6],)
    assert manager.block_pool.num_free == 13
    manager.launch_step(0)
    manager.free(request)
    assert manager.block_pool.num_free == 13
    manager.commit(0)
    assert manager.block_pool.num_free == 19
    assert num_hit_tokens(manager, generate(0, 30)) == 12


def test_a_window_does_not_move_back() -> None:
    """It had moved on because the step was going to compute what then lay behind it; the step was withdrawn."""
    manager = manager_of(20, 2, (2, 4))
    request = generate(0, 30)
    manager.begin_step(0)
    for request.num_computed_tokens, num_tokens in ((0, 8), (8, 4)):
        assert manager.allocate_slots(request, num_tokens) is not None
    assert manager.withdraw(0) == [0]
    manager.begin_step(1)
    with pytest.raises(LocalProtocolError, match="request 0"):
        manager.allocate_slots(request, 2)
    manager.free(request)
    assert manager.block_pool.num_free == 19
