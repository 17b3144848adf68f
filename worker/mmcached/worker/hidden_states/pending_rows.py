"""Brings rows into arenas: rows in host memory at once, rows on a device by one copy per step.

    put ── host memory ───────────────────────────────────────────────────────────> arena
     └──── device: noted, marked as written ── end of the step ── pending copy ──> arena, at a later call
                                                                    └── a reader that needs the rows waits for it

Only two calls wait, each only for the copies that it needs: `settle`, for a reader; and the end of a step that exceeds
`byte_limit`, for the oldest copy. A failed copy is lost: its rows count as not written, its memory is not reused, and
the caller gets its error, once, if any row was waiting for it.

Invariant: between steps each row that is marked as written is in its arena or in a pending copy, and at most
`byte_limit` bytes are pending, or one copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from mmcached.wire.errors import InvariantError
from mmcached.worker.hidden_states.device_copy import PADDING, Copy, Transfer, TransferFor
from mmcached.worker.hidden_states.row_arena import RowArena
from mmcached.worker.hidden_states.row_sources import NOTED, RowSources

DEFAULT_BYTE_LIMIT = 256 << 20
Answer = TypeVar("Answer")


class _Part(NamedTuple):
    """Rows of one arena in a copy; `indexes` holds all rows that the copy has ever been the source of."""

    sources: RowSources
    indexes: list[np.ndarray]


class _Flight(NamedTuple):
    """Pending copy, and the arena of each of its tensors."""

    number: int
    copy: Copy
    parts: Sequence[_Part]

    def lost(self) -> list[tuple[RowSources, np.ndarray]]:
        waiting = [(part.sources, part.sources.of(self.number, part.indexes)) for part in self.parts]
        return [(sources, rows) for sources, rows in waiting if len(rows)]


class PendingRows:
    """Rows on their way to the arenas of one store. Rows put within `with` are sent at its end, as one copy.

    Args:
        byte_limit: bytes of pending copies, and of pinned memory kept for the next copy.
        transfer_for: returns the transfer for a device.
        note_lost: called with row indices that perhaps were not written after all.

    Attributes:
        in_flight_nbytes: bytes of pending copies: pinned, and as many on the device.
        num_read_waits, num_limit_waits: copies that were waited for: by readers, because of the limit.
    """

    def __init__(
        self, *, byte_limit: int, transfer_for: TransferFor, note_lost: Callable[[np.ndarray], None] | None = None
    ) -> None:
        self.byte_limit = byte_limit
        self.in_flight_nbytes = self.num_copies = self.num_read_waits = self.num_limit_waits = 0
        self._transfer_for = transfer_for
        self._note_lost = note_lost
        self._transfers: dict[torch.device, Transfer | None] = {}
        self._of_arena: dict[RowArena, RowSources] = {}
        self._flights: deque[_Flight] = deque()
        self._numbers = count(1)

    @property
    def pinned_nbytes(self) -> int:
        """Bytes of pending copies, and of pinned memory kept for later copies."""
        return self.in_flight_nbytes + sum(each.pinned_nbytes for each in self._transfers.values() if each is not None)

    # ---- writing

    def __enter__(self) -> PendingRows:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._of_arena:
            try:
                if error is None:
                    self._send()
            finally:
                self._abandon()

    def put(self, arena: RowArena, rows: torch.Tensor, indexes: np.ndarray, places: np.ndarray | None = None) -> bool:
        """Write `rows[places[i]]`, or without places all rows, at `indexes[i]`; no index occurs twice in one call.

        Rows put into one arena within one `with` must be of the same tensor; later calls overwrite earlier ones.

        Returns:
            Whether the rows must be copied from their device.
        """
        device = rows.device
        try:
            transfer = self._transfers[device]
        except KeyError:
            transfer = self._transfers[device] = self._transfer_for(device, self.byte_limit)
        sources = self._of_arena.get(arena) if self._of_arena else None
        if transfer is None:
            if sources is not None:
                sources.source[indexes] = 0
            arena.put(indexes, rows, places)
            return False
        if sources is None:
            sources = self._of_arena[arena] = RowSources(arena)
        sources.note(rows, indexes, places)
        return True

    # ---- reading

    def poll(self) -> None:
        """Store the rows of finished copies; does not wait."""
        while self._flights:
            oldest = self._flights[0]
            is_done = self._ask(oldest, _is_done)
            if is_done:
                self._land(oldest)
            elif is_done is not None:
                return

    def settle(self, arenas: Iterable[RowArena], indexes: np.ndarray) -> None:
        """Wait until these arenas have the rows of these indices, if they were written."""
        if self._flights:
            indexes = indexes[indexes >= 0]
            asked = [sources for arena in arenas if (sources := self._of_arena.get(arena)) is not None]
            numbers = {number for sources in asked for number in np.unique(sources.source[indexes]).tolist()}
            for flight in [flight for flight in self._flights if flight.number in numbers]:
                self.num_read_waits += self._wait(flight)

    def read(self, arena: RowArena, indexes: np.ndarray, out: torch.Tensor) -> None:
        """Copy rows, all written, to `out`, `(len(indexes), *shape)`; waits for pending copies of them."""
        self.settle((arena,), indexes)
        arena.copy_rows(indexes, out)

    def settle_all(self) -> None:
        while self._flights:
            self._wait(self._flights[0])

    # ---- forgetting

    def forget(self, arena: RowArena, indexes: np.ndarray) -> None:
        arena.forget(indexes)
        if self._of_arena and arena in self._of_arena:
            self._of_arena[arena].source[indexes] = 0

    def forget_blocks(self, arena: RowArena, block_ids: Sequence[int]) -> None:
        arena.written[block_ids] = False
        self.drop_blocks(arena, block_ids)

    def drop_blocks(self, arena: RowArena, block_ids: Sequence[int]) -> None:
        """Cancel the pending rows of blocks that will not be read again."""
        if arena in self._of_arena:
            self._of_arena[arena].source.reshape(arena.written.shape)[block_ids] = 0

    def move(self, arena: RowArena, sources: np.ndarray, targets: np.ndarray) -> None:
        """Let rows `targets` come from the same source as rows `sources`."""
        of_arena = self._of_arena.get(arena)
        if of_arena is None:
            return
        numbers = of_arena.source[targets] = of_arena.source[sources]
        of_arena.place[targets] = of_arena.place[sources]
        of_arena.noted_indexes.append(targets)
        for flight in self._flights:
            if flight.number in numbers:
                for part in flight.parts:
                    if part.sources is of_arena:
                        part.indexes.append(targets)

    def drop_arena(self, arena: RowArena) -> None:
        sources = self._of_arena.pop(arena, None)
        if sources is not None:
            sources.clear()

    def clear(self) -> None:
        """Cancel all pending rows. Memory of pending copies is given back when they are done."""
        for arena in list(self._of_arena):
            self.drop_arena(arena)

    # ---- internals

    def _send(self) -> None:
        of_device: dict[torch.device, list[tuple[RowSources, np.ndarray, torch.Tensor]]] = {}
        for sources in self._of_arena.values():
            if sources.noted is not None and len(rows := sources.of(NOTED, sources.noted_indexes)):
                # One slice: few steps have unneeded rows, and gathering the others needs an index on the device.
                places = sources.place[rows]
                first, end = int(places.min()), int(places.max()) + 1
                sources.place[rows] -= first
                of_device.setdefault(sources.noted.device, []).append((sources, rows, sources.noted[first:end]))
        for device, parts in of_device.items():
            transfer = self._transfers[device]
            if transfer is None:
                raise InvariantError(f"rows on {device} were noted, but the device has no transfer")
            self._stay_below_limit(sum(tensor.nbytes + PADDING for _, _, tensor in parts))
            copy, number = transfer.start([tensor for _, _, tensor in parts]), next(self._numbers)
            for sources, rows, _ in parts:
                sources.source[rows] = number
            self._flights.append(_Flight(number, copy, [_Part(sources, [rows]) for sources, rows, _ in parts]))
            self.in_flight_nbytes += copy.nbytes
            self.num_copies += 1

    def _abandon(self) -> None:
        """Mark the rows that are still noted as not written, and clear the notes."""
        for arena, sources in self._of_arena.items():
            if sources.noted is not None:
                rows = sources.of(NOTED, sources.noted_indexes)
                arena.forget(rows)
                sources.source[rows] = 0
            sources.forget_noted()

    def _stay_below_limit(self, nbytes: int) -> None:
        while self._flights and self.in_flight_nbytes + nbytes > self.byte_limit:
            self.num_limit_waits += self._wait(self._flights[0])

    def _wait(self, flight: _Flight) -> bool:
        """Wait for a copy and store its rows; return whether it was not done before."""
        has_waited = self._ask(flight, _wait_for)
        if has_waited is None:
            return False
        self._land(flight)
        return has_waited

    def _land(self, flight: _Flight) -> None:
        """Store those rows of a finished copy that still have it as their source."""
        all_rows = self._ask(flight, lambda copy: copy.rows())
        if all_rows is None:
            return
        for part, tensor in zip(flight.parts, all_rows, strict=True):
            sources = part.sources
            rows = sources.of(flight.number, part.indexes)
            if len(rows):
                sources.arena.put(rows, tensor, sources.place[rows])
                sources.source[rows] = 0
        self._remove(flight)
        flight.copy.release()

    def _ask(self, flight: _Flight, question: Callable[[Copy], Answer]) -> Answer | None:
        """Return the result of a call on a copy; None if the copy has failed and no row waits for it.

        Raises the copy's error if rows are lost.
        """
        try:
            return question(flight.copy)
        except Exception:
            self._remove(flight)
            lost = flight.lost()
            for sources, rows in lost:
                self.forget(sources.arena, rows)
                if self._note_lost is not None:
                    self._note_lost(rows)
            if lost:
                raise
            return None

    def _remove(self, flight: _Flight) -> None:
        self._flights.remove(flight)
        self.in_flight_nbytes -= flight.copy.nbytes


def _is_done(copy: Copy) -> bool:
    return copy.is_done()


def _wait_for(copy: Copy) -> bool:
    if copy.is_done():
        return False
    copy.wait()
    return True
