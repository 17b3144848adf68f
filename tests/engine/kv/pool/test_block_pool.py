"""Free order, references, eviction, refusals that change nothing, who is told of what, and the checker itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    pool.check_integrity([[NULL_BLOCK_ID, 1, 2]])
    with pytest.raises(InvariantError):
        pool.publish([NULL_BLOCK_ID], [b"null"])


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


class LyingOrder(LruOrder):
    """Says that other blocks are free than those that are.

    Attributes:
        lie: makes what `order` returns of what it should return.
        num_hidden: by how much `len` is too small.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lie: Callable[[list[int]], list[int]] = lambda block_ids: block_ids
        self.num_hidden = 0

    def __len__(self) -> int:
        return super().__len__() - self.num_hidden

    def order(self) -> list[int]:
        return self.lie(super().order())


LIES: dict[str, Callable[[list[int]], list[int]]] = {
    "a free block is lost": lambda block_ids: block_ids[1:],
    "one is free twice": lambda block_ids: [*block_ids, *block_ids[:1]],
    "one is free in the place of another": lambda block_ids: [block_ids[0], *block_ids[:-1]],
    "a held one is free": lambda block_ids: [*block_ids[1:], 1],
    "one without content is among the published": lambda block_ids: [*block_ids[1:], 4],
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_the_checker_sees_free_blocks_that_are_not(lie: Callable[[list[int]], list[int]]) -> None:
    order = LyingOrder()
    pool = BlockPool(8, order)
    pool.get_new_blocks(6)
    pool.publish([1, 2, 3, 6], [b"one", b"two", b"two", b"six"])
    pool.free_blocks([4, 2, 6])
    pool.check_integrity([[1, 3], [5]])
    order.lie = lie
    with pytest.raises(InvariantError):
        pool.check_integrity([[1, 3], [5]])
    order.lie, order.num_hidden = list, 1
    with pytest.raises(InvariantError, match="by the policy's count"):
        pool.check_integrity([[1, 3], [5]])
