"""Copies under way: begun together, landed when they are done.

    send ──> under way, in order of time ──poll: done──> landed: one scatter for each key
                   └── wait_for, beyond the limit ──┘

`poll` is what each call of the store begins with. Two wait, and only for the copies that they need: `wait_for`, for a
reader, and a `send` that exceeds `byte_limit`, for the oldest.

A copy that fails, however it is asked, is lost: its rows were not written, its memory is not used again, and who asked
gets its error, once; nobody does if no row was waiting for it any more.

Knows nothing of why rows are sent. Invariant: at most `byte_limit` bytes are under way, or one copy; what a copy brings
goes only to rows that its parcel still holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from mmcached.wire.errors import InvariantError
from mmcached.worker.prefix_store.parcels import Cutting, Parcel, ParcelBook, Whereabouts
from mmcached.worker.prefix_store.transfer import PADDING, Copy, Transfer, TransferFor

Drafts = dict[Whereabouts, list[np.ndarray]]
"""Indexes of rows to be sent, by arena; in one array, each once."""
NoteLost = Callable[[np.ndarray], None]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, eq=False)
class Shipment:
    """A copy, and the parcel that each of its parts is."""

    copy: Copy
    parcels: Sequence[Parcel]


class Shipments:
    """The copies of one store.

    Args:
        byte_limit: of copies under way; a single one may be larger.
        note_lost: told which rows of every arena may not have been written after all.

    Attributes:
        in_flight_nbytes: of copies under way: pinned, and as much on the device.
        num_copies: that were begun.
        num_limit_waits: how many of them had to be waited for because of the limit.
    """

    def __init__(self, book: ParcelBook, *, byte_limit: int, transfer_for: TransferFor, note_lost: NoteLost) -> None:
        self.byte_limit = byte_limit
        self.in_flight_nbytes = self.num_copies = self.num_limit_waits = 0
        self._book = book
        self._transfer_for = transfer_for
        self._note_lost = note_lost
        self._transfers: dict[torch.device, Transfer] = {}
        self._under_way: deque[Shipment] = deque()

    @property
    def pinned_nbytes(self) -> int:
        """Of copies under way, and what waits for the next ones."""
        return self.in_flight_nbytes + sum(transfer.pinned_nbytes for transfer in self._transfers.values())

    def numbers(self) -> set[int]:
        """Return the parcels that are under way."""
        return {parcel.number for shipment in self._under_way for parcel in shipment.parcels}

    def transfer_of(self, device: torch.device) -> Transfer:
        """Return what copies the rows of a device."""
        transfer = self._transfers.get(device)
        if transfer is None:
            transfer = self._transfers[device] = self._transfer_for(device, self.byte_limit)
        return transfer

    def send(self, drafts: Drafts) -> None:
        """Begin one copy for each device."""
        of_device: dict[torch.device, list[tuple[Whereabouts, np.ndarray]]] = {}
        for whereabouts, drafted in drafts.items():
            indexes = drafted[0] if len(drafted) == 1 else np.unique(np.concatenate(drafted))
            if len(indexes):
                for device, own in whereabouts.devices(indexes).items():
                    of_device.setdefault(device, []).append((whereabouts, own))
        for device, parts in of_device.items():
            cuttings = [(whereabouts, whereabouts.cut(indexes)) for whereabouts, indexes in parts]
            self._send_parts(self.transfer_of(device), cuttings)

    def poll(self) -> None:
        """Land what is done; waits for nothing."""
        while self._under_way:
            oldest = self._under_way[0]
            is_done = self._ask(oldest, _is_done)
            if is_done:
                self._land(oldest)
            elif is_done is not None:
                return

    def wait_for(self, numbers: Collection[int]) -> int:
        """Have these parcels landed; return how many copies were not done."""
        shipments = [each for each in self._under_way if any(parcel.number in numbers for parcel in each.parcels)]
        return sum(self._wait(shipment) for shipment in shipments)

    def check_integrity(self) -> None:
        """Raise `InvariantError` if bytes are counted wrongly, or more are under way than there may be."""
        nbytes = sum(shipment.copy.nbytes for shipment in self._under_way)
        if nbytes != self.in_flight_nbytes or (nbytes > self.byte_limit and len(self._under_way) > 1):
            counted = f"{self.in_flight_nbytes} are counted, {self.byte_limit} allowed"
            raise InvariantError(f"{nbytes} bytes are under way in {len(self._under_way)} copies, {counted}")

    # ---- inside

    def _send_parts(self, transfer: Transfer, cuttings: Sequence[tuple[Whereabouts, Cutting]]) -> None:
        if not transfer.is_immediate:
            nbytes = sum(cutting.part.num_rows * each.arena.row_nbytes for each, cutting in cuttings)
            self._stay_below_limit(nbytes + len(cuttings) * PADDING)
        copy = transfer.start([cutting.part for _, cutting in cuttings])
        parcels = []
        for whereabouts, cutting in cuttings:
            parcel = self._book.open(whereabouts, None)
            whereabouts.bind(cutting.indexes, parcel, cutting.places)
            parcels.append(parcel)
        shipment = Shipment(copy, parcels)
        self._under_way.append(shipment)
        self.in_flight_nbytes += copy.nbytes
        self.num_copies += 1
        if transfer.is_immediate:
            self._land(shipment)

    def _stay_below_limit(self, nbytes: int) -> None:
        while self._under_way and self.in_flight_nbytes + nbytes > self.byte_limit:
            self.num_limit_waits += self._wait(self._under_way[0])

    def _wait(self, shipment: Shipment) -> bool:
        """Have a shipment landed; return whether it was not done."""
        has_waited = self._ask(shipment, _wait_for)
        if has_waited is None:
            return False
        self._land(shipment)
        return has_waited

    def _land(self, shipment: Shipment) -> None:
        """Bring the rows of a copy that is done where they belong, as far as they still do."""
        all_rows = self._ask(shipment, lambda copy: copy.rows())
        if all_rows is None:
            return
        for parcel, rows in zip(shipment.parcels, all_rows, strict=True):
            parcel.whereabouts.land(parcel, rows)
        self._forget(shipment)
        shipment.copy.release()

    def _ask(self, shipment: Shipment, question: Callable[[Copy], Answer]) -> Answer | None:
        """Return what a copy answers; None if it has failed and nobody waits for its rows.

        Raises:
            Exception: it has failed, and its rows are lost.
        """
        try:
            return question(shipment.copy)
        except Exception:
            self._forget(shipment)
            awaited = [parcel for parcel in shipment.parcels if parcel.num_live]
            for parcel in awaited:
                live = parcel.live()
                parcel.arena.forget_rows(live)
                parcel.whereabouts.unbind(live)
                self._note_lost(live)
            if awaited:
                raise
            return None

    def _forget(self, shipment: Shipment) -> None:
        self._under_way.remove(shipment)
        self.in_flight_nbytes -= shipment.copy.nbytes


def _is_done(copy: Copy) -> bool:
    return copy.is_done()


def _wait_for(copy: Copy) -> bool:
    """Wait for a copy; return whether it was not done."""
    if copy.is_done():
        return False
    copy.wait()
    return True
