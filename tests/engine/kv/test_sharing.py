"""Requests that count on what a step is going to compute: how they share it, and what becomes of them if it is not.

Sixteen tokens to a block where nothing else is said. The figures of same-step sharing are those of vLLM 0.33's tests
(AS1, AS2); that sharers go with their writer is our own.
"""

from __future__ import annotations

import pytest

from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    NULL,
    admit_to_groups,
    books,
    go_on,
    ids,
    manager_of,
    num_hit_tokens,
    plant,
    ref_counts,
    schedule,
    tables,
    with_tail,
)


def test_equal_prompts_in_one_step_are_computed_once() -> None:
    manager = manager_of(40)
    twins = [generate(i, range(100)) for i in range(4)]
    manager.begin_step(0)
    num_scheduled = []
    for request in twins:
        hit, num_hit = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, 100 - num_hit, num_hit, hit) is not None
        num_scheduled.append(100 - num_hit)
    assert num_scheduled == [100, 4, 4, 4]
    assert ref_counts(manager, [*range(1, 8)]) == [4] * 6 + [1]
    assert manager.block_pool.num_published == 0
    manager.commit(0)
    assert manager.block_pool.num_published == 6
    assert num_hit_tokens(manager, generate(9, range(100))) == 96


def test_every_group_shares_what_is_not_yet_written() -> None:
    manager = manager_of(30, 16, (16, 32), 16)
    manager.begin_step(0)
    first, second = with_tail(0, 7), with_tail(1, 5)
    assert admit_to_groups(manager, first)[1] == ([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12])
    assert admit_to_groups(manager, second) == (([1, 2, 3], [NULL, 6, 7], [9, 10, 11]), ([13], [14], [15]))
    manager.commit(0)
    manager.free(first)
    manager.free(second)
    assert tables(manager.get_computed_blocks(with_tail(2, 5))[0]) == ([1, 2, 3], [NULL, 6, 7], [9, 10, 11])


def test_published_and_reserved_blocks_make_one_hit() -> None:
    manager = manager_of(20, 4)
    whole = generate(0, range(17))
    ((_, second, _, fourth),) = plant(manager, whole, "FTFT")
    manager.begin_step(0)
    hit, new = schedule(manager, generate(1, range(9)))  # computes the second block anew
    assert (hit, len(new)) == ([], 3)
    assert schedule(manager, generate(2, range(15)))[0] == [new[0], second]
    assert schedule(manager, whole)[0] == [new[0], second, 6, fourth]
    manager.commit(0)
    assert ids(manager.get_computed_blocks(generate(0, range(17)))[0]) == [new[0], second, 6, fourth]


# ---- a request is taken out of the step that is being built


def test_a_writer_that_others_count_on_stays() -> None:
    manager = manager_of(20)
    writer, sharer = with_tail(0, 7), with_tail(1, 5)
    manager.begin_step(0)
    schedule(manager, writer)
    schedule(manager, sharer)
    before = books(manager)
    with pytest.raises(LocalProtocolError, match=r"requests \[1\] share blocks that request 0 would write"):
        manager.free(writer)
    assert books(manager) == before
    manager.free(sharer)  # nobody counts on it any more
    manager.free(writer)
    manager.commit(0)
    assert manager.block_pool.num_published == manager.block_pool.num_held == 0


def test_a_second_writer_stands_in_for_one_that_was_taken_out() -> None:
    manager = manager_of(20, 4)
    first, second = (generate(i, range(9), skip_reading_prefix_cache=True) for i in range(2))
    sharer = generate(2, range(9))
    manager.begin_step(0)
    assert [schedule(manager, request) for request in (first, second)] == [([], [1, 2, 3]), ([], [4, 5, 6])]
    assert schedule(manager, sharer)[0] == [1, 2]
    manager.free(sharer)
    manager.free(first)
    assert schedule(manager, sharer)[0] == [4, 5]
    manager.commit(0)
    assert manager.block_pool.num_published == 2
    assert manager.holders() == {1, 2}


def test_nobody_counts_on_a_writer_whose_step_was_launched() -> None:
    """What has been sent is computed, whatever becomes of the request: its sharers go on."""
    manager = manager_of(20)
    writer, sharer = with_tail(0, 7), with_tail(1, 5)
    manager.begin_step(0)
    schedule(manager, writer)
    schedule(manager, sharer)
    manager.launch_step(0)
    manager.free(writer)
    assert manager.holders() == {1}
    manager.commit(0)
    assert manager.block_pool.num_published == 3
    assert manager.get_block_ids(1) == ([1, 2, 3, 5],)
    assert ref_counts(manager, [1, 2, 3, 4, 5]) == [1, 1, 1, 0, 1]


def test_a_hit_that_was_withdrawn_since_its_lookup_is_refused() -> None:
    manager = manager_of(20)
    writer, sharer = with_tail(0, 7), with_tail(1, 5)
    manager.begin_step(0)
    schedule(manager, writer)
    hit, num_hit = manager.get_computed_blocks(sharer)
    assert num_hit == 48
    manager.free(writer)
    before = books(manager)
    with pytest.raises(ValueError, match="1"):
        manager.allocate_slots(sharer, 5, num_hit, hit)
    assert books(manager) == before


# ---- a step is withdrawn


def test_who_shared_what_was_withdrawn_gets_no_more_slots() -> None:
    manager = manager_of(40)
    writer, sharer, other = with_tail(0, 7), with_tail(1, 5), generate(2, 20)
    manager.begin_step(0)
    for request in (writer, sharer, other):
        schedule(manager, request)
    assert manager.withdraw(0) == [1]
    manager.begin_step(2)
    assert go_on(manager, writer, 0, 55) == []
    sharer.num_computed_tokens = 53
    with pytest.raises(LocalProtocolError, match="1"):
        manager.allocate_slots(sharer, 1)
    manager.free(sharer)
    sharer.num_computed_tokens = 0
    assert schedule(manager, sharer)[0] == [1, 2, 3]  # the writer is at it again
    manager.commit(2)
