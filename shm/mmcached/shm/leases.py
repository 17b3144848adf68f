"""The writer's books on leases: what it has granted, what came back, and which rows may still be trusted.

Sans I/O: the counts that readers return are an array that is passed in (a live view of the cells in shared memory, or
any array in a test). Knows slots and rows, but no chunks and no locks; that a row's holders are dead is told to it.

    granted[row, slot]     private to the writer; only it counts
    returned[row, slot]    written by the row's reader, only upwards
    a slot is pinned  ⇔  in some attached row the two differ

States of a row: free → attached → (stopped | fenced) → free. *Stopped*: its engine is dead, its workers may still read.
*Fenced*: it has given back more than it got, so its cells prove nothing any more; every slot that it held at that
moment stays pinned until the row is void.

Invariant: in an attached row that is not fenced, returned <= granted, and when no lease is held the two are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmcached.wire.errors import InvariantError, LocalProtocolError, PeerGone
from mmcached.wire.handle import LeaseId

Counts = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Overrun:
    """A row has given back more leases of a slot than it was granted: a bug in that reader."""

    slot: int
    granted: int
    returned: int


@dataclass(slots=True)
class _Row:
    """One incarnation in a row.

    Attributes:
        at_attach: per slot, what the cells held when the row was attached; never changed.
        granted: per slot; `at_attach` plus the leases granted to this incarnation.
        fenced_slots: None while the row is trusted.
    """

    nonce: int
    at_attach: Counts
    granted: Counts
    seq: int = 0
    is_stopped: bool = False
    fenced_slots: frozenset[int] | None = None


class LeaseTable:
    """Leases of all rows.

    Args:
        returned: `(max_rows, num_slots)`, uint64; read whenever a question is asked, never written.
    """

    def __init__(self, returned: Counts) -> None:
        self._returned = returned
        self._rows: dict[int, _Row] = {}

    def attach(self, row: int, nonce: int) -> None:
        """Begin an incarnation; what the cells hold now counts as granted. A former one's leases are void."""
        at_attach = self._returned[row].copy()
        self._rows[row] = _Row(nonce, at_attach, at_attach.copy())

    def void(self, row: int) -> None:
        """Forget the row and its leases: all that could read under them are dead."""
        self._rows.pop(row, None)

    def stop(self, row: int) -> None:
        """Grant nothing more to the row; its leases stay."""
        self._rows[row].is_stopped = True

    def grant(self, row: int, slot: int) -> LeaseId:
        """Count one more lease. It is the caller's to send it, or to `undo` it at once.

        Raises:
            PeerGone: the row is not attached, stopped or fenced.
        """
        books = self._rows.get(row)
        if books is None or books.is_stopped or books.fenced_slots is not None:
            raise PeerGone(f"row {row} takes no leases", row=row)
        if self._returned.item(row, slot) > books.granted.item(slot):
            # One grant more would hide an overrun that nobody has noticed yet: the counts would be equal while it is
            # read.
            raise PeerGone(f"row {row} has given back more leases of slot {slot} than it was granted", row=row)
        books.granted[slot] += np.uint64(1)
        books.seq += 1
        return LeaseId(books.nonce, books.seq)

    def undo(self, row: int, slot: int, lease: LeaseId) -> None:
        """Take back the last grant of a row, which provably was not sent: count and seq are as before.

        Nothing happens if the row has been voided or taken anew since.

        Raises:
            LocalProtocolError: it is not the last grant.
        """
        books = self._rows.get(row)
        if books is None or books.nonce != lease.nonce:
            return
        if books.seq != lease.seq:
            raise LocalProtocolError(f"only the last grant of row {row} can be undone: {books.seq}, not {lease.seq}")
        books.granted[slot] -= np.uint64(1)
        books.seq -= 1

    def nonce(self, row: int) -> int | None:
        """Return the incarnation that is attached to a row."""
        books = self._rows.get(row)
        return books.nonce if books else None

    def is_stopped(self, row: int) -> bool:
        return self._rows[row].is_stopped

    def attached_rows(self) -> list[int]:
        """Return every row with an incarnation, also stopped and fenced ones."""
        return sorted(self._rows)

    def grantable_rows(self) -> list[int]:
        return sorted(row for row, b in self._rows.items() if not b.is_stopped and b.fenced_slots is None)

    def is_pinned(self, slot: int) -> bool:
        """Return whether somebody alive may still read the slot's chunk."""
        for row, books in self._rows.items():
            if books.granted.item(slot) != self._returned.item(row, slot):
                return True
            if books.fenced_slots is not None and slot in books.fenced_slots:
                return True
        return False

    def pinned_slots(self) -> set[int]:
        """Return every slot that is pinned, as `is_pinned` says it of one."""
        pinned: set[int] = set()
        for row, books in self._rows.items():
            pinned.update(np.flatnonzero(books.granted != self._returned[row]).tolist())
            pinned.update(books.fenced_slots or ())
        return pinned

    def fence_overruns(self) -> dict[int, Overrun]:
        """Fence every row that has given back too much; return those that were not fenced before."""
        found = {}
        for row, books in self._rows.items():
            if books.fenced_slots is None and (overrun := self._overrun(row, books)):
                held = np.flatnonzero(self._returned[row] != books.granted)
                books.fenced_slots = frozenset(held.tolist())
                found[row] = overrun
        return found

    def num_leases(self) -> int:
        """Return how many leases are out, over all rows that can be trusted."""
        counts = [(b.granted, self._returned[row]) for row, b in self._rows.items() if b.fenced_slots is None]
        # A row that has overrun and is not fenced yet must not count below zero.
        return sum(int((granted - np.minimum(granted, returned)).sum()) for granted, returned in counts)

    def check_integrity(self) -> None:
        """Raises:
        InvariantError: a row has given back more than it was granted, or the books contradict themselves.
        """
        for row, books in self._rows.items():
            overrun = self._overrun(row, books)
            if overrun or books.fenced_slots is not None:
                raise InvariantError(f"row {row} has given back more leases than it was granted: {overrun}")
            num_grants = int((books.granted - books.at_attach).sum())
            if books.seq != num_grants:
                raise InvariantError(f"row {row}: seq {books.seq} after {num_grants} grants")

    def _overrun(self, row: int, books: _Row) -> Overrun | None:
        over = np.flatnonzero(self._returned[row] > books.granted)
        if not over.size:
            return None
        slot = int(over[0])
        return Overrun(slot, books.granted.item(slot), self._returned.item(row, slot))
