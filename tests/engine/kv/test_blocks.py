"""What the manager hands out: views, sums, and what is empty (KU2, KU23)."""

from __future__ import annotations

import pytest

from mmcached.engine import KVCacheManager
from mmcached.wire.errors import LocalProtocolError
from tests.engine.kv.builders import (
    Spec,
    Tables,
    admit_to_groups,
    config_of,
    manager_of,
    num_hit_tokens,
    tables,
    with_tail,
)


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
