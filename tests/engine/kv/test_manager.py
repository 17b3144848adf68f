"""The KV cache manager beside what `test_differential` compares: what it refuses, hands out, counts and remembers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.engine import KVCacheManager
from mmcached.wire.engine_stats import KVCacheStats
from mmcached.wire.errors import InvalidRequest, LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    Spec,
    Tables,
    admit,
    admit_to_groups,
    books,
    config_of,
    manager_of,
    num_hit_tokens,
    run,
    tables,
    with_tail,
)


def test_holders_are_those_with_blocks() -> None:
    manager = manager_of(11)
    requests = [generate(i, 20) for i in range(3)]
    for request in requests:
        admit(manager, request)
    manager.free(requests[1])
    assert manager.holders() == {0, 2}
    assert manager.allocate_slots(generate(3, 160), 160) is None
    manager.holders().clear()
    assert manager.holders() == {0, 2}


def test_stats_count_first_admissions_of_those_who_read() -> None:
    manager = manager_of(11)
    request = with_tail(0, 7)
    admit(manager, request)
    manager.free(request)
    request.was_admitted = True
    request.num_computed_tokens = 0
    admit(manager, request)
    admit(manager, with_tail(1, 7, skip_reading_prefix_cache=True))
    manager.free(request)
    admit(manager, with_tail(2, 5))
    assert manager.stats() == KVCacheStats(queries=108, hits=48, blocks_used=8, blocks_cached=6, blocks_total=10)


@pytest.mark.parametrize(("at_most", "num_hit"), [(0, 0), (15, 0), (16, 16), (47, 32), (48, 48), (999, 48)])
def test_a_hit_is_as_long_as_its_caller_can_use(at_most: int, num_hit: int) -> None:
    manager = manager_of(11)
    admit(manager, with_tail(0, 7))
    request = with_tail(1, 5)
    hit, num_tokens = manager.get_computed_blocks(request, at_most)
    assert (num_tokens, list(hit.ids[0])) == (num_hit, [1, 2, 3][: num_hit // 16])
    assert manager.allocate_slots(request, request.num_tokens - num_hit, num_hit, hit) is not None
    assert manager.get_block_ids(1)[0][: num_hit // 16] == list(hit.ids[0])


# ---- what is handed out


def test_blocks_are_views_of_the_pool() -> None:
    manager = manager_of(11)
    request = with_tail(0, 7)
    blocks = manager.allocate_slots(request, 55)
    assert blocks is not None
    ((first, *_, last),) = blocks.blocks
    assert (first.block_id, first.ref_cnt, first.is_null) == (1, 1, False)
    assert (first.block_hash, last.block_hash) == (request.block_hashes[0], None)
    manager.free(request)
    assert first.ref_cnt == 0


def test_blocks_of_every_group_show_the_same_digest() -> None:
    manager = manager_of(21, 16, (16, 32))
    first = with_tail(0, 7)
    admit_to_groups(manager, first)
    hit, _ = manager.get_computed_blocks(with_tail(1, 5))
    assert [[block.block_hash for block in group] for group in hit.blocks] == [
        first.block_hashes,
        [None, *first.block_hashes[1:]],
    ]
    assert [block.is_null for block in hit.blocks[1]] == [True, False, False]


def test_blocks_add_up_by_group() -> None:
    manager = manager_of(21, 16, (16, 32), 16)
    first, second = with_tail(0, 7), with_tail(1, 5)
    admit_to_groups(manager, first)
    hit, num_hit = manager.get_computed_blocks(second)
    new = manager.allocate_slots(second, 5, num_hit, hit)
    assert new is not None
    assert (hit + new).get_block_ids() == manager.get_block_ids(1)
    assert (hit + hit.new_empty()).get_block_ids() == (hit.new_empty() + hit).get_block_ids() == hit.get_block_ids()
    assert tables(hit) == ([1, 2, 3], [0, 6, 7], [9, 10, 11])
    assert hit.ids[2][1] == 10
    with pytest.raises(LocalProtocolError, match="3 group"):
        hit + manager_of(5).create_empty_block_list()


@pytest.mark.parametrize("specs", [(16,), (16, (16, 32)), (16, 16, 16)], ids=str)
def test_empty_blocks_have_as_many_groups(specs: tuple[Spec, ...]) -> None:
    manager = manager_of(21, *specs)
    blocks = manager.allocate_slots(with_tail(0, 7), 55)
    assert blocks is not None
    empty: Tables = tuple([] for _ in specs)
    assert manager.create_empty_block_list().get_block_ids() == empty
    assert blocks.new_empty().get_block_ids() == empty
    assert [len(group) for group in blocks.new_empty().blocks] == [0] * len(specs)
    assert manager.get_computed_blocks(with_tail(1, 7))[0].new_empty().get_block_ids() == empty


def test_unhashed_blocks_are_those_of_one_group() -> None:
    manager = manager_of(11)
    blocks = manager.allocate_slots(with_tail(0, 30), 78)
    assert blocks is not None
    assert blocks.get_unhashed_block_ids() == [5]
    assert (blocks + blocks).get_unhashed_block_ids() == [5, 5]
    assert manager.get_computed_blocks(with_tail(1, 7))[0].get_unhashed_block_ids() == []
    for groups in ((16, 16), ()):
        with pytest.raises(LocalProtocolError, match=str(len(groups))):
            KVCacheManager(config_of(11, *groups), 100).create_empty_block_list().get_unhashed_block_ids()


def test_what_was_handed_out_can_be_changed_without_harm() -> None:
    manager = manager_of(11)
    request = with_tail(0, 7)
    blocks = manager.allocate_slots(request, 55)
    for taken in (tables(blocks), manager.get_block_ids(0), tables(manager.get_computed_blocks(with_tail(1, 7))[0])):
        taken[0].clear()
    assert manager.get_block_ids(0) == ([1, 2, 3, 4],)
    assert num_hit_tokens(manager, with_tail(1, 7)) == 48


# ---- shortcuts: where the plain model's answer is another one than it might seem


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


# ---- what is refused; four tokens to a block


BLOCK = 4


# ---- wrong arguments


WRONG: dict[str, tuple[Callable[[KVCacheManager], object], str]] = {
    "nothing asked for": (lambda kv: kv.allocate_slots(generate(1, 9), 0), "num_new_tokens"),
    "nothing asked for but lookahead": (
        lambda kv: kv.allocate_slots(generate(1, 9), 0, num_lookahead_tokens=4),
        "num_new_tokens",
    ),
    "a hit for one who holds blocks": (
        lambda kv: (
            kv.allocate_slots(request := generate(1, [*range(8), 1, 1]), 2),
            kv.allocate_slots(request, 1, 8, kv.get_computed_blocks(generate(2, range(9)))[0]),
        ),
        "1",
    ),
    "tokens that are not those of the hit": (
        lambda kv: kv.allocate_slots(generate(1, range(9)), 1, 7, kv.get_computed_blocks(generate(1, range(9)))[0]),
        "7",
    ),
    "tokens of a hit without its blocks": (lambda kv: kv.allocate_slots(generate(1, range(9)), 1, 8), "8"),
    "a hit that another prompt has": (
        lambda kv: kv.allocate_slots(generate(1, 9), 1, 8, kv.get_computed_blocks(generate(2, range(9)))[0]),
        "1",
    ),
    "more drafts than new tokens": (
        lambda kv: kv.allocate_slots(generate(1, 9), 3, num_draft_tokens=4),
        "num_draft_tokens = 4: at most num_new_tokens = 3",
    ),
    "fewer than no new tokens": (lambda kv: kv.allocate_slots(generate(1, 9), -1), "num_new_tokens = -1"),
    "fewer than no drafts": (
        lambda kv: kv.allocate_slots(generate(1, 9), 1, num_draft_tokens=-1),
        "num_draft_tokens = -1",
    ),
    "fewer than no lookahead": (
        lambda kv: kv.allocate_slots(generate(1, 9), 1, num_lookahead_tokens=-1),
        "num_lookahead_tokens = -1",
    ),
    "fewer than no external tokens": (
        lambda kv: kv.allocate_slots(generate(1, 9), 1, num_external_computed_tokens=-4),
        "num_external_computed_tokens = -4",
    ),
    "a hit of fewer than no tokens": (lambda kv: kv.allocate_slots(generate(1, 9), 1, -4), "-4"),
    "blocks of a hit without their tokens": (
        lambda kv: kv.allocate_slots(
            generate(1, range(9)), 1, new_computed_blocks=kv.get_computed_blocks(generate(1, range(9)))[0]
        ),
        "0",
    ),
}


@pytest.mark.parametrize(("call", "named"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_are_refused(call: Callable[[KVCacheManager], object], named: str) -> None:
    manager = manager_of(20, BLOCK)
    admit(manager, generate(0, range(8)))
    with pytest.raises(ValueError, match=named):
        call(manager)


@pytest.mark.parametrize("is_in_step", [False, True])
def test_a_placeholder_in_a_full_block_is_refused_and_changes_nothing(is_in_step: bool) -> None:
    manager = manager_of(20, BLOCK)
    newcomer, running = generate(0, [1, 2, 3, -1, 5]), generate(1, range(100, 106))
    admit(manager, running)
    running.token_ids += [-1, 1, 1]
    if is_in_step:
        manager.begin_step(0)
    for request, num_tokens in ((newcomer, 5), (newcomer, 4), (running, 3), (running, 2)):
        before = books(manager)
        with pytest.raises(InvalidRequest, match="-1"):
            manager.allocate_slots(request, num_tokens)
        assert books(manager) == before
    with pytest.raises(InvalidRequest, match="-1"):
        manager.get_computed_blocks(newcomer)


def test_blocks_behind_reserved_ones_are_not_published_before_them() -> None:
    """Were the step withdrawn, the blocks before would be empty, and those behind published a second time."""
    manager = manager_of(10, BLOCK)
    request = generate(0, 20)
    manager.begin_step(0)
    assert manager.allocate_slots(request, 8, num_lookahead_tokens=8) is not None
    before = books(manager)
    with pytest.raises(LocalProtocolError, match="wait for a step"):
        manager.cache_blocks(request, 12)
    assert books(manager) == before
    manager.cache_blocks(request, 11)  # nothing more is full
    manager.commit(0)
    manager.cache_blocks(request, 12)
    assert manager.block_pool.num_published == 3


def test_a_hit_of_another_request_is_refused() -> None:
    """Also one that is longer than all that the request has."""
    manager = manager_of(20, BLOCK)
    admit(manager, generate(0, range(12)))
    hit, num_tokens = manager.get_computed_blocks(generate(1, range(20)))
    assert num_tokens == 12
    for token_ids in (range(5), range(100, 120)):
        other = generate(2, token_ids)
        before = books(manager)
        with pytest.raises(ValueError, match="look it up again"):
            manager.allocate_slots(other, 1, num_tokens, hit)
        assert books(manager) == before


# ---- blocks that arrive later, and no caching


@pytest.mark.parametrize(("num_slots", "num_tokens"), [(0, 4), (4, 8), (8, 12)])
def test_what_has_no_slots_cannot_have_arrived(num_slots: int, num_tokens: int) -> None:
    manager = manager_of(20, BLOCK)
    request = generate(0, 14)
    if num_slots:
        manager.allocate_slots(request, 0, num_external_computed_tokens=num_slots, delay_cache_blocks=True)
    with pytest.raises(LocalProtocolError, match="0"):
        manager.cache_blocks(request, num_tokens)
    assert manager.block_pool.num_published == 0


def test_without_caching_nothing_is_published_whoever_asks() -> None:
    manager, request = manager_of(20, BLOCK, enable_caching=False), generate(0, 40)
    manager.cache_blocks(request, 40)
    manager.allocate_slots(request, 4)
    manager.cache_blocks(request, 40)
    assert manager.block_pool.num_published == 0


def test_without_caching_no_token_is_looked_at() -> None:
    manager = manager_of(20, BLOCK, enable_caching=False)
    request = generate(0, [-1] * 8)
    assert admit(manager, request) == ([], [1, 2])
    manager.new_epoch()
    request.token_ids += [-1] * 8
    assert run(manager, request, 8) == [3, 4]
    manager.cache_blocks(request, 16)
    assert request.block_hashes == []
