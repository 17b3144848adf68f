"""Where the manager takes a shortcut, and the plain answer is another one than it might seem.

What is remembered of a blocked request, what is trusted of a hit that was found earlier, what counts as given back. The
answers are the plain model's.
"""

from __future__ import annotations

from tests.engine.builders import generate
from tests.engine.kv.builders import admit_to_groups, manager_of, num_hit_tokens


def test_a_refused_hit_of_an_earlier_lookup_does_not_hide_a_longer_one() -> None:
    manager = manager_of(14, 2, (2, 7))
    late = generate(0, range(10))
    admit_to_groups(manager, generate(1, [0, 1, 99]))
    hit, num_tokens = manager.get_computed_blocks(late)
    assert num_tokens == 2
    admit_to_groups(manager, generate(2, range(5)))
    assert manager.allocate_slots(late, 8, num_tokens, hit) is None
    assert num_hit_tokens(manager, late) == 4


def test_who_is_refused_may_end_in_a_block_whose_digest_is_not_known_yet() -> None:
    manager = manager_of(5, 2, num_hash_lookahead_tokens=2)
    late = generate(0, range(5))
    admit_to_groups(manager, generate(1, range(6)))
    hit, num_tokens = manager.get_computed_blocks(late)
    assert num_tokens == 2
    assert manager.allocate_slots(late, 3, num_tokens, hit) is None
    assert num_hit_tokens(manager, late) == 2


def test_a_blocked_request_needs_more_free_blocks_when_its_hit_is_given_back() -> None:
    manager = manager_of(6, 2)
    first, late = generate(0, [0, 1, 2, 3, 99]), generate(1, range(12))
    admit_to_groups(manager, first)
    for num_free in (2, 5):  # with its hit held by another, it lacks four blocks; with its hit free, six
        hit, num_tokens = manager.get_computed_blocks(late)
        order = manager.block_pool.free_order()
        assert (num_tokens, len(order)) == (4, num_free)
        assert manager.allocate_slots(late, 8, num_tokens, hit) is None
        assert manager.block_pool.free_order() == order
        manager.free(first)


def test_a_hit_on_what_is_reserved_in_a_new_epoch_stays_good_while_others_leave() -> None:
    manager = manager_of(20, 2)
    manager.begin_step(0)
    admit_to_groups(manager, generate(0, range(4)))
    manager.new_epoch()
    admit_to_groups(manager, generate(1, range(4)))
    other, late = generate(2, 4), generate(3, range(5))
    admit_to_groups(manager, other)
    hit, num_tokens = manager.get_computed_blocks(late)
    assert (hit.get_block_ids(), num_tokens) == (([3, 4],), 4)
    manager.free(other)
    assert manager.allocate_slots(late, 1, num_tokens, hit) is not None


def test_the_null_blocks_of_a_hit_are_not_given_back() -> None:
    manager = manager_of(40, (4, 4))
    admit_to_groups(manager, generate(0, range(17)))
    request = generate(1, range(20))
    manager.begin_step(0)
    hit, num_tokens = manager.get_computed_blocks(request)
    assert hit.get_block_ids() == ([0, 0, 0, 4],)
    manager.allocate_slots(request, 1, num_tokens, hit)
    request.num_computed_tokens = 17
    manager.allocate_slots(request, 1)
    assert manager.withdraw(0) == []  # it can go on at token 16: all that this one looks at is there
