"""Determines which slots are leased, and which readers' counts can be trusted.

Sans I/O: the counts are arrays that are passed in (live views of shared memory, or any arrays in a test). Knows slots
and readers, but no chunks and no locks.

    taken[reader, slot]       written by the reader, never decreases: leases that it has taken, see `self_lease`
    returned[reader, slot]    written by the reader, never decreases: leases that it has given back
    outstanding = taken - returned; a slot is pinned  ⇔  in some attached reader it is not 0

A reader that takes an entry gives back all leases of the entry's previous reader, before the writer hears of it. So
everything that a successor of the writer must know of leases lies in shared memory. Before the writer asks whether a
slot is pinned, it retires the slot and fences; a reader that takes a lease after that sees the slot retired, and gives
the lease back.

States of a reader: free → attached → frozen → free. *Frozen*: its counts are not trusted any more, and every slot that
it held when they last were stays pinned until the reader is void (dead). There are two causes. Either another process
has written its incarnation into the entry and has not announced itself yet. Or the reader is *fenced*: it has returned
more than it had taken, or a count has fallen (a bug in that reader, or a stray write). A successor of the writer does
not know which slots a fenced reader held last: at adoption it keeps every record in the ring pinned until the reader is
void. All other readers can find these records meanwhile.

Invariant: in an attached reader that is not frozen, 0 <= outstanding <= 2^32, and when no lease is held it is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmcached.shm.segment.layout import MAX_COUNT
from mmcached.wire.errors import InvariantError

Counts = npt.NDArray[np.uint64]
Outstanding = npt.NDArray[np.int64]
LiveCounts = tuple[memoryview, memoryview]
"""The taken and the returned counts of one reader, each by slot."""
COUNTS_PER_LOOK = 1 << 16
"""Slots checked in one call of `fence_overruns`: about 1.5 ms, independent of the number of readers."""
MAX_LEASES = 1 << 32
"""Leases of one slot that a reader can hold at a time; a larger count was overwritten."""
FEW_READERS = 12
"""Up to this number, readers are checked one by one; more are checked at once, which takes as long as twelve."""


@dataclass(frozen=True, slots=True)
class Overrun:
    """Impossible counts, for which a reader is fenced.

    Attributes:
        taken: Total leases of the slot that were taken.
        returned: Total leases of the slot that were given back.
    """

    slot: int
    taken: int
    returned: int


@dataclass(slots=True)
class _Reader:
    """One incarnation of a reader.

    Attributes:
        seen: Per slot, returned and taken at the last check that they passed.
        frozen_slots: None while the reader's counts are trusted.
        is_fenced: Its counts were impossible.
    """

    incarnation: int
    seen: Counts
    frozen_slots: frozenset[int] | None = None
    is_fenced: bool = False


class _Asked(NamedTuple):
    """The state from which `is_pinned` answers.

    Attributes:
        one_by_one: The counts of the trusted readers, if they are few.
        at_once: The trusted readers, if they are many.
        frozen_slots: The slots that the frozen readers hold.
    """

    one_by_one: list[LiveCounts]
    at_once: npt.NDArray[np.intp]
    frozen_slots: frozenset[int]


class LeaseTable:
    """Leases of all readers.

    Args:
        counts: `(max_readers, num_slots, 2)`, uint64, returned and taken; read at each query, never written.
        is_idle: Returns whether a reader holds no lease, without reading its counts; used only for statistics.
    """

    def __init__(self, counts: Counts, *, is_idle: Callable[[int], bool] = lambda reader_id: False) -> None:
        self._counts = counts
        self._is_idle = is_idle
        self._next_look = self._next_slot = 0
        self._readers: dict[int, _Reader] = {}
        self._live: dict[int, LiveCounts] = {}
        self._asked: _Asked | None = None  # valid until a reader is attached, voided or frozen

    def attach(self, reader_id: int, incarnation: int) -> bool:
        """Begin an incarnation; its reader has given back all leases of the entry's previous reader.

        Returns:
            False, and nothing has changed, if its counts are impossible.
        """
        overrun, seen = self._judge(np.zeros_like(self._counts[reader_id]), reader_id, slice(0, self._counts.shape[1]))
        if overrun is None:
            self._begin(reader_id, incarnation, seen)
        return overrun is None

    def adopt(
        self, reader_id: int, incarnation: int, *, is_fenced: bool, may_hold: Callable[[], Iterable[int]]
    ) -> bool:
        """Continue an incarnation that a former writer had attached: its leases stay.

        Args:
            is_fenced: The former writer had fenced it.
            may_hold: Returns all slots that a reader can have leased now. They stay pinned if the reader was fenced or
                is fenced now.

        Returns:
            Whether the reader is trusted; False: it is fenced.
        """
        overrun, seen = self._judge(np.zeros_like(self._counts[reader_id]), reader_id, slice(0, self._counts.shape[1]))
        books = self._begin(reader_id, incarnation, seen)
        books.is_fenced = is_fenced or overrun is not None
        if books.is_fenced:
            books.frozen_slots = frozenset(may_hold())
        return not books.is_fenced

    def void(self, reader_id: int) -> None:
        """Forget a dead reader and its leases."""
        self._readers.pop(reader_id, None)
        self._live.pop(reader_id, None)
        self._asked = None

    # ---- looking

    def incarnations(self) -> dict[int, int]:
        """Return reader id -> incarnation of every reader that can have leases, including frozen ones."""
        return {reader_id: books.incarnation for reader_id, books in sorted(self._readers.items())}

    def is_pinned(self, slot: int) -> bool:
        """Return whether a living reader may still read the slot's chunk."""
        asked = self._asked or self._whom_to_ask()
        for taken, returned in asked.one_by_one:
            # `returned` is read first: a lease that is taken and given back between the two loads must not hide one
            # that stays.
            num_returned = returned[slot]
            if taken[slot] != num_returned:
                return True
        if len(ids := asked.at_once):
            returned = self._counts[ids, slot, 0]  # first, for the same reason
            if (self._counts[ids, slot, 1] != returned).any():
                return True
        return slot in asked.frozen_slots

    def pinned_slots(self) -> set[int]:
        busy = [reader_id for reader_id in self._readers if self.is_frozen(reader_id) or not self._is_idle(reader_id)]
        return {slot for reader_id in busy for slot in self._held_slots(reader_id)}

    def num_leases(self) -> int:
        """Return the number of outstanding leases of all trusted readers."""
        # A reader with impossible counts that is not fenced yet must count neither below zero nor without bound.
        return sum(
            int(np.clip(self._all_outstanding(reader_id), 0, MAX_LEASES).sum())
            for reader_id, books in self._readers.items()
            if books.frozen_slots is None and not self._is_idle(reader_id)
        )

    def fenced_readers(self) -> list[int]:
        return sorted(reader_id for reader_id, books in self._readers.items() if books.is_fenced)

    def is_frozen(self, reader_id: int) -> bool:
        return self._readers[reader_id].frozen_slots is not None

    def freeze(self, reader_id: int) -> None:
        books = self._readers[reader_id]
        books.frozen_slots = frozenset(np.flatnonzero(books.seen[:, 1] - books.seen[:, 0]).tolist())
        self._asked = None

    def fence_overruns(self) -> dict[int, Overrun]:
        """Check the next part of the counts, cycling through all readers; return the readers fenced by this call."""
        found = {}
        reader_ids, num_slots, num_left = list(self._readers), self._counts.shape[1], COUNTS_PER_LOOK
        while num_left > 0 and self._next_look < len(reader_ids):
            reader_id = reader_ids[self._next_look]
            slots = slice(self._next_slot, min(self._next_slot + num_left, num_slots))
            num_left -= slots.stop - slots.start
            self._next_slot = slots.stop
            if slots.stop == num_slots:
                self._next_look, self._next_slot = self._next_look + 1, 0
            books = self._readers[reader_id]
            if books.frozen_slots is None:
                overrun, seen = self._judge(books.seen[slots], reader_id, slots)
                if overrun is None:
                    books.seen[slots] = seen
                else:
                    books.is_fenced = True
                    self.freeze(reader_id)
                    found[reader_id] = overrun
        if self._next_look >= len(reader_ids):
            self._next_look = self._next_slot = 0
        return found

    def check_integrity(self) -> None:
        """Raise InvariantError if a reader gave back more leases than it took, or its counts are impossible."""
        all_slots = slice(0, self._counts.shape[1])
        for reader_id, books in self._readers.items():
            overrun = None if self.is_frozen(reader_id) else self._judge(books.seen, reader_id, all_slots)[0]
            if books.is_fenced or overrun:
                raise InvariantError(f"reader {reader_id} has given back more leases than it was given: {overrun}")

    def _begin(self, reader_id: int, incarnation: int, seen: Counts) -> _Reader:
        books = self._readers[reader_id] = _Reader(incarnation, seen)
        self._live[reader_id] = live_counts(self._counts, reader_id)
        self._asked = None
        return books

    def _all_outstanding(self, reader_id: int) -> Outstanding:
        returned = self._counts[reader_id, :, 0].copy()  # first, as in `is_pinned`
        outstanding: Outstanding = (self._counts[reader_id, :, 1] - returned).view(np.int64)
        return outstanding

    def _whom_to_ask(self) -> _Asked:
        trusted = [reader_id for reader_id, books in self._readers.items() if books.frozen_slots is None]
        frozen = (books.frozen_slots for books in self._readers.values() if books.frozen_slots is not None)
        few, many = (trusted, []) if len(trusted) <= FEW_READERS else ([], trusted)
        live = [self._live[reader_id] for reader_id in few]
        self._asked = _Asked(live, np.array(many, np.intp), frozenset().union(*frozen))
        return self._asked

    def _held_slots(self, reader_id: int) -> Iterable[int]:
        frozen_slots = self._readers[reader_id].frozen_slots
        return np.flatnonzero(self._all_outstanding(reader_id)).tolist() if frozen_slots is None else frozen_slots

    def _judge(self, seen: Counts, reader_id: int, slots: slice) -> tuple[Overrun | None, Counts]:
        """Return the first impossible count of some slots, if any, and the counts that were read.

        Args:
            seen: The counts of these slots at the last check.
        """
        returned = self._counts[reader_id, slots, 0].copy()  # first, as in `is_pinned`; copied: the reader writes on
        counts = np.stack((returned, self._counts[reader_id, slots, 1]), axis=1)
        outstanding = (counts[:, 1] - returned).view(np.int64)
        is_impossible = (outstanding < 0) | (outstanding > MAX_LEASES)
        wrong = np.flatnonzero(is_impossible | ((counts < seen) | (counts > 2 * MAX_COUNT)).any(axis=1))
        if not wrong.size:
            return None, counts
        first = int(wrong[0])
        return Overrun(slots.start + first, counts.item(first, 1), counts.item(first, 0)), counts


def live_counts(counts: Counts, reader_id: int) -> LiveCounts:
    """Return live views of a reader's taken and returned counts, each by slot."""
    # Memoryviews: reading one element takes half the time of reading it from an array.
    return counts[reader_id, :, 1].data, counts[reader_id, :, 0].data
