"""Counts the leases that the ring's writer has granted and got back, and judges which readers may still be trusted.

Sans I/O: the counts that readers return are an array that is passed in (a live view of the cells in shared memory, or
any array in a test). Knows slots and readers, but no chunks and no locks.

    granted[reader, slot]     private to the writer; only it counts
    returned[reader, slot]    written by the reader, only upwards
    a slot is pinned  ⇔  in some attached reader the two differ

States of a reader: free → attached → (stopped | frozen) → free. *Stopped*: its engine is dead, its workers may read.
*Frozen*: its words prove nothing any more, and every slot that it held when they were last believed stays pinned until
the reader is void. Either another process has written its name there and not said so yet; or the reader is *fenced*: a
count is above what was granted, or has fallen (a bug in that reader, or a stray write).

A descriptor can be lost between two living processes; its lease would never come back. So the writer asks: a *barrier*
stops granting to the reader and says how far the writer has counted. It goes down the same queue as the descriptors, so
when it arrives every earlier one has arrived or never will. Only the last barrier's answer counts: one to an earlier
barrier knows nothing of what came after it.

Invariant: in an attached reader that is not frozen, returned <= granted, and when no lease is held the two are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mmcached.shm.segment.layout import MAX_RETURNED
from mmcached.wire.errors import InvariantError, LeaseRefused, LocalProtocolError, PeerGone, RemoteProtocolError
from mmcached.wire.handle import LeaseId
from mmcached.wire.messages.parts import Barrier

Counts = npt.NDArray[np.uint64]
READERS_PER_LOOK = 64
"""Their cells are read at a time: some 32 KiB each, four times."""


@dataclass(frozen=True, slots=True)
class Overrun:
    """A count that cannot be, for which a reader is fenced."""

    slot: int
    granted: int
    returned: int


@dataclass(slots=True)
class _Reader:
    """One incarnation of a reader.

    Attributes:
        at_attach: per slot, what the cells held when the reader was attached; never changed.
        granted: per slot; `at_attach` plus the leases granted to this incarnation, less those found lost.
        seen: per slot, what the cells held when they were last looked at as a whole and were possible; never changed.
        barrier: the last one, until its answer has come; nothing is granted meanwhile.
        slot_to_nbytes: sizes of the chunks under lease, for the quota; may hold some that came back.
        frozen_slots: None while the reader's words count.
    """

    incarnation: int
    at_attach: Counts
    granted: Counts
    seen: Counts
    seq: int = 0
    num_lost: int = 0
    barrier: Barrier | None = None
    slot_to_nbytes: dict[int, int] = field(default_factory=dict)
    leased_bytes: int = 0
    is_stopped: bool = False
    frozen_slots: frozenset[int] | None = None
    overrun: Overrun | None = None

    @property
    def takes_leases(self) -> bool:
        return not self.is_stopped and self.frozen_slots is None


class LeaseTable:
    """Leases of all readers.

    Args:
        returned: `(max_readers, num_slots)`, uint64; read at each question, never written.
        quota_bytes: the bytes that one reader may hold under lease, each chunk counted once; None for no limit.
        shared_bytes: with a quota: the bytes that all readers may hold together, each chunk counted once. A reader gets
            no more than is left for the others: alone half, the second then a third … so something is always left.
    Attributes:
        num_lost: leases that barriers have found lost, in all readers ever.
    """

    def __init__(self, returned: Counts, *, quota_bytes: int | None = None, shared_bytes: int | None = None) -> None:
        self._returned = returned
        self._quota_bytes = quota_bytes
        self._shared_bytes = shared_bytes
        self._slot_to_nbytes: dict[int, int] = {}  # of chunks under lease, for that; may hold some that came back
        self._leased_bytes = 0
        self.num_lost = 0
        self._next_look = 0
        self._is_recounted = False  # since the last look at all cells: to count again would find little
        self._readers: dict[int, _Reader] = {}
        # slot -> readers that may hold it: a superset, cut down at every look, so that a look costs nothing for the
        # many slots that nobody holds, however many readers there are.
        self._holders: dict[int, set[int]] = {}
        self._num_barriers = 0

    def attach(self, reader_id: int, incarnation: int) -> bool:
        """Begin an incarnation; what the cells hold now counts as granted. A former one's leases are void.

        Returns:
            False, and nothing has changed, if the cells hold what no reader counts to.
        """
        at_attach = self._returned[reader_id].copy()
        if at_attach.max() > MAX_RETURNED:
            return False
        self._readers[reader_id] = _Reader(incarnation, at_attach, at_attach.copy(), at_attach)
        return True

    def void(self, reader_id: int) -> None:
        """Forget the reader and its leases: all that could read under them are dead."""
        self._readers.pop(reader_id, None)
        self._is_recounted = False

    def stop(self, reader_id: int) -> None:
        self._readers[reader_id].is_stopped = True

    # ---- granting

    def grant(self, reader_id: int, slot: int, nbytes: int = 0) -> LeaseId:
        """Count one more lease, which the caller sends, or gives to `undo` at once.

        Args:
            nbytes: size of the slot's chunk.
        Raises:
            PeerGone: the reader is not attached, stopped or frozen.
            LeaseRefused: a barrier is open, or the reader holds as much as it may; nothing was counted.
        """
        books = self._readers.get(reader_id)
        if books is None or not books.takes_leases:
            raise PeerGone(f"reader {reader_id} takes no leases", reader_id=reader_id)
        outstanding = books.granted.item(slot) - self._returned.item(reader_id, slot)
        if outstanding < 0:
            # One grant more would hide an overrun that nobody has noticed yet: the counts would be equal while it is
            # read.
            raise PeerGone(
                f"reader {reader_id} has given back more leases of slot {slot} than it was granted", reader_id=reader_id
            )
        if books.barrier is not None:
            raise LeaseRefused(reader_id, "it has not yet said which leases have arrived")
        if self._quota_bytes is not None and not outstanding:
            self._charge(reader_id, slot, nbytes, self._quota_bytes)
            self._take_share(reader_id, slot, nbytes)
        books.granted[slot] += np.uint64(1)
        books.seq += 1
        self._holders.setdefault(slot, set()).add(reader_id)
        return LeaseId(books.incarnation, books.seq, slot)

    def undo(self, reader_id: int, slot: int, lease: LeaseId) -> None:
        """Take back the last grant of a reader, which provably was not sent: count and seq are as before.

        A grant to a former incarnation changes nothing; any but the last grant raises LocalProtocolError.
        """
        books = self._readers.get(reader_id)
        if books is None or books.incarnation != lease.incarnation:
            return
        if books.seq != lease.seq:
            raise LocalProtocolError(
                f"only the last grant of reader {reader_id} can be undone: {books.seq}, not {lease.seq}"
            )
        books.granted[slot] -= np.uint64(1)
        books.seq -= 1

    # ---- lost descriptors

    def open_barrier(self, reader_id: int) -> Barrier | None:
        """Stop granting to a reader until it has said what it has received.

        Returns:
            the question to send down the descriptors' queue; None if no lease is out, or the reader takes none.
        """
        books = self._readers.get(reader_id)
        if books is None or not books.takes_leases:
            return None
        # A slot of which everything came back has lost nothing: more cannot come back than arrived.
        slots = tuple(np.flatnonzero(books.granted != self._returned[reader_id]).tolist())
        if not slots and books.barrier is None:
            return None
        self._num_barriers += 1
        books.barrier = Barrier(books.incarnation, self._num_barriers, books.seq, slots)
        return books.barrier

    def reconcile(self, reader_id: int, incarnation: int, barrier_id: int, received: Mapping[int, int]) -> int | None:
        """Take the answer to a barrier: what did not arrive was never granted. Granting goes on.

        Args:
            received: slot -> leases that this incarnation has ever received, for the slots of the barrier.
        Returns:
            the number of lost leases; None for an answer to anything but its last barrier, which changes nothing.
        Raises:
            RemoteProtocolError: not the slots that were asked, or counts that cannot be; nothing has changed.
        """
        books = self._readers.get(reader_id)
        if (
            books is None
            or books.barrier is None
            or (books.incarnation, books.barrier.barrier_id) != (incarnation, barrier_id)
        ):
            return None
        if received.keys() != set(books.barrier.slots):
            raise RemoteProtocolError(f"{len(received)} slots, asked were {len(books.barrier.slots)}", "received")
        granted = {slot: books.at_attach.item(slot) + count for slot, count in received.items()}
        for slot, count in granted.items():
            if not self._returned.item(reader_id, slot) <= count <= books.granted.item(slot):
                reason = f"slot {slot}: {received[slot]} leases received, of {count - received[slot]} before them"
                raise RemoteProtocolError(reason, "received")
        num_lost = sum(books.granted.item(slot) - count for slot, count in granted.items())
        for slot, count in granted.items():
            books.granted[slot] = count
        books.num_lost += num_lost
        self.num_lost += num_lost
        books.barrier = None
        return num_lost

    # ---- looking

    def incarnations(self) -> dict[int, int]:
        """Return reader id -> incarnation of every reader that has leases, also of stopped and frozen ones."""
        return {reader_id: books.incarnation for reader_id, books in sorted(self._readers.items())}

    def is_stopped(self, reader_id: int) -> bool:
        return self._readers[reader_id].is_stopped

    def grantable_readers(self) -> list[int]:
        """Return the readers that take leases now."""
        return sorted(reader_id for reader_id, books in self._readers.items() if books.takes_leases)

    def takes_leases(self, reader_id: int) -> bool:
        return self._readers[reader_id].takes_leases

    def is_pinned(self, slot: int) -> bool:
        """Return whether a living reader may still read the slot's chunk."""
        holders = self._holders.get(slot)
        if holders is None:
            return False
        for reader_id in list(holders):
            if self._holds(reader_id, slot):
                return True
            holders.discard(reader_id)
        del self._holders[slot]
        return False

    def pinned_slots(self) -> set[int]:
        return {slot for slot in list(self._holders) if self.is_pinned(slot)}

    def num_leases(self) -> int:
        """Return the number of leases that are out, over all readers that can be trusted."""
        counts = [
            (b.granted, self._returned[reader_id]) for reader_id, b in self._readers.items() if b.frozen_slots is None
        ]
        # A reader that has overrun and is not fenced yet must not count below zero.
        return sum(int((granted - np.minimum(granted, returned)).sum()) for granted, returned in counts)

    def fenced_readers(self) -> list[int]:
        return sorted(reader_id for reader_id, books in self._readers.items() if books.overrun is not None)

    def is_frozen(self, reader_id: int) -> bool:
        return self._readers[reader_id].frozen_slots is not None

    def freeze(self, reader_id: int) -> None:
        books = self._readers[reader_id]
        books.frozen_slots = frozenset(np.flatnonzero(books.granted != books.seen).tolist())
        for slot in books.frozen_slots:
            self._holders.setdefault(slot, set()).add(reader_id)

    def fence_overruns(self) -> dict[int, Overrun]:
        """Look at all cells of the next readers; fence those with impossible counts; return those not fenced before."""
        found = {}
        self._is_recounted = False
        reader_ids = list(self._readers)
        looked_at = reader_ids[self._next_look : self._next_look + READERS_PER_LOOK]
        self._next_look += READERS_PER_LOOK
        if self._next_look >= len(reader_ids):
            self._next_look = 0
        for reader_id in looked_at:
            books = self._readers[reader_id]
            if books.frozen_slots is not None:
                continue
            returned = self._returned[reader_id].copy()  # the reader goes on writing
            books.overrun = _overrun(books, returned)
            if books.overrun is None:
                books.seen = returned
            else:
                self.freeze(reader_id)
                found[reader_id] = books.overrun
        return found

    def check_integrity(self) -> None:
        """Raise InvariantError if a reader gave back more than it was granted, or the books contradict themselves."""
        for reader_id, books in self._readers.items():
            overrun = books.overrun or (
                None if self.is_frozen(reader_id) else _overrun(books, self._returned[reader_id].copy())
            )
            if overrun:
                raise InvariantError(f"reader {reader_id} has given back more leases than it was granted: {overrun}")
            num_grants = int((books.granted - books.at_attach).sum()) + books.num_lost
            if books.seq != num_grants:
                raise InvariantError(f"reader {reader_id}: seq {books.seq} after {num_grants} grants")
            held = (
                [] if self.is_frozen(reader_id) else np.flatnonzero(books.granted != self._returned[reader_id]).tolist()
            )
            if unknown := [slot for slot in held if reader_id not in self._holders.get(slot, ())]:
                raise InvariantError(f"reader {reader_id} holds slots that nobody is known to hold: {unknown[:3]}")
            if books.leased_bytes != sum(books.slot_to_nbytes.values()):
                raise InvariantError(
                    f"reader {reader_id}: {books.leased_bytes} bytes under lease, by slot {books.slot_to_nbytes}"
                )

    def _holds(self, reader_id: int, slot: int) -> bool:
        books = self._readers.get(reader_id)
        if books is None:
            return False
        if books.frozen_slots is not None:
            return slot in books.frozen_slots
        return bool(books.granted.item(slot) != self._returned.item(reader_id, slot))

    def _charge(self, reader_id: int, slot: int, nbytes: int, quota_bytes: int) -> None:
        """Count a chunk that the reader begins to hold, or refuse."""
        books = self._readers[reader_id]
        if books.leased_bytes - books.slot_to_nbytes.get(slot, 0) + nbytes > quota_bytes:
            held = [held for held in books.slot_to_nbytes if held != slot and self._holds(reader_id, held)]
            books.slot_to_nbytes = {held: books.slot_to_nbytes[held] for held in held}
            books.leased_bytes = sum(books.slot_to_nbytes.values())
            if books.leased_bytes + nbytes > quota_bytes:
                raise LeaseRefused(reader_id, f"it holds {books.leased_bytes} bytes of a quota of {quota_bytes}")
        books.leased_bytes += nbytes - books.slot_to_nbytes.get(slot, 0)
        books.slot_to_nbytes[slot] = nbytes

    def _take_share(self, reader_id: int, slot: int, nbytes: int) -> None:
        """Count a chunk that a reader, charged for it, begins to hold; or refuse, and take the charge back."""
        if self._shared_bytes is None:
            return
        books = self._readers[reader_id]
        left = self._left_beside(slot, nbytes, self._shared_bytes)
        if books.leased_bytes > left and not self._is_recounted:
            self._is_recounted = True
            pinned = self.pinned_slots()
            self._slot_to_nbytes = {held: self._slot_to_nbytes[held] for held in pinned if held in self._slot_to_nbytes}
            self._leased_bytes = sum(self._slot_to_nbytes.values())
            books.slot_to_nbytes = {
                held: size
                for held, size in books.slot_to_nbytes.items()
                if held == slot or self._holds(reader_id, held)
            }
            books.leased_bytes = sum(books.slot_to_nbytes.values())
            left = self._left_beside(slot, nbytes, self._shared_bytes)
        if books.leased_bytes > left:
            books.leased_bytes -= books.slot_to_nbytes.pop(slot)
            raise LeaseRefused(
                reader_id, f"it holds {books.leased_bytes} bytes, and {max(0, left)} are left for all others"
            )
        self._leased_bytes += nbytes - self._slot_to_nbytes.get(slot, 0)
        self._slot_to_nbytes[slot] = nbytes

    def _left_beside(self, slot: int, nbytes: int, shared_bytes: int) -> int:
        """Return the rest of the shared bytes when the chunk of a slot is leased too."""
        return shared_bytes - self._leased_bytes - nbytes + self._slot_to_nbytes.get(slot, 0)


def _overrun(books: _Reader, returned: Counts) -> Overrun | None:
    wrong = np.flatnonzero((returned > books.granted) | (returned < books.seen))
    if not wrong.size:
        return None
    slot = int(wrong[0])
    return Overrun(slot, books.granted.item(slot), returned.item(slot))
