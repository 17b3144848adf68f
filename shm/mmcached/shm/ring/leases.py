"""Judges what is under lease, of a ring's chunks, and which readers may still be trusted.

Sans I/O: the counts are arrays that are passed in (live views of shared memory, or any arrays in a test). Knows slots
and readers, but no chunks and no locks.

    taken[reader, slot]       written by the reader, only upwards: leases that it has taken, see `self_lease`
    returned[reader, slot]    written by the reader, only upwards: leases that it has given back
    outstanding = taken - returned; a slot is pinned  ⇔  in some attached reader it is not 0

A reader that takes an entry gives back all that the former one had under lease, before the writer hears of it. So all
that a successor of the writer must know of leases lies in shared memory. Before it asks whether a slot is pinned, the
writer retires the slot and fences; from then on a reader that takes a lease of it sees that, and gives it back.

States of a reader: free → attached → frozen → free. *Frozen*: its counts are not believed any more, and every slot that
it held when they last were stays pinned until the reader is void. Either another process has written its incarnation
there and has not said so yet; or the reader is *fenced*: more came back than it had taken, or a count has fallen (a bug
in that reader, or a stray write). A successor of the writer does not know what a fenced reader held last: it keeps all
that lies in the ring when it adopts it, until the reader is void. All others find it meanwhile.

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
"""What a reader has taken and what it has returned, by slot."""
COUNTS_PER_LOOK = 1 << 16
"""So many slots of readers are judged at a time: a millisecond and a half, however many there are."""
MAX_LEASES = 1 << 32
"""Of one slot that a reader can hold at a time; more is a count that was overwritten."""
FEW_READERS = 12
"""So many are asked one by one; more at once, which takes as long as twelve."""


@dataclass(frozen=True, slots=True)
class Overrun:
    """Counts that cannot be, for which a reader is fenced.

    Attributes:
        taken: leases of the slot, in all.
        returned: of those.
    """

    slot: int
    taken: int
    returned: int


@dataclass(slots=True)
class _Reader:
    """One incarnation of a reader.

    Attributes:
        seen: per slot, returned and taken when they were last looked at and were possible.
        frozen_slots: None while the reader's words count.
        is_fenced: its counts were impossible.
    """

    incarnation: int
    seen: Counts
    frozen_slots: frozenset[int] | None = None
    is_fenced: bool = False


class _Asked(NamedTuple):
    """What is looked at to say whether somebody holds a slot.

    Attributes:
        one_by_one: the counts of the readers whose words count, if they are few.
        at_once: those readers, if they are many.
        frozen_slots: what the others hold.
    """

    one_by_one: list[LiveCounts]
    at_once: npt.NDArray[np.intp]
    frozen_slots: frozenset[int]


class LeaseTable:
    """Leases of all readers.

    Args:
        counts: `(max_readers, num_slots, 2)`, uint64, returned and taken; read at each question, never written.
        is_idle: says of a reader, without a look at its counts, that it holds nothing; for figures only.
    """

    def __init__(self, counts: Counts, *, is_idle: Callable[[int], bool] = lambda reader_id: False) -> None:
        self._counts = counts
        self._is_idle = is_idle
        self._next_look = self._next_slot = 0
        self._readers: dict[int, _Reader] = {}
        self._live: dict[int, LiveCounts] = {}
        self._asked: _Asked | None = None  # as long as no reader comes, goes or is frozen

    def attach(self, reader_id: int, incarnation: int) -> bool:
        """Begin an incarnation; it has given back what a former one had.

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
        """Go on with an incarnation that a former writer had attached: its leases stay.

        Args:
            is_fenced: the former writer had fenced it.
            may_hold: returns all slots of which a reader can have a lease now. They stay pinned if the reader is, or
                is now, fenced.
        Returns:
            whether its counts are possible; False: it is fenced.
        """
        overrun, seen = self._judge(np.zeros_like(self._counts[reader_id]), reader_id, slice(0, self._counts.shape[1]))
        books = self._begin(reader_id, incarnation, seen)
        books.is_fenced = is_fenced or overrun is not None
        if books.is_fenced:
            books.frozen_slots = frozenset(may_hold())
        return not books.is_fenced

    def void(self, reader_id: int) -> None:
        """Forget a reader, which is dead, and its leases."""
        self._readers.pop(reader_id, None)
        self._live.pop(reader_id, None)
        self._asked = None

    # ---- looking

    def incarnations(self) -> dict[int, int]:
        """Return reader id -> incarnation of every reader that can have leases, also of frozen ones."""
        return {reader_id: books.incarnation for reader_id, books in sorted(self._readers.items())}

    def is_pinned(self, slot: int) -> bool:
        """Return whether a living reader may still read the slot's chunk."""
        asked = self._asked or self._whom_to_ask()
        for taken, returned in asked.one_by_one:
            # First what came back: what is taken and given back between the two looks must not hide what stays.
            num_returned = returned[slot]
            if taken[slot] != num_returned:
                return True
        if len(ids := asked.at_once):
            returned = self._counts[ids, slot, 0]  # first, as above
            if (self._counts[ids, slot, 1] != returned).any():
                return True
        return slot in asked.frozen_slots

    def pinned_slots(self) -> set[int]:
        busy = [reader_id for reader_id in self._readers if self.is_frozen(reader_id) or not self._is_idle(reader_id)]
        return {slot for reader_id in busy for slot in self._held_slots(reader_id)}

    def num_leases(self) -> int:
        """Return the number of leases that are out, over all readers that can be trusted."""
        # A reader that counts what cannot be, and is not fenced yet, must count neither below zero nor without bound.
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
        """Look at the next counts, around all readers; fence those that cannot be; return those not fenced before."""
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
        """Raise InvariantError if a reader gave back more than it was given, or the books contradict themselves."""
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
        returned = self._counts[reader_id, :, 0].copy()  # first, as above
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
        """Return what is impossible, if anything, and the counts that were looked at, of some slots.

        Args:
            seen: their counts when they were last looked at.
        """
        returned = self._counts[reader_id, slots, 0].copy()  # first, as above; and the reader goes on writing
        counts = np.stack((returned, self._counts[reader_id, slots, 1]), axis=1)
        outstanding = (counts[:, 1] - returned).view(np.int64)
        is_impossible = (outstanding < 0) | (outstanding > MAX_LEASES)
        wrong = np.flatnonzero(is_impossible | ((counts < seen) | (counts > 2 * MAX_COUNT)).any(axis=1))
        if not wrong.size:
            return None, counts
        first = int(wrong[0])
        return Overrun(slots.start + first, counts.item(first, 1), counts.item(first, 0)), counts


def live_counts(counts: Counts, reader_id: int) -> LiveCounts:
    """Return what a reader has taken and what it has returned, by slot, as they change."""
    # Memoryviews: one count of them takes half the time of one of an array.
    return counts[reader_id, :, 1].data, counts[reader_id, :, 0].data
