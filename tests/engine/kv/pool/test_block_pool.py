"""Free order, references, eviction, refusals that change nothing, who is told of what, and the checker itself."""

from __future__ import annotations

import pytest

from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.wire.errors import InvariantError, LocalProtocolError


def test_asking_for_too_many_changes_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(LocalProtocolError, match="4 blocks requested, 3 free"):
        pool.get_new_blocks(4)
    assert pool.free_order() == [1, 2, 3]


def test_the_null_block_is_passed_over() -> None:
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    pool.publish([1, 2], [b"one", b"two"])
    pool.free_blocks([NULL_BLOCK_ID, 2, NULL_BLOCK_ID, 1, NULL_BLOCK_ID])
    assert pool.free_order() == [3, 2, 1]
    assert pool.num_unreferenced([NULL_BLOCK_ID, NULL_BLOCK_ID, 1, 2]) == 2
    pool.touch([NULL_BLOCK_ID, 1, NULL_BLOCK_ID, 2])
    assert (pool.free_order(), pool.ref_cnt(NULL_BLOCK_ID)) == ([3], 0)
    with pytest.raises(InvariantError):
        pool.publish([NULL_BLOCK_ID], [b"null"])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        pytest.param([1, 2, 2], "2: '2x, referenced 1x'", id="twice in one list"),
        pytest.param([2, 1, 4], "4: '1x, referenced 0x'", id="free and unpublished"),
        pytest.param([2, 1, 5], "5: '1x, referenced 0x'", id="free and published"),
        pytest.param([3, 3, 3, 1], "3: '3x, referenced 2x'", id="shared, too often"),
    ],
)
def test_freeing_too_often_is_a_bug_and_changes_nothing(wrong: list[int], text: str) -> None:
    pool = BlockPool(7)
    pool.get_new_blocks(5)
    pool.publish([1, 3, 5], [b"one", b"three", b"five"])
    pool.touch([3])
    pool.free_blocks([4, 5])
    order = pool.free_order()
    with pytest.raises(InvariantError, match=text):
        pool.free_blocks(wrong)
    assert pool.free_order() == order


@pytest.mark.parametrize("wrong", [[2, 3], [2, 4], [2, 5], [2, 1], [2, NULL_BLOCK_ID], [2, 2], [2]])
def test_publishing_twice_or_unheld_or_without_key_is_a_bug_and_changes_nothing(wrong: list[int]) -> None:
    pool = BlockPool(6)
    pool.get_new_blocks(4)
    pool.publish([1, 3], [b"one", b"three"])
    pool.free_blocks([4, 3])  # 5 and 4 are free without content, 3 with it
    with pytest.raises(InvariantError):
        pool.publish(wrong, [b"new", b"newer"])
    assert (pool.find(b"new"), pool.find(b"newer"), pool.num_published) == (None, None, 2)


def test_sharing_what_is_free_without_content_is_a_bug_and_changes_nothing() -> None:
    pool = BlockPool(5)
    pool.get_new_blocks(3)
    pool.publish([1, 2], [b"one", b"two"])
    pool.free_blocks([1])
    with pytest.raises(InvariantError, match="not all are published"):
        pool.touch([NULL_BLOCK_ID, 2, 1, 4])
