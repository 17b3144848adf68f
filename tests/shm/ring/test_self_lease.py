from __future__ import annotations

from typing import cast

import msgspec
import pytest

from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.ring.self_lease import give_back, take
from mmcached.shm.segment.layout import FIRST_COUNT_WORD
from mmcached.shm.segment.words import WordStore
from mmcached.wire.handle import Handle
from tests.shm.rings import Taking, attached, make_ring, put, reading

HANDLE = Handle("f" * 32, 1, slot=2, generation=5, offset=0, nbytes=10)
RETURNED, TAKEN = FIRST_COUNT_WORD + 4, FIRST_COUNT_WORD + 5


class Memory:
    """The words of an entry, a word store and a look, which note in what order they are used."""

    name = "a test's"

    def __init__(self, *, holds: bool = True, is_attached: bool = True) -> None:
        self.words = memoryview(bytearray(8 * (TAKEN + 1))).cast("Q")
        self.steps: list[str] = []
        self._answers = {"holds": holds, "is_attached": is_attached}

    def counts(self) -> tuple[int, int]:
        return self.words[TAKEN], self.words[RETURNED]

    def store_release(self, words: memoryview, index: int, value: int) -> None:
        self.steps.append("release")
        words[index] = value

    def load_fence(self) -> None:
        self.steps.append("load fence")

    def full_fence(self) -> None:
        self.steps.append(f"fence with {self.words[TAKEN]} taken")

    def holds(self, handle: Handle) -> bool:
        return self._answer("holds")

    def is_attached(self, reader_id: int, incarnation: int) -> bool:
        return self._answer("is_attached")

    def take(self) -> bool:
        store: WordStore = self
        return take(store, self.words, cast("Lookup", self), (0, 1), [Taking(HANDLE)])[0]

    def _answer(self, question: str) -> bool:
        self.steps.append(question)
        return self._answers[question]


def test_a_lease_is_counted_then_fenced_then_looked_at() -> None:
    memory = Memory()
    assert memory.take()
    assert memory.steps == ["fence with 1 taken", "holds", "is_attached"]
    give_back(memory, memory.words, HANDLE.slot)
    assert memory.steps[3:] == ["release"]
    assert memory.counts() == (1, 1)


def test_many_leases_are_all_counted_before_the_one_fence() -> None:
    memory = Memory()
    other = msgspec.structs.replace(HANDLE, slot=0)
    leases = [Taking(other), Taking(HANDLE), Taking(HANDLE)]
    assert take(memory, memory.words, cast("Lookup", memory), (0, 1), leases) == [True] * 3
    assert memory.steps == ["fence with 2 taken", "holds", "holds", "holds", "is_attached"]
    assert memory.words[FIRST_COUNT_WORD + 1] == 1


@pytest.mark.parametrize("missing", ["holds", "is_attached"])
def test_a_lease_that_does_not_hold_is_counted_too(missing: str) -> None:
    memory = Memory(**{missing: False})
    assert not memory.take()
    assert memory.counts() == (1, 0)


def test_what_one_reader_holds_another_takes_beside_it_also_when_nobody_finds_it() -> None:
    with make_ring(has_index=True) as ring, attached(ring) as first, attached(ring) as second, reading(ring) as reader:
        handle = put(ring, 100, value=3)
        assert first.take_leases([Taking(handle)], reader.look) == [True]
        ring.records.discard(handle)
        assert second.take_leases([Taking(handle)], reader.look) == [False]
        second.give_back(handle)
        assert second.take_beside(Taking(handle), reader.look)
        first.give_back(handle)
        view = reader.view(handle)
        for _ in range(2 * ring.announcement.num_slots):
            assert put(ring, 100, value=4).slot != handle.slot
            assert (view == 3).all()
        second.give_back(handle)
        others = [put(ring, 100, value=4) for _ in range(2 * ring.announcement.num_slots)]
        other = next(other for other in others if other.slot == handle.slot)
        assert not second.take_beside(Taking(handle), reader.look)
        assert other.generation > handle.generation


def test_nobody_takes_a_lease_who_is_not_attached() -> None:
    with make_ring(has_index=True) as ring, reading(ring) as reader:
        handle = put(ring, 100)
        with attached(ring) as entry:
            assert entry.take_leases([Taking(handle)], reader.look) == [True]
            entry.give_back(handle)
            ring.board.set_attached(entry.reader_id, 0)
            assert entry.take_leases([Taking(handle)], reader.look) == [False]
            entry.give_back(handle)
