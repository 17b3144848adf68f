"""A new epoch: everything that was found is forgotten at once, and nobody who holds blocks is disturbed."""

from __future__ import annotations

import pytest

from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    admit,
    ids,
    manager_of,
    num_hit_tokens,
    run,
    schedule,
    with_tail,
)


def test_a_new_epoch_forgets_all_at_once_and_takes_nothing_from_holders() -> None:
    manager = manager_of(11)
    held, freed = with_tail(0, 40), generate(1, 20)
    admit(manager, freed)
    manager.free(freed)
    manager.allocate_slots(held, 50)
    held.num_computed_tokens = 50
    first = manager.new_epoch()
    assert [num_hit_tokens(manager, request) for request in (with_tail(2, 7), generate(1, 20))] == [0, 0]
    assert manager.block_pool.num_published == 0
    table = manager.get_block_ids(0)
    assert run(manager, held, 38) != []
    assert manager.get_block_ids(0)[0][:4] == table[0]
    assert manager.block_pool.num_published == 0  # what it computes is of the old epoch
    manager.cache_blocks(held, 88)
    assert manager.block_pool.num_published == 0

    order = manager.block_pool.free_order()
    (table_now,) = manager.get_block_ids(0)
    manager.free(held)
    assert manager.block_pool.free_order() == table_now[::-1] + order  # plain free blocks
    held.num_computed_tokens = 0
    admit(manager, held)
    assert num_hit_tokens(manager, with_tail(0, 40)) == 80
    assert manager.new_epoch() == first + 1
    manager.check_integrity()


def test_a_new_epoch_while_steps_are_in_flight() -> None:
    manager = manager_of(20)
    old, late, new = with_tail(0, 7), with_tail(1, 5), with_tail(2, 5)
    manager.begin_step(0)
    schedule(manager, old)
    manager.begin_step(1)
    schedule(manager, late)
    manager.new_epoch()
    assert schedule(manager, new)[0] == []
    manager.commit(0)
    assert manager.block_pool.num_published == 0
    manager.commit(1)
    assert manager.block_pool.num_published == 3
    assert ids(manager.get_computed_blocks(with_tail(3, 5))[0]) == manager.get_block_ids(2)[0][:3]
    manager.check_integrity()


def test_sharers_still_count_on_their_writer_after_a_new_epoch() -> None:
    manager = manager_of(20)
    writer, sharer = with_tail(0, 7), with_tail(1, 5)
    manager.begin_step(0)
    schedule(manager, writer)
    schedule(manager, sharer)
    manager.new_epoch()
    with pytest.raises(LocalProtocolError):
        manager.free(writer)
    assert manager.withdraw_request(writer) == [1, 0]
    manager.commit(0)
    assert manager.block_pool.num_free == 19
    manager.check_integrity()


@pytest.mark.parametrize("is_committed", [False, True])
def test_what_is_withdrawn_in_a_later_epoch_is_lost_all_the_same(is_committed: bool) -> None:
    manager = manager_of(40)
    writer, sharer = with_tail(0, 7), with_tail(1, 5)
    manager.begin_step(0)
    schedule(manager, writer)
    manager.begin_step(1)
    schedule(manager, sharer)
    manager.new_epoch()
    if is_committed:
        manager.commit(0)
    assert manager.withdraw(1 if is_committed else 0) == ([] if is_committed else [1])
    manager.check_integrity()
