from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.shm.leases import LeaseTable, Overrun
from mmcached.wire.errors import InvariantError, LocalProtocolError, PeerGone
from mmcached.wire.handle import LeaseId

ROWS, SLOTS = 3, 4


@pytest.fixture
def cells() -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.zeros((ROWS, SLOTS), np.uint64)


Cells = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]


def test_what_the_cells_hold_at_attach_counts_as_granted(cells: Cells) -> None:
    cells[1] = [7, 0, 2**40, 1]
    table = LeaseTable(cells)
    table.attach(1, nonce=5)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [False] * SLOTS
    assert table.grant(1, 2) == LeaseId(5, 1)
    assert table.is_pinned(2)
    cells[1, 2] += np.uint64(1)
    assert not table.is_pinned(2)
    table.check_integrity()


def test_undo_restores_count_and_seq_and_only_the_last(cells: Cells) -> None:
    table = LeaseTable(cells)
    table.attach(0, nonce=5)
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


def test_undo_after_the_row_was_voided_or_taken_anew_changes_nothing(cells: Cells) -> None:
    table = LeaseTable(cells)
    table.attach(0, nonce=5)
    lease = table.grant(0, 1)
    table.void(0)
    table.undo(0, 1, lease)
    table.attach(0, nonce=6)
    kept = table.grant(0, 1)
    table.undo(0, 1, lease)
    assert table.is_pinned(1)
    assert kept == LeaseId(6, 1)


def test_rows_pin_apart(cells: Cells) -> None:
    table = LeaseTable(cells)
    for row in range(2):
        table.attach(row, nonce=row + 1)
        table.grant(row, 0)
    cells[0, 0] += np.uint64(1)
    assert table.is_pinned(0)
    table.void(1)
    assert not table.is_pinned(0)
    with pytest.raises(PeerGone):
        table.grant(1, 0)
    assert table.grant(0, 0).seq == 2


def test_a_stopped_row_gets_nothing_and_keeps_its_leases(cells: Cells) -> None:
    table = LeaseTable(cells)
    table.attach(0, nonce=5)
    table.grant(0, 0)
    table.stop(0)
    with pytest.raises(PeerGone):
        table.grant(0, 1)
    assert table.is_pinned(0)
    assert table.grantable_rows() == []
    assert table.attached_rows() == [0]


def test_an_overrun_fences_the_row_until_it_is_void(cells: Cells) -> None:
    table = LeaseTable(cells)
    table.attach(0, nonce=5)
    table.attach(1, nonce=6)
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
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [True, True, False, True]
    assert table.pinned_slots() == {0, 1, 3}
    assert table.num_leases() == 0
    assert table.grant(1, 0).nonce == 6
    table.void(0)
    assert [table.is_pinned(slot) for slot in range(SLOTS)] == [True, False, False, False]
    table.check_integrity()


class LeaseModel(RuleBasedStateMachine):
    """Against lists of leases: a slot is pinned exactly while a lease of it is out in a row that is not void."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: Cells = np.zeros((ROWS, SLOTS), np.uint64)
        self.table = LeaseTable(self.cells)
        self.out: dict[int, list[int]] = {}
        self.seqs: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.nonce = 0

    @rule(row=st.integers(0, ROWS - 1))
    def take_row(self, row: int) -> None:
        """A first or a new incarnation; nobody zeroes the cells."""
        self.nonce += 1
        self.table.attach(row, self.nonce)
        self.out[row] = []
        self.seqs[row] = 0
        self.stopped.discard(row)

    @rule(row=st.integers(0, ROWS - 1), slot=st.integers(0, SLOTS - 1), is_sent=st.booleans())
    def grant(self, row: int, slot: int, is_sent: bool) -> None:
        if row not in self.out or row in self.stopped:
            with pytest.raises(PeerGone):
                self.table.grant(row, slot)
            return
        lease = self.table.grant(row, slot)
        assert lease.seq == self.seqs[row] + 1
        if is_sent:
            self.out[row].append(slot)
            self.seqs[row] += 1
        else:
            self.table.undo(row, slot, lease)

    @precondition(lambda self: any(self.out.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(row for row, slots in self.out.items() if slots)))
        slot = data.draw(st.sampled_from(sorted(self.out[row])))
        self.out[row].remove(slot)
        self.cells[row, slot] += np.uint64(1)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), is_whole=st.booleans())
    def die(self, data: st.DataObject, is_whole: bool) -> None:
        row = data.draw(st.sampled_from(sorted(self.out)))
        if is_whole:
            self.table.void(row)
            del self.out[row]
        else:
            self.table.stop(row)
            self.stopped.add(row)

    @invariant()
    def agrees(self) -> None:
        leased = {slot for slots in self.out.values() for slot in slots}
        assert {slot for slot in range(SLOTS) if self.table.is_pinned(slot)} == leased
        assert self.table.pinned_slots() == leased
        assert self.table.num_leases() == sum(map(len, self.out.values()))
        assert self.table.attached_rows() == sorted(self.out)
        assert self.table.fence_overruns() == {}
        self.table.check_integrity()


TestLeaseModel = LeaseModel.TestCase
TestLeaseModel.settings = settings(max_examples=60, stateful_step_count=40)
