"""Free order, duplicates, eviction, and the checker itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.engine.kv.block_pool import BlockPool
from mmcached.wire.errors import InvariantError, LocalProtocolError


def test_hands_out_ascending_and_never_the_null_block() -> None:
    pool = BlockPool(5)
    assert pool.num_free == 4
    assert pool.get_new_blocks(0) == []
    assert pool.get_new_blocks(4) == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_held) == (0, 4)


def test_a_pool_of_the_null_block_alone_has_nothing() -> None:
    assert BlockPool(1).num_free == 0


def test_asking_for_too_many_changes_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(LocalProtocolError, match="4 blocks asked for, 3 free"):
        pool.get_new_blocks(4)
    assert pool.free_order() == [1, 2, 3]


def test_unpublished_blocks_come_back_first_and_published_last() -> None:
    pool = BlockPool(7)
    pool.get_new_blocks(5)
    pool.publish(1, b"one")
    pool.publish(2, b"two")
    pool.free_blocks([5, 4, 2, 1])
    assert pool.free_order() == [5, 4, 6, 2, 1]
    pool.free_blocks([3])
    assert pool.free_order() == [3, 5, 4, 6, 2, 1]


def test_reusable_after_a_complete_drain() -> None:
    pool = BlockPool(4)
    for _ in range(3):
        pool.free_blocks(pool.get_new_blocks(3))
    assert sorted(pool.free_order()) == [1, 2, 3]


def test_eviction_takes_the_longest_free() -> None:
    pool = BlockPool(4)
    pool.get_new_blocks(3)
    for block_id, digest in ((1, b"one"), (2, b"two"), (3, b"three")):
        pool.publish(block_id, digest)
    pool.free_blocks([2])
    pool.free_blocks([1])
    pool.touch([2])  # used again, so it is the younger of the two afterwards
    pool.free_blocks([2])
    assert pool.get_new_blocks(1) == [1]
    assert (pool.get_cached_block(b"one"), pool.get_cached_block(b"two")) == (None, 2)
    assert pool.block_hash(1) is None


def test_same_content_twice_survives_until_the_second_copy_goes() -> None:
    pool = BlockPool(5)
    pool.get_new_blocks(4)
    for block_id, digest in ((1, b"same"), (2, b"same"), (3, b"x"), (4, b"y")):
        pool.publish(block_id, digest)
    assert pool.get_cached_block(b"same") == 1
    assert pool.num_published == 4
    pool.free_blocks([1, 3, 2, 4])
    pool.get_new_blocks(1)
    assert pool.get_cached_block(b"same") == 2
    pool.get_new_blocks(2)
    assert pool.get_cached_block(b"same") is None
    assert pool.get_cached_block(b"y") == 4
    pool.check_integrity([[1], [3], [2]])


def test_touch_revives_and_counts() -> None:
    pool = BlockPool(3)
    pool.get_new_blocks(1)
    pool.publish(1, b"one")
    pool.free_blocks([1])
    assert pool.num_unreferenced([1]) == 1
    pool.touch([1])
    pool.touch([1])
    assert (pool.ref_cnt(1), pool.num_free, pool.num_unreferenced([1])) == (2, 1, 0)
    pool.free_blocks([1])
    assert pool.num_free == 1


def test_freeing_too_often_is_a_bug_and_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    with pytest.raises(InvariantError, match="block 2 freed 2x"):
        pool.free_blocks([1, 2, 2])
    pool.check_integrity([[1, 2]])


def test_publishing_twice_or_unheld_is_a_bug() -> None:
    pool = BlockPool(3)
    with pytest.raises(InvariantError):
        pool.publish(1, b"one")
    pool.get_new_blocks(1)
    pool.publish(1, b"one")
    with pytest.raises(InvariantError):
        pool.publish(1, b"two")


def test_unpublishing_all_keeps_the_order() -> None:
    pool = BlockPool(5)
    pool.get_new_blocks(3)
    pool.publish(1, b"one")
    pool.publish(2, b"two")
    pool.free_blocks([3, 2, 1])
    order = pool.free_order()
    pool.unpublish_all()
    assert pool.free_order() == order
    assert pool.num_published == 0
    assert pool.get_cached_block(b"one") is None
    pool.check_integrity([])


def test_the_checker_sees_a_table_that_disagrees() -> None:
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    pool.check_integrity([[1, 2]])
    for tables in ([[1]], [[1, 2], [2]], [[1, 2, 3]], []):
        with pytest.raises(InvariantError):
            pool.check_integrity(tables)


ACTIONS = st.tuples(st.sampled_from(["get", "free", "publish", "touch", "reset"]), st.integers(0, 5))


@given(st.lists(ACTIONS, min_size=20, max_size=60))
def test_books_agree_after_any_history(history: list[tuple[str, int]]) -> None:
    pool = BlockPool(6)
    tables: list[list[int]] = []
    for action, number in history:
        match action:
            case "get" if number <= pool.num_free:
                tables.append(pool.get_new_blocks(number))
            case "free" if tables:
                pool.free_blocks(tables.pop(number % len(tables))[::-1])
            case "publish":
                for block_id in {block_id for table in tables for block_id in table}:
                    if pool.block_hash(block_id) is None:
                        pool.publish(block_id, bytes([number]))
                        break
            case "touch":
                block_id = pool.get_cached_block(bytes([number])) or 0
                if block_id:
                    pool.touch([block_id])
                    tables.append([block_id])
            case "reset":
                pool.unpublish_all()
        pool.check_integrity(tables)
        assert pool.num_free + pool.num_held == 5


@pytest.mark.parametrize("num_found", [0, 1, 63, 64, 65, 128, 200])
def test_a_prefix_ends_at_the_first_digest_that_is_not_there(num_found: int) -> None:
    pool = BlockPool(300)
    digests = [b"%d" % index for index in range(200)]
    block_ids = pool.get_new_blocks(200)
    for index, (block_id, digest) in enumerate(zip(block_ids, digests, strict=True)):
        if index != num_found:
            pool.publish(block_id, digest)
    assert pool.get_cached_prefix(digests) == block_ids[:num_found]
    assert pool.get_cached_prefix(iter(digests[:num_found])) == block_ids[:num_found]


def test_of_several_with_one_content_the_first_is_found_until_it_goes() -> None:
    pool = BlockPool(5)
    first, second, third, other = pool.get_new_blocks(4)
    for block_id in (first, second, third):
        pool.publish(block_id, b"same")
    pool.publish(other, b"other")
    assert (pool.get_cached_block(b"same"), pool.num_published) == (first, 4)
    found = []
    for block_id in (second, first, third):  # evicted in the order in which they were freed
        pool.free_blocks([block_id])
        assert pool.get_new_blocks(1) == [block_id]
        pool.check_integrity([[first, second, third, other]])
        found.append(pool.get_cached_block(b"same"))
    assert found == [first, third, None]
    assert pool.num_published == 1
