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


def test_a_new_epoch_while_a_step_is_open() -> None:
    manager = manager_of(20)
    old, late, new = with_tail(0, 7), with_tail(1, 5), with_tail(2, 5)
    manager.begin_step(0)
    schedule(manager, old)
    schedule(manager, late)
    manager.new_epoch()
    assert schedule(manager, new)[0] == []
    manager.commit(0)
    assert manager.block_pool.num_published == 3
    assert ids(manager.get_computed_blocks(with_tail(3, 5))[0]) == manager.get_block_ids(2)[0][:3]


def test_sharers_still_count_on_their_writer_after_a_new_epoch() -> None:
    manager = manager_of(20)
    writer, sharer = with_tail(0, 7), with_tail(1, 5)
    manager.begin_step(0)
    schedule(manager, writer)
    schedule(manager, sharer)
    manager.new_epoch()
    with pytest.raises(LocalProtocolError):
        manager.free(writer)
    assert manager.withdraw(0) == [1]
