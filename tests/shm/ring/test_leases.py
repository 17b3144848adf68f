from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mmcached.shm.ring.received import ReceivedLeases

from mmcached.shm.ring.leases import COUNTS_PER_LOOK, FEW_READERS, LeaseTable, Overrun
from mmcached.shm.segment.layout import MAX_COUNT
from mmcached.wire.errors import InvariantError, LeaseRefused, LocalProtocolError, PeerGone, RemoteProtocolError
from mmcached.wire.handle import LeaseId
from mmcached.wire.messages.parts import Barrier
from tests.house.drawing import examples

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


def table_of(cells: Cells, *, quota_bytes: int | None = None) -> LeaseTable:
    assert cells.base is not None
    return LeaseTable(cells.base, np.zeros(cells.shape, np.uint64), quota_bytes=quota_bytes)


def test_what_the_cells_hold_at_attach_counts_as_granted(cells: Cells) -> None:
    cells[1] = [7, 0, 2**40, 1]
    table = table_of(cells)
    table.attach(1, incarnation=5)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [False] * SLOTS
    assert table.grant(1, 2) == LeaseId(5, 1, slot=2)
    assert table.is_pinned(2)
    cells[1, 2] += np.uint64(1)
    assert not table.is_pinned(2)
    table.check_integrity()


def test_undo_restores_count_and_seq_and_only_the_last(cells: Cells) -> None:
    table = table_of(cells)
    table.attach(0, incarnation=5)
    first = table.grant(0, 1)
    second = table.grant(0, 1)
    with pytest.raises(LocalProtocolError):
        table.undo(0, 1, first)
    assert table.num_leases() == 2
    table.undo(0, 1, second)
    assert table.grant(0, 1) == second
    table.undo(0, 1, second)
    table.undo(0, 1, first)
    assert not table.is_pinned(1)
    assert table.num_leases() == 0
    table.check_integrity()


def test_undo_after_the_reader_was_voided_or_taken_anew_changes_nothing(cells: Cells) -> None:
    table = table_of(cells)
    table.attach(0, incarnation=5)
    lease = table.grant(0, 1)
    table.void(0)
    table.undo(0, 1, lease)
    table.attach(0, incarnation=6)
    kept = table.grant(0, 1)
    table.undo(0, 1, lease)
    assert table.is_pinned(1)
    assert kept == LeaseId(6, 1, slot=1)


def test_an_overrun_fences_the_reader_until_it_is_void(cells: Cells) -> None:
    table = table_of(cells)
    table.attach(0, incarnation=5)
    table.attach(1, incarnation=6)
    table.grant(0, 0)
    table.grant(0, 1)
    cells[0, 3] += np.uint64(1)  # never granted
    with pytest.raises(PeerGone):
        table.grant(0, 3)  # would make the counts equal
    with pytest.raises(InvariantError):
        table.check_integrity()
    assert table.fence_overruns() == {0: Overrun(3, 0, 1)}
    assert table.fence_overruns() == {}
    with pytest.raises(PeerGone):
        table.grant(0, 2)
    # Its word counts for nothing now: what it held stays pinned whatever its cells say.
    cells[0, 0] += np.uint64(1)
    cells[0, 1] += np.uint64(1)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [True, True, False, False]
    assert table.pinned_slots() == {0, 1}
    assert table.num_leases() == 0
    assert table.grant(1, 0).incarnation == 6
    table.void(0)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [True, False, False, False]
    table.check_integrity()


def test_more_leases_than_there_can_be_are_an_overrun_and_no_figure(cells: Cells) -> None:
    table = table_of(cells)
    for reader_id in (0, 1):
        table.attach(reader_id, incarnation=5 + reader_id)
        table.grant(reader_id, 1)
        taken_beside(cells)[reader_id, 1] += np.uint64(MAX_COUNT)
    assert 0 < table.num_leases() < 1 << 40, "a figure fits into a word of the stats page"
    assert list(table.fence_overruns()) == [0, 1]
    assert (table.pinned_slots(), table.num_leases()) == ({1}, 0)


@pytest.mark.parametrize("scribble", [0, 2**64 - 1])
def test_whatever_is_written_over_an_entry_its_reader_holds_what_it_held(cells: Cells, scribble: int) -> None:
    table = table_of(cells)
    table.attach(0, incarnation=5)
    for slot in (0, 1, 2):
        table.grant(0, slot)
    cells[0, :2] += np.uint64(1)
    assert table.fence_overruns() == {}
    table.grant(0, 1)
    cells[0] = scribble
    assert list(table.fence_overruns()) == [0]
    assert table.pinned_slots() == {1, 2}
    cells[0] = [1, 2, 1, 0]  # as if all had come back
    assert table.pinned_slots() == {1, 2}
    with pytest.raises(PeerGone):
        table.grant(0, 3)
    table.void(0)
    assert table.pinned_slots() == set()
    cells[0] = 2**64 - 1
    assert not table.attach(0, incarnation=7), "one lease more would be none"


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
    table.grant(1, 7)
    cells[0, COUNTS_PER_LOOK + 1] = cells[1, num_slots - 1] = 1
    found = [table.fence_overruns() for _ in range(6)]
    expected = [{0: Overrun(COUNTS_PER_LOOK + 1, 0, 1)}, {1: Overrun(num_slots - 1, 0, 1)}]
    assert [each for each in found if each] == expected
    assert found[0] == {}, "not all at once"
    assert table.pinned_slots() == {7}, "as was last believed"


def test_what_a_reader_takes_by_itself_counts_as_what_was_granted(cells: Cells) -> None:
    taken = taken_beside(cells)
    cells[0], taken[0] = [3, 0, 9, 1], [1, 1, 0, 1]  # a former life's
    table = table_of(cells)
    table.attach(0, incarnation=5)
    assert table.pinned_slots() == set()
    table.grant(0, 2)
    taken[0, 1] += np.uint64(2)
    taken[0, 2] += np.uint64(1)
    assert table.pinned_slots() == {1, 2}
    assert table.num_leases() == 4
    cells[0, 1] += np.uint64(1)
    cells[0, 2] += np.uint64(1)
    assert table.pinned_slots() == {1, 2}
    cells[0, 1] += np.uint64(1)
    cells[0, 2] += np.uint64(1)
    assert table.pinned_slots() == set()
    table.check_integrity()


def test_what_falls_is_an_overrun(cells: Cells) -> None:
    taken = taken_beside(cells)
    table = table_of(cells)
    table.attach(0, incarnation=5)
    taken[0, 1] = 5
    assert table.fence_overruns() == {}
    taken[0, 1] = 4
    assert list(table.fence_overruns()) == [0]
    assert table.pinned_slots() == {1}


@pytest.mark.parametrize("num_readers", [FEW_READERS, FEW_READERS + 1])
def test_of_many_readers_any_one_pins(num_readers: int) -> None:
    cells = new_cells(num_readers, SLOTS)
    table = table_of(cells)
    for reader_id in range(num_readers):
        table.attach(reader_id, incarnation=reader_id + 1)
    assert not any(table.is_pinned(slot) for slot in range(SLOTS))
    table.grant(0, 0)
    taken_beside(cells)[num_readers - 1, 1] += np.uint64(1)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [True, True, False, False]
    cells[1, 2] += np.uint64(1)  # never given: this one is fenced, and holds nothing
    assert list(table.fence_overruns()) == [1]
    cells[0, 0] += np.uint64(1)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [False, True, False, False]


def test_a_successor_counts_on_what_was_granted_before(cells: Cells) -> None:
    assert cells.base is not None
    granted = np.zeros(cells.shape, np.uint64)
    former = LeaseTable(cells.base, granted)
    former.attach(0, incarnation=5)
    former.grant(0, 1)
    taken_beside(cells)[0, 3] += np.uint64(1)
    table = LeaseTable(cells.base, granted)
    assert table.adopt(0, incarnation=5, is_fenced=False, may_hold=tuple)
    assert table.pinned_slots() == {1, 3}
    table.check_integrity()


def test_a_barrier_stops_granting_until_its_answer(cells: Cells) -> None:
    table = table_of(cells)
    table.attach(0, incarnation=5)
    table.attach(1, incarnation=6)
    assert table.open_barrier(0) is None, "nothing is out"
    assert table.open_barrier(2) is None, "nobody is there"
    table.grant(0, 1)
    table.grant(0, 1)
    barrier = table.open_barrier(0)
    assert barrier is not None
    assert (barrier.incarnation, barrier.last_seq, barrier.slots) == (5, 2, (1,))
    with pytest.raises(LeaseRefused):
        table.grant(0, 2)
    assert table.grant(1, 1).seq == 1, "other readers go on"
    assert table.reconcile(0, 5, barrier.barrier_id, {1: 1}) == 1
    assert table.num_leases() == 2
    assert table.grant(0, 2).seq == 3, "a lost number is not given again"
    table.check_integrity()


def test_only_the_answer_to_the_last_barrier_counts(cells: Cells) -> None:
    table = table_of(cells)
    table.attach(0, incarnation=5)
    table.grant(0, 0)
    first = table.open_barrier(0)
    assert first is not None
    assert table.reconcile(0, 5, first.barrier_id, {0: 1}) == 0
    table.grant(0, 1)
    second = table.open_barrier(0)
    assert second is not None
    assert table.reconcile(0, 5, first.barrier_id, {0: 0}) is None
    assert table.reconcile(0, 4, second.barrier_id, {0: 0, 1: 0}) is None
    assert table.reconcile(1, 5, second.barrier_id, {0: 0, 1: 0}) is None
    assert table.num_leases() == 2
    assert table.reconcile(0, 5, second.barrier_id, {0: 1, 1: 0}) == 1
    assert table.reconcile(0, 5, second.barrier_id, {0: 0, 1: 0}) is None
    assert table.pinned_slots() == {0}


@pytest.mark.parametrize("received", [{}, {0: 1}, {0: 1, 1: 0, 2: 0}, {0: 2, 1: 0}, {0: 0, 1: 0}], ids=str)
def test_an_answer_that_cannot_be_is_refused_and_the_barrier_stays(cells: Cells, received: dict[int, int]) -> None:
    """Too few slots, too many, more than was granted, less than came back."""
    table = table_of(cells)
    table.attach(0, incarnation=5)
    table.grant(0, 0)
    table.grant(0, 1)
    barrier = table.open_barrier(0)
    assert barrier is not None
    cells[0, 0] += np.uint64(1)
    with pytest.raises(RemoteProtocolError):
        table.reconcile(0, 5, barrier.barrier_id, received)
    assert table.num_leases() == 1
    with pytest.raises(LeaseRefused):
        table.grant(0, 2)
    assert table.reconcile(0, 5, barrier.barrier_id, {0: 1, 1: 0}) == 1
    table.check_integrity()


def test_a_quota_counts_each_chunk_once_and_what_came_back_not_at_all(cells: Cells) -> None:
    table = table_of(cells, quota_bytes=100)
    table.attach(0, incarnation=5)
    table.attach(1, incarnation=6)
    table.grant(0, 0, 60)
    table.grant(0, 0, 60)
    with pytest.raises(LeaseRefused) as caught:
        table.grant(0, 1, 41)
    assert "60" in caught.value.details["reason"]  # type: ignore[operator]
    assert table.num_leases() == 2
    table.grant(0, 1, 40)
    table.grant(1, 2, 100)
    with pytest.raises(LeaseRefused):
        table.grant(0, 2, 1)
    cells[0, 0] += np.uint64(2)
    table.grant(0, 2, 60)
    with pytest.raises(LeaseRefused):
        table.grant(0, 0, 1)
    cells[0, 1] += np.uint64(1)
    table.grant(0, 1, 30)  # the slot has another, smaller chunk by now
    table.grant(0, 0, 10)
    table.check_integrity()


@dataclass
class Reader:
    """One incarnation, the queue to it, and what became of each lease."""

    received: ReceivedLeases
    queue: list[tuple[int, LeaseId] | Barrier] = field(default_factory=list)
    answers: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    is_barred: bool = False
    is_stopped: bool = False

    def leased(self) -> list[int]:
        queued = [entry[0] for entry in self.queue if not isinstance(entry, Barrier)]
        return [*queued, *self.held, *self.lost]


class LeaseModel(RuleBasedStateMachine):
    """Both ends and the queue between them, against lists: a slot is pinned exactly while a lease of it is out."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = new_cells(ROWS, SLOTS)
        self.table = table_of(self.cells)
        self.readers: dict[int, Reader] = {}
        self.incarnation = 0

    @rule(reader_id=st.integers(0, ROWS - 1))
    def register(self, reader_id: int) -> None:
        """A first or a new incarnation; nobody zeroes the cells."""
        self.incarnation += 1
        self.table.attach(reader_id, self.incarnation)
        self.readers[reader_id] = Reader(ReceivedLeases(self.incarnation))

    @rule(reader_id=st.integers(0, ROWS - 1), slot=st.integers(0, SLOTS - 1), is_sent=st.booleans())
    def grant(self, reader_id: int, slot: int, is_sent: bool) -> None:
        reader = self.readers.get(reader_id)
        if reader is None or reader.is_stopped or reader.is_barred:
            with pytest.raises(LeaseRefused if reader and not reader.is_stopped else PeerGone):
                self.table.grant(reader_id, slot)
            return
        lease = self.table.grant(reader_id, slot)
        if is_sent:
            reader.queue.append((slot, lease))
        else:
            self.table.undo(reader_id, slot, lease)

    @precondition(lambda self: any(reader.queue for reader in self.readers.values()))
    @rule(data=st.data(), is_lost=st.booleans())
    def deliver(self, data: st.DataObject, is_lost: bool) -> None:
        reader = data.draw(st.sampled_from([each for each in self.readers.values() if each.queue]))
        match reader.queue.pop(0):
            case Barrier() as barrier if not is_lost:
                counts = reader.received.answer(barrier.incarnation, barrier.last_seq, barrier.slots)
                assert counts is not None
                reader.answers.append((barrier.barrier_id, counts))
            case (slot, lease) if is_lost:
                reader.lost.append(slot)
            case (slot, lease):
                assert reader.received.has_gap_before(lease) == (lease.seq != reader.received.last_seq + 1)
                assert reader.received.receive(slot, lease)
                assert not reader.received.receive(slot, lease), "it came twice"
                reader.held.append(slot)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        reader_id = data.draw(st.sampled_from(sorted(self.readers)))
        reader = self.readers[reader_id]
        barrier = self.table.open_barrier(reader_id)
        assert (barrier is not None) == (not reader.is_stopped and (reader.is_barred or bool(reader.leased())))
        if barrier is not None:
            reader.queue.append(barrier)
            reader.is_barred = True

    @precondition(lambda self: any(reader.answers for reader in self.readers.values()))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """Answers may come late, but in order."""
        reader_id = data.draw(
            st.sampled_from(sorted(reader_id for reader_id, reader in self.readers.items() if reader.answers))
        )
        reader = self.readers[reader_id]
        barrier_id, counts = reader.answers.pop(0)
        lost = self.table.reconcile(reader_id, reader.received.incarnation, barrier_id, counts)
        if lost is not None:
            assert lost == len(reader.lost)
            reader.lost.clear()
            reader.is_barred = False

    @precondition(lambda self: any(reader.held for reader in self.readers.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        reader_id = data.draw(
            st.sampled_from(sorted(reader_id for reader_id, reader in self.readers.items() if reader.held))
        )
        slot = data.draw(st.sampled_from(sorted(self.readers[reader_id].held)))
        self.readers[reader_id].held.remove(slot)
        self.cells[reader_id, slot] += np.uint64(1)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), is_whole=st.booleans())
    def die(self, data: st.DataObject, is_whole: bool) -> None:
        reader_id = data.draw(st.sampled_from(sorted(self.readers)))
        if is_whole:
            self.table.void(reader_id)
            del self.readers[reader_id]
        else:
            self.table.stop(reader_id)
            self.readers[reader_id].is_stopped = True

    @invariant()
    def agrees(self) -> None:
        leased = [slot for reader in self.readers.values() for slot in reader.leased()]
        assert {slot for slot in range(SLOTS) if self.table.is_pinned(slot)} == set(leased)
        assert self.table.pinned_slots() == set(leased)
        assert self.table.num_leases() == len(leased)
        assert sorted(self.table.incarnations()) == sorted(self.readers)
        assert self.table.grantable_readers() == sorted(
            reader_id for reader_id, each in self.readers.items() if not each.is_stopped
        )
        assert self.table.fence_overruns() == {}
        self.table.check_integrity()


TestLeaseModel = LeaseModel.TestCase
TestLeaseModel.settings = settings(max_examples=examples(80), stateful_step_count=50)
