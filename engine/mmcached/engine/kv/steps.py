"""The open step: blocks that it will publish, requests that rely on them, and blocks that it still uses.

    begin -> (being built) --launch--> (in flight) --end--> nothing open

A block that the step will fill is *reserved*: a request scheduled after its writer may share it, because the writer
will have written it by then. Blocks that a request returns while the step may use them are *fenced*: freed when the
step ends.

Invariant: at most one step is open, and reserved content is found in the order of reservation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmcached.engine.kv.pool.block_pool import BlockPool
from mmcached.engine.kv.request_blocks import RequestBlocks
from mmcached.engine.steps.request import Request, RequestId
from mmcached.wire.errors import LocalProtocolError

Run = tuple[int, int, int]
"""Consecutive blocks of one group: (group index, first position, end position)."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Blocks of one request that the step fills; `keys` is emptied if they must not be published."""

    request: Request
    held: RequestBlocks
    runs: list[Run]
    block_ids: list[int]
    keys: Sequence[bytes]


class Ended(NamedTuple):
    """Reservations, lost requests (in the order of scheduling) and fenced blocks (in the order of return) of a step."""

    reservations: list[Reservation]
    lost: list[RequestBlocks]
    fenced: list[list[int]]


class Steps:
    """The open step, if there is one; `reservations` (in the order of scheduling) and `fenced` are changed here only.

    Attributes:
        num_begun: number of steps begun so far; a request takes part in the open step if its `in_step` equals it.
        num_forgotten: counter that grows whenever reserved content may have become unfindable.
    """

    def __init__(self) -> None:
        self.num_begun = 0
        self.is_launched = False
        self.num_forgotten = 0
        self.reservations: list[Reservation] = []
        self.fenced: list[list[int]] = []
        self._step_id: int | None = None
        self._writers: dict[RequestBlocks, list[RequestBlocks]] = {}  # by the request that relies on their blocks
        self._reserved: dict[bytes, int] = {}
        self._num_indexed = 0

    @property
    def is_open(self) -> bool:
        return self._step_id is not None

    # ---- begin, launch, end

    def begin(self, step_id: int) -> None:
        """Open a step; raises `LocalProtocolError` if another step is open."""
        if self._step_id is not None:
            raise LocalProtocolError(f"step {step_id} cannot begin: step {self._step_id} has not ended")
        self._step_id = step_id
        self.num_begun += 1

    def launch(self, step_id: int) -> None:
        """Mark the step as handed to the workers; raises `LocalProtocolError` if it is not open, or launched."""
        if self._step_id != step_id or self.is_launched:
            state = ", launched" if self.is_launched else ""
            raise LocalProtocolError(f"step {step_id} cannot be launched: the open step is {self._step_id}{state}")
        self.is_launched = True

    def end(self, step_id: int) -> Ended:
        """Close the step and drop its reservations; raises `LocalProtocolError`, with no change, if it is not open."""
        if self._step_id != step_id:
            raise LocalProtocolError(f"step {step_id} cannot end: the open step is {self._step_id}")
        ended = Ended(self.reservations, list(self._writers), self.fenced)
        self._step_id = None
        self.is_launched = False
        self._writers = {}
        self.fenced = []
        self._replace_reservations([])
        return ended

    # ---- requests in the step

    def add_request(self, held: RequestBlocks) -> None:
        """Note that a request is given slots; no effect on steps that begin later."""
        held.in_step = self.num_begun

    def takes_part(self, held: RequestBlocks) -> bool:
        """Return whether a request was given slots in the open step."""
        return self._step_id is not None and held.in_step == self.num_begun

    def check_can_join(self, request_id: RequestId) -> None:
        """Raise `LocalProtocolError` if the open step is in flight, so that no request can be added."""
        if self.is_launched:
            raise LocalProtocolError(f"request {request_id}: slots requested while step {self._step_id} is in flight")

    def check_can_leave(self, held: RequestBlocks) -> None:
        """Raise `LocalProtocolError` if other requests share blocks that this one would write in the step.

        Only while the step is being built; once it is in flight, its blocks will be written.
        """
        if self._writers and not self.is_launched:
            sharers = [
                sharer.request_id for sharer, writers in self._writers.items() if held in writers and sharer is not held
            ]
            if sharers:
                blocks = f"blocks that request {held.request_id} would write in step {self._step_id}"
                raise LocalProtocolError(f"requests {sorted(sharers)} share {blocks}: free them first")

    def remove_request(self, held: RequestBlocks) -> None:
        """Remove a request that is being freed from the step, unless the step is in flight."""
        self._writers.pop(held, None)
        if self.takes_part(held) and not self.is_launched:
            held.in_step = 0
            kept = [each for each in self.reservations if each.held is not held]
            if len(kept) < len(self.reservations):
                self._replace_reservations(kept)

    def give_back(self, pool: BlockPool, held: RequestBlocks, block_ids: list[int]) -> None:
        """Free a request's blocks: now, or at the end of the step if the request takes part in it."""
        if self.takes_part(held):
            self.fenced.append(block_ids)
        else:
            pool.free_blocks(block_ids)

    # ---- reservations

    def reserve(self, reservation: Reservation) -> None:
        self.reservations.append(reservation)

    @property
    def reserved(self) -> dict[bytes, int]:
        """Reserved blocks by content key; callers must not change it."""
        if self._num_indexed < len(self.reservations):
            for each in self.reservations[self._num_indexed :]:
                for key, block_id in zip(each.keys, each.block_ids, strict=False):
                    self._reserved.setdefault(key, block_id)
            self._num_indexed = len(self.reservations)
        return self._reserved

    def is_reserved(self, block_id: int, key: bytes) -> bool:
        return any(
            pair == (block_id, key)
            for each in self.reservations
            for pair in zip(each.block_ids, each.keys, strict=False)
        )

    def writes_block(self, block_id: int) -> bool:
        return any(block_id in each.block_ids for each in self.reservations)

    def reserves_for(self, held: RequestBlocks) -> bool:
        return any(each.held is held for each in self.reservations)

    def note_hit_taken(self, borrower: RequestBlocks) -> None:
        """Record the writers of the reserved blocks in a new request's prefix hit."""
        if self.reservations:
            taken = {block_id for table in borrower.tables for block_id in table}
            writers = [each.held for each in self.reservations if not taken.isdisjoint(each.block_ids)]
            if writers:
                self._writers[borrower] = writers

    def note_window_moved(self, held: RequestBlocks) -> None:
        """Record that a request in the step cannot recompute its tokens: its window has returned blocks they need."""
        if self.takes_part(held):
            self._writers.setdefault(held, []).append(held)

    def forget_reservations(self) -> None:
        """Drop all reservations, so that nothing of them is published; the step goes on."""
        for each in self.reservations:
            each.keys = []
        self._replace_reservations(self.reservations)

    def _replace_reservations(self, reservations: list[Reservation]) -> None:
        self.reservations = reservations
        self.num_forgotten += 1
        self._reserved = {}
        self._num_indexed = 0
