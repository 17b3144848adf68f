"""Free order, references, eviction, refusals that change nothing, who is told of what, and the checker itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.pool.eviction import LruOrder
from mmcached.wire.errors import InvariantError, LocalProtocolError


class Listener(LruOrder):
    """Policy, observer and log in one; notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, list[int], list[bytes]]] = []

    @property
    def observer(self) -> Listener:  # type: ignore[override]
        return self

    def remove(self, block_ids: Sequence[int]) -> None:
        self.heard.append(("remove", list(block_ids), []))
        super().remove(block_ids)

    def take(self, num_blocks: int) -> list[int]:
        taken = super().take(num_blocks)
        self.heard.append(("take", taken, []))
        return taken

    def stored(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> None:
        self.heard.append(("stored", list(block_ids), list(keys)))

    def hit(self, block_ids: Sequence[int]) -> None:
        self.heard.append(("hit", list(block_ids), []))

    def forgotten(self, keys: Sequence[bytes]) -> None:
        self.heard.append(("forgotten", [], list(keys)))

    def removed(self, keys: list[bytes]) -> None:
        self.heard.append(("removed", [], keys))

    def cleared(self) -> None:
        self.heard.append(("cleared", [], []))

    def take_heard(self) -> list[tuple[str, list[int], list[bytes]]]:
        heard, self.heard = self.heard, []
        return heard


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
    pool.publish([1, 2], [b"one", b"two"])
    pool.free_blocks([5, 4, 2, 1])
    assert pool.free_order() == [5, 4, 6, 2, 1]
    pool.free_blocks([3])
    assert pool.free_order() == [3, 5, 4, 6, 2, 1]


def test_unpublished_blocks_between_published_ones_come_back_first_too() -> None:
    pool = BlockPool(6)
    pool.get_new_blocks(5)
    pool.publish([1, 3, 5], [b"one", b"three", b"five"])
    pool.free_blocks([1, 2, 3, 4, 5])
    assert pool.free_order() == [2, 4, 1, 3, 5]


def test_reusable_after_a_complete_drain() -> None:
    pool = BlockPool(4)
    for _ in range(3):
        pool.free_blocks(pool.get_new_blocks(3))
    assert sorted(pool.free_order()) == [1, 2, 3]


def test_eviction_takes_the_longest_free() -> None:
    pool = BlockPool(4)
    pool.get_new_blocks(3)
    pool.publish([1, 2, 3], [b"one", b"two", b"three"])
    pool.free_blocks([2])
    pool.free_blocks([1])
    pool.touch([2])  # used again, so it is the younger of the two afterwards
    pool.free_blocks([2])
    assert pool.get_new_blocks(1) == [1]
    assert (pool.find(b"one"), pool.find(b"two")) == (None, 2)
    assert pool.block_key(1) is None


def test_touch_revives_and_counts() -> None:
    pool = BlockPool(3)
    pool.get_new_blocks(1)
    pool.publish([1], [b"one"])
    pool.free_blocks([1])
    assert pool.num_unreferenced([1]) == 1
    pool.touch([1])
    pool.touch([1])
    assert (pool.ref_cnt(1), pool.num_free, pool.num_unreferenced([1])) == (2, 1, 0)
    pool.free_blocks([1])
    assert pool.num_free == 1


def test_the_null_block_is_passed_over() -> None:
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    pool.publish([1, 2], [b"one", b"two"])
    pool.free_blocks([NULL_BLOCK_ID, 2, NULL_BLOCK_ID, 1, NULL_BLOCK_ID])
    assert pool.free_order() == [3, 2, 1]
    assert pool.num_unreferenced([NULL_BLOCK_ID, NULL_BLOCK_ID, 1, 2]) == 2
    pool.touch([NULL_BLOCK_ID, 1, NULL_BLOCK_ID, 2])
    assert (pool.free_order(), pool.ref_cnt(NULL_BLOCK_ID)) == ([3], 0)
    pool.check_integrity([[NULL_BLOCK_ID, 1, 2]])
    with pytest.raises(InvariantError):
        pool.publish([NULL_BLOCK_ID], [b"null"])


def test_unpublishing_all_keeps_the_order() -> None:
    pool = BlockPool(5)
    pool.get_new_blocks(3)
    pool.publish([1, 2], [b"one", b"two"])
    pool.free_blocks([3, 2])
    order = pool.free_order()
    assert order == [3, 4, 2]
    pool.unpublish_all()
    assert pool.free_order() == order
    assert (pool.num_published, pool.find(b"one")) == (0, None)
    pool.free_blocks([1])  # was published when all was forgotten: a plain block now
    assert pool.free_order() == [1, *order]
    pool.check_integrity([])


def test_the_log_hears_what_is_gone_and_the_observer_what_happens() -> None:
    listener = Listener()
    pool = BlockPool(5, listener, log=listener)
    pool.get_new_blocks(4)
    assert list(pool.publish([1, 2, 3], [b"one", b"same", b"same"])) == [2]
    assert listener.take_heard() == [("stored", [1, 2, 3], [b"one", b"same", b"same"])]
    pool.touch([NULL_BLOCK_ID, 1, 4])  # 4 is shared before it is published
    assert listener.take_heard() == [("hit", [1], [])]
    pool.free_blocks([4, 4, 3, 2, 1, 1])
    pool.touch([1])
    pool.touch([NULL_BLOCK_ID])
    assert listener.take_heard() == [("remove", [1], []), ("hit", [1], [])]
    assert pool.get_new_blocks(2) == [4, 3]
    assert listener.take_heard() == [("take", [3], [])], "the same content is in block 2"
    assert pool.get_new_blocks(1) == [2]
    assert listener.take_heard() == [("take", [2], []), ("forgotten", [], [b"same"]), ("removed", [], [b"same"])]
    pool.unpublish_all()
    assert listener.take_heard() == [("cleared", [], [])]


def test_content_evicted_with_all_its_copies_is_removed_once() -> None:
    listener = Listener()
    pool = BlockPool(4, log=listener)
    pool.get_new_blocks(3)
    pool.publish([1, 2, 3], [b"same", b"other", b"same"])
    pool.free_blocks([1, 2, 3])
    pool.get_new_blocks(3)
    assert listener.take_heard() == [("removed", [], [b"same", b"other"])]


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
    pool.check_integrity([[1, 2, 3], [3]])


@pytest.mark.parametrize("wrong", [[2, 3], [2, 4], [2, 5], [2, 1], [2, NULL_BLOCK_ID], [2, 2], [2]])
def test_publishing_twice_or_unheld_or_without_key_is_a_bug_and_changes_nothing(wrong: list[int]) -> None:
    pool = BlockPool(6)
    pool.get_new_blocks(4)
    pool.publish([1, 3], [b"one", b"three"])
    pool.free_blocks([4, 3])  # 5 and 4 are free without content, 3 with it
    with pytest.raises(InvariantError):
        pool.publish(wrong, [b"new", b"newer"])
    assert (pool.find(b"new"), pool.find(b"newer"), pool.num_published) == (None, None, 2)
    pool.check_integrity([[1, 2]])


def test_sharing_what_is_free_without_content_is_a_bug_and_changes_nothing() -> None:
    pool = BlockPool(5)
    pool.get_new_blocks(3)
    pool.publish([1, 2], [b"one", b"two"])
    pool.free_blocks([1])
    with pytest.raises(InvariantError, match="not all are published"):
        pool.touch([NULL_BLOCK_ID, 2, 1, 4])
    pool.check_integrity([[2, 3]])


def test_the_checker_sees_a_table_that_disagrees() -> None:
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    pool.check_integrity([[1, 2]])
    for tables in ([[1]], [[1, 2], [2]], [[1, 2, 3]], []):
        with pytest.raises(InvariantError):
            pool.check_integrity(tables)


def test_the_checker_sees_each_book_that_is_wrong() -> None:
    def broken_pool() -> BlockPool:
        pool = BlockPool(7)
        pool.get_new_blocks(5)
        pool.publish([1, 2, 3], [b"one", b"two", b"two"])
        pool.free_blocks([4, 2])
        pool.check_integrity([[1, 3], [5]])
        return pool

    def lose_a_free_block(pool: BlockPool) -> None:
        pool._free_unpublished.pop()

    def free_a_block_twice(pool: BlockPool) -> None:
        pool._free_unpublished.append(pool._free_unpublished[0])
        pool._num_free += 1

    def free_a_held_block(pool: BlockPool) -> None:
        pool._free_unpublished.append(5)
        pool._num_free += 1

    def miscount_the_free(pool: BlockPool) -> None:
        pool._num_free -= 1

    def swap_the_tiers(pool: BlockPool) -> None:
        pool._free_unpublished[-1] = 2
        pool._free_published.clear()
        pool._free_published.add([4])

    def publish_the_null_block(pool: BlockPool) -> None:
        pool._published.key_of[NULL_BLOCK_ID] = b"null"
        pool._published._first[b"null"] = NULL_BLOCK_ID

    def forget_a_key(pool: BlockPool) -> None:
        pool._published.key_of[1] = None

    for breaking in (
        lose_a_free_block,
        free_a_block_twice,
        free_a_held_block,
        miscount_the_free,
        swap_the_tiers,
        publish_the_null_block,
        forget_a_key,
    ):
        pool = broken_pool()
        breaking(pool)
        with pytest.raises(InvariantError):
            pool.check_integrity([[1, 3], [5]])
