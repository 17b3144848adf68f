"""What is written on its way into the arenas: the policy of copies.

    put ── rows that lie in host memory, "at_once" ──────────────────────────────────────> arena
     └──── others: noted, marked as written ── launch, once per write ──┬─ copy under way ──> arena, at a later call
                                                                        └─ kept on the device ──┘
                                   block sealed and full, request released, rows read, budget exceeded

A launch begins one copy for all keys, from one clone of each key's rows, and waits for nothing (`shipments`); a reader
waits in `settle`, for the copies that bring what it asks for. Rows that are noted are found like all others; which of
them an arena lacks, `parcels` knows.

Knows nothing of requests, names or values. Invariant: between two writes every row that is marked as written, in a slot
that is in use, is in its arena, under way or kept; of what was handed in, nothing is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from mmcached.wire.errors import InvariantError
from mmcached.worker.prefix_store.arena import RowArena
from mmcached.worker.prefix_store.parcels import Parcel, ParcelBook, Whereabouts
from mmcached.worker.prefix_store.shipments import Drafts, NoteLost, Shipments
from mmcached.worker.prefix_store.transfer import TransferFor


class Staging:
    """Rows of one store on their way.

    Args:
        device_byte_budget: of rows that are kept on their device.
        byte_limit, transfer_for, note_lost: of the shipments.

    Attributes:
        shipments: copies under way.
        num_read_waits: how many of them a reader had to wait for.
    """

    def __init__(
        self,
        block_size: int,
        *,
        device_byte_budget: int,
        byte_limit: int,
        transfer_for: TransferFor,
        note_lost: NoteLost,
    ) -> None:
        self.device_byte_budget = device_byte_budget
        self.num_read_waits = 0
        self._offsets = np.arange(block_size)
        self._book = ParcelBook()
        self.shipments = Shipments(self._book, byte_limit=byte_limit, transfer_for=transfer_for, note_lost=note_lost)
        self._of_arena: dict[RowArena, Whereabouts] = {}
        self._arriving: dict[RowArena, Parcel] = {}

    @property
    def kept_nbytes(self) -> int:
        return self._book.kept_nbytes

    @property
    def has_to_launch(self) -> bool:
        """Whether a launch would do anything."""
        return bool(self._arriving or self._book.kept)

    # ---- a write

    def put(
        self, arena: RowArena, rows: torch.Tensor, places: np.ndarray | None, indexes: np.ndarray, *, is_deferred: bool
    ) -> None:
        """Note that `rows[places[i]]`, or without places all rows, are written at `indexes[i]`; no index occurs twice.

        Until the next `launch`, all that is put into one arena are rows of the same tensor; later calls are right.
        """
        transfer = self.shipments.transfer_of(rows.device)
        if transfer.is_immediate and not is_deferred:
            if self._book.of_number:
                self._unbind(arena, indexes)
            arena.put(indexes, rows if places is None else rows[torch.from_numpy(places).to(rows.device)])
            return
        whereabouts = self._of_arena.get(arena)
        if whereabouts is None:
            whereabouts = self._of_arena[arena] = Whereabouts(arena, self._book)
        parcel = self._arriving.get(arena)
        if parcel is None or not parcel.num_live:
            parcel = self._arriving[arena] = self._book.open(whereabouts, rows.detach(), is_deferred=is_deferred)
        arena.mark(indexes)
        whereabouts.bind(indexes, parcel, np.arange(len(indexes)) if places is None else places)

    def launch(self, sealed_slots: np.ndarray) -> None:
        """Send what was put, or keep it on the device; of what is kept, send these slots' rows if they are full.

        If that fails, what was not sent or kept has not been written.
        """
        arriving = [parcel for parcel in self._arriving.values() if parcel.num_live]
        if not arriving and not self._book.kept:
            self._arriving.clear()
            return
        try:
            drafts: Drafts = {}
            deferred = self._make_room(arriving, drafts)
            if deferred or self._book.kept:
                self._draft_full(np.unique(sealed_slots), drafts)
            self.shipments.send(drafts)
            for parcel in deferred:
                self._keep(parcel)
            self._arriving.clear()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """What was put since the last launch has not been written."""
        for parcel in self._arriving.values():
            self.forget_rows(parcel.arena, parcel.live())
        self._arriving.clear()

    def flush(self, slots: np.ndarray) -> None:
        """Send what is kept of the rows of these slots."""
        if self._book.kept:
            drafts: Drafts = {}
            self._draft_kept(self._of_arena.values(), self._rows_of(np.unique(slots)), drafts)
            self.shipments.send(drafts)

    # ---- reading

    def settle(self, arenas: Iterable[RowArena], indexes: np.ndarray) -> None:
        """Wait until the rows of these indexes are in these arenas, as far as they were written."""
        if not self._book.of_number:
            return
        indexes = indexes[indexes >= 0]
        asked = [whereabouts for arena in arenas if (whereabouts := self._of_arena.get(arena)) is not None]
        if self._book.kept:
            drafts: Drafts = {}
            self._draft_kept(asked, np.unique(indexes), drafts)
            self.shipments.send(drafts)
        awaited = {number for whereabouts in asked for number in np.unique(whereabouts.holder[indexes]).tolist()}
        self.num_read_waits += self.shipments.wait_for(awaited)

    # ---- forgetting

    def forget_rows(self, arena: RowArena, indexes: np.ndarray) -> None:
        """Rows were not written."""
        arena.forget_rows(indexes)
        if self._book.of_number:
            self._unbind(arena, np.unique(indexes))

    def forget_slots(self, slots: Sequence[int], arenas: Iterable[RowArena]) -> None:
        """No row of these slots was written."""
        rows = self._rows_of(np.asarray(slots, dtype=np.int64)) if self._book.of_number else None
        for arena in arenas:
            arena.forget_slots(list(slots))
            if rows is not None:
                self._unbind(arena, rows)

    def drop_slots(self, slots: Sequence[int] | np.ndarray) -> None:
        """Nobody will look at the rows of these slots again; they need not come."""
        if self._book.of_number and len(slots):
            rows = self._rows_of(np.asarray(slots, dtype=np.int64))
            for arena in self._of_arena:
                self._unbind(arena, rows)

    def drop_arena(self, arena: RowArena) -> None:
        """Nobody will look at this arena again."""
        whereabouts = self._of_arena.pop(arena, None)
        if whereabouts is not None:
            for parcel in list(self._book.of_number.values()):
                if parcel.whereabouts is whereabouts:
                    whereabouts.unbind(parcel.live())

    def merge(self, arena: RowArena, source: int, target: int) -> np.ndarray:
        """Give slot `target` the rows that only slot `source` has, which is given up; return their indexes."""
        sources, targets = arena.add_lacking(source, target)
        whereabouts = self._of_arena.get(arena)
        if whereabouts is not None and self._book.of_number:
            whereabouts.move(sources, targets)
            whereabouts.unbind(self._rows_of(np.array([source])))
        return targets

    def clear(self) -> None:
        """Forget everything. Memory of copies under way is given back when they are done."""
        for arena in list(self._of_arena):
            self.drop_arena(arena)
        self._arriving.clear()

    def check_integrity(self) -> None:
        """Raise `InvariantError` if a row that was written is nowhere, or what is counted is not so."""
        for whereabouts in self._of_arena.values():
            whereabouts.check_integrity()
        self.shipments.check_integrity()
        kept, under_way = self._book.kept, self.shipments.numbers()
        lost = [number for number in self._book.of_number if number not in under_way and number not in kept]
        if lost or self._arriving:
            raise InvariantError(f"parcels {lost} are neither kept nor under way, {len(self._arriving)} were not sent")
        nbytes = sum(parcel.kept_nbytes for parcel in kept.values())
        if nbytes != self.kept_nbytes or nbytes > self.device_byte_budget:
            counted = f"{self.kept_nbytes} are counted, {self.device_byte_budget} allowed"
            raise InvariantError(f"{nbytes} bytes are kept, {counted}")

    # ---- inside

    def _rows_of(self, slots: np.ndarray) -> np.ndarray:
        rows: np.ndarray = (slots[:, None] * len(self._offsets) + self._offsets).reshape(-1)
        return rows

    def _unbind(self, arena: RowArena, indexes: np.ndarray) -> None:
        """Each index once."""
        whereabouts = self._of_arena.get(arena)
        if whereabouts is not None and self._book.of_number:
            whereabouts.unbind(indexes)

    def _make_room(self, arriving: Sequence[Parcel], drafts: Drafts) -> list[Parcel]:
        """Draft what must be sent: rows that are not deferred; and the oldest of the others if these exceed the budget,
        down to half of it, so that this is rare.

        Returns:
            What may be kept of what arrives.
        """
        deferred = [parcel for parcel in arriving if parcel.number < 0]
        coming = sum(_span_nbytes(parcel) for parcel in deferred)
        if coming > self.device_byte_budget:
            deferred, coming = [], 0
        for parcel in arriving:
            if parcel not in deferred:
                drafts.setdefault(parcel.whereabouts, []).append(parcel.live())
        left = self.kept_nbytes
        if left + coming > self.device_byte_budget:
            for parcel in self._book.kept.values():
                if left + coming <= self.device_byte_budget // 2 or not left:
                    break
                drafts.setdefault(parcel.whereabouts, []).append(parcel.live())
                left -= parcel.kept_nbytes
        return deferred

    def _draft_full(self, slots: np.ndarray, drafts: Drafts) -> None:
        """Draft what is kept or arrives of those of these slots that are full."""
        for whereabouts in self._of_arena.values():
            is_full = whereabouts.arena.written[slots].all(axis=1)
            self._draft_kept([whereabouts], self._rows_of(slots[is_full]), drafts)

    def _draft_kept(self, arenas: Iterable[Whereabouts], rows: np.ndarray, drafts: Drafts) -> None:
        """Draft what is kept or arrives of these rows, each of which is named once."""
        for whereabouts in arenas:
            kept = rows[whereabouts.holder[rows] < 0]
            if len(kept):
                drafts.setdefault(whereabouts, []).append(kept)

    def _keep(self, parcel: Parcel) -> None:
        """Clone what is left of a deferred parcel."""
        if parcel.num_live and parcel.rows is not None:
            places = parcel.whereabouts.place[parcel.live()]
            first, end = int(places.min()), int(places.max()) + 1
            rows = parcel.rows[first:end]
            self._book.keep(parcel, self.shipments.transfer_of(rows.device).clone(rows), first)


def _span_nbytes(parcel: Parcel) -> int:
    """Return how much a clone of all its rows would take."""
    return parcel.rows.nbytes if parcel.rows is not None else 0
