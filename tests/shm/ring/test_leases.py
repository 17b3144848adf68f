from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.shm.ring.leases import COUNTS_PER_LOOK, FEW_READERS, LeaseTable, Overrun
from mmcached.shm.segment.layout import MAX_COUNT
from tests.house.drawing import examples
from tests.shm.integrity import check_leases

ROWS, SLOTS = 3, 4


Cells = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]


@pytest.fixture
def cells() -> Cells:
    """What readers have returned; `cells.base` has what they have taken beside it."""
    return new_cells(ROWS, SLOTS)


def new_cells(num_readers: int, num_slots: int) -> Cells:
    return np.zeros((num_readers, num_slots, 2), np.uint64)[:, :, 0]


def taken_beside(cells: Cells) -> Cells:
    assert cells.base is not None
    return cells.base[:, :, 1]


def take(cells: Cells, reader_id: int, slot: int) -> None:
    taken_beside(cells)[reader_id, slot] += np.uint64(1)


def table_of(cells: Cells) -> LeaseTable:
    assert cells.base is not None
    return LeaseTable(cells.base)


def test_what_came_back_before_an_attach_counts_as_nothing(cells: Cells) -> None:
    cells[1] = taken_beside(cells)[1] = [7, 0, 2**40, 1]
    table = table_of(cells)
    assert table.attach(1, incarnation=5)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [False] * SLOTS
    take(cells, 1, 2)
    assert table.is_pinned(2)
    cells[1, 2] += np.uint64(1)
    assert not table.is_pinned(2)


def test_an_overrun_fences_the_reader_until_it_is_void(cells: Cells) -> None:
    table = table_of(cells)
    table.attach(0, incarnation=5)
    table.attach(1, incarnation=6)
    take(cells, 0, 0)
    take(cells, 0, 1)
    assert table.fence_overruns() == {}
    cells[0, 3] += np.uint64(1)  # never taken
    assert table.fence_overruns() == {0: Overrun(3, 0, 1)}
    assert table.fence_overruns() == {}
    # Its word counts for nothing now: what it held stays pinned whatever its cells say.
    cells[0, 0] += np.uint64(1)
    cells[0, 1] += np.uint64(1)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [True, True, False, False]
    assert table.pinned_slots() == {0, 1}
    assert table.num_leases() == 0
    take(cells, 1, 0)
    table.void(0)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [True, False, False, False]


def test_more_leases_than_there_can_be_are_an_overrun_and_no_figure(cells: Cells) -> None:
    table = table_of(cells)
    for reader_id in (0, 1):
        table.attach(reader_id, incarnation=5 + reader_id)
        take(cells, reader_id, 1)
    assert table.fence_overruns() == {}
    for reader_id in (0, 1):
        taken_beside(cells)[reader_id, 1] += np.uint64(MAX_COUNT)
    assert 0 < table.num_leases() < 1 << 40, "a figure fits into a word of the stats page"
    assert list(table.fence_overruns()) == [0, 1]
    assert (table.pinned_slots(), table.num_leases()) == ({1}, 0)


@pytest.mark.parametrize("scribble", [0, 2**64 - 1])
def test_whatever_is_written_over_an_entry_its_reader_holds_what_it_held(cells: Cells, scribble: int) -> None:
    table = table_of(cells)
    table.attach(0, incarnation=5)
    for slot in (0, 1, 2):
        take(cells, 0, slot)
    cells[0, :2] += np.uint64(1)
    assert table.fence_overruns() == {}
    take(cells, 0, 1)
    assert table.fence_overruns() == {}
    cells[0] = scribble
    assert list(table.fence_overruns()) == [0]
    assert table.pinned_slots() == {1, 2}
    cells[0] = [1, 2, 1, 0]  # as if all had come back
    assert table.pinned_slots() == {1, 2}
    table.void(0)
    assert table.pinned_slots() == set()
    cells[0] = 2**64 - 1
    assert not table.attach(0, incarnation=7), "these counts are impossible"
    assert table.incarnations() == {}


def test_of_many_readers_some_are_looked_at_each_time_and_all_in_the_end() -> None:
    per_look = 16
    cells = new_cells(3 * per_look, COUNTS_PER_LOOK // per_look)
    table = table_of(cells)
    for reader_id in range(len(cells)):
        table.attach(reader_id, incarnation=reader_id + 1)
    cells[:, 0] = 1
    found = [set(table.fence_overruns()) for _ in range(4)]
    assert [len(readers) for readers in found] == [per_look] * 3 + [0]
    assert set().union(*found) == set(range(len(cells)))


def test_of_a_large_table_a_part_is_looked_at_each_time_and_all_in_the_end() -> None:
    num_slots = 2 * COUNTS_PER_LOOK + 5
    cells = new_cells(2, num_slots)
    table = table_of(cells)
    for reader_id in range(2):
        table.attach(reader_id, incarnation=reader_id + 1)
    take(cells, 1, 7)
    cells[0, COUNTS_PER_LOOK + 1] = cells[1, num_slots - 1] = 1
    found = [table.fence_overruns() for _ in range(6)]
    expected = [{0: Overrun(COUNTS_PER_LOOK + 1, 0, 1)}, {1: Overrun(num_slots - 1, 0, 1)}]
    assert [each for each in found if each] == expected
    assert found[0] == {}, "not all at once"
    assert table.pinned_slots() == {7}, "as was last believed"


def test_a_reader_that_has_given_back_more_than_it_took_is_not_attached(cells: Cells) -> None:
    cells[0, 2] = 1
    table = table_of(cells)
    assert not table.attach(0, incarnation=5)
    assert table.incarnations() == {}


@pytest.mark.parametrize("num_readers", [FEW_READERS, FEW_READERS + 1])
def test_of_many_readers_any_one_pins(num_readers: int) -> None:
    cells = new_cells(num_readers, SLOTS)
    table = table_of(cells)
    for reader_id in range(num_readers):
        table.attach(reader_id, incarnation=reader_id + 1)
    assert not any(table.is_pinned(slot) for slot in range(SLOTS))
    take(cells, 0, 0)
    taken_beside(cells)[num_readers - 1, 1] += np.uint64(1)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [True, True, False, False]
    assert table.fence_overruns() == {}
    cells[1, 2] += np.uint64(1)  # never given: this one is fenced, and holds nothing
    assert list(table.fence_overruns()) == [1]
    cells[0, 0] += np.uint64(1)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [False, True, False, False]


def test_a_successor_counts_on(cells: Cells) -> None:
    assert cells.base is not None
    former = LeaseTable(cells.base)
    former.attach(0, incarnation=5)
    take(cells, 0, 1)
    take(cells, 0, 3)
    table = LeaseTable(cells.base)
    assert table.adopt(0, incarnation=5, is_fenced=False, may_hold=tuple)
    assert table.pinned_slots() == {1, 3}


class LeaseModel(RuleBasedStateMachine):
    """The counts of readers against lists: a slot is pinned exactly while a lease of it is out."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = new_cells(ROWS, SLOTS)
        self.table = table_of(self.cells)
        self.held: dict[int, list[int]] = {}
        self.incarnation = 0

    @rule(reader_id=st.integers(0, ROWS - 1))
    def register(self, reader_id: int) -> None:
        """A first or a new incarnation, which gives back what the former one had; no count falls."""
        self.incarnation += 1
        self.cells[reader_id] = taken_beside(self.cells)[reader_id]
        self.table.attach(reader_id, self.incarnation)
        self.held[reader_id] = []

    @precondition(lambda self: self.held)
    @rule(data=st.data(), slot=st.integers(0, SLOTS - 1))
    def take(self, data: st.DataObject, slot: int) -> None:
        reader_id = data.draw(st.sampled_from(sorted(self.held)))
        take(self.cells, reader_id, slot)
        self.held[reader_id].append(slot)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        reader_id = data.draw(st.sampled_from(sorted(reader_id for reader_id, held in self.held.items() if held)))
        slot = data.draw(st.sampled_from(sorted(self.held[reader_id])))
        self.held[reader_id].remove(slot)
        self.cells[reader_id, slot] += np.uint64(1)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        reader_id = data.draw(st.sampled_from(sorted(self.held)))
        self.table.void(reader_id)
        del self.held[reader_id]

    @invariant()
    def agrees(self) -> None:
        leased = [slot for held in self.held.values() for slot in held]
        assert {slot for slot in range(SLOTS) if self.table.is_pinned(slot)} == set(leased)
        assert self.table.pinned_slots() == set(leased)
        assert self.table.num_leases() == len(leased)
        assert sorted(self.table.incarnations()) == sorted(self.held)
        assert self.table.fence_overruns() == {}
        check_leases(self.table)


TestLeaseModel = LeaseModel.TestCase
TestLeaseModel.settings = settings(max_examples=examples(80), stateful_step_count=50)
