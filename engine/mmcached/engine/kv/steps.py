"""Keeps what the step that has begun and not ended will publish, who counts on that, and which blocks it still uses.

    begin -> (being built) --launch--> (in flight) --end--> nothing open

A block that the step is going to fill is *reserved*: a request that is scheduled after its writer may take it over,
because the writer will have written it by then. Blocks that a request gives back while the step may use them wait
behind a *fence* until the step has ended.

Knows nothing of tokens, or of what block hashes mean. Invariant: at most one step is open, and reserved content is
found in the order of reservation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmcached.engine.kv.pool.block_pool import BlockPool
from mmcached.engine.kv.request_blocks import RequestBlocks
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import LocalProtocolError

Run = tuple[int, int, int]
"""Consecutive blocks of one group: its index, the position of the first, the position behind the last."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Blocks of one request that the step fills, and their content keys, group after group.

    Attributes:
        runs: positions of the blocks, one run or more for each group that has any.
        keys: content keys; empty once nothing of the reservation is to be published.
    """

    request: Request
    held: RequestBlocks
    runs: list[Run]
    block_ids: list[int]
    keys: Sequence[bytes]


class Ended(NamedTuple):
    """What an ended step leaves behind.

    Attributes:
        lost: requests that rely on something computed in the step, in the order of scheduling.
        fenced: lists of blocks to be freed, in the order in which they were given back.
    """

    reservations: list[Reservation]
    lost: list[RequestBlocks]
    fenced: list[list[int]]


class Steps:
    """The open step, if there is one.

    Attributes:
        num_begun: number of steps begun so far; a request takes part in the open step if its `in_step` equals it.
        is_launched: whether the open step has been handed to the workers.
        num_forgotten: a number that grows whenever something reserved may be found here no longer.
        reservations: those of the open step, in the order of scheduling; changed here only.
        fenced: blocks that wait for the open step to end; changed here only.
    """

    def __init__(self) -> None:
        self.num_begun = 0
        self.is_launched = False
        self.num_forgotten = 0
        self.reservations: list[Reservation] = []
        self.fenced: list[list[int]] = []
        self._step_id: int | None = None
        self._writers: dict[RequestBlocks, list[RequestBlocks]] = {}  # by who relies on what they compute in the step
        self._reserved: dict[bytes, int] = {}
        self._num_indexed = 0

    @property
    def is_open(self) -> bool:
        return self._step_id is not None

    # ---- the life of a step

    def begin(self, step_id: int) -> None:
        """Open a step.

        Raises:
            LocalProtocolError: another one is open.
        """
        if self._step_id is not None:
            raise LocalProtocolError(f"step {step_id} cannot begin: step {self._step_id} has not ended")
        self._step_id = step_id
        self.num_begun += 1

    def launch(self, step_id: int) -> None:
        """Mark the open step as handed to the workers.

        Raises:
            LocalProtocolError: this step is not open, or was launched before.
        """
        if self._step_id != step_id or self.is_launched:
            state = ", launched" if self.is_launched else ""
            raise LocalProtocolError(f"step {step_id} cannot be launched: open is {self._step_id}{state}")
        self.is_launched = True

    def end(self, step_id: int) -> Ended:
        """Close the step and return what it leaves behind; reserved content is no longer found here.

        Raises:
            LocalProtocolError: this step is not open; nothing has changed.
        """
        if self._step_id != step_id:
            raise LocalProtocolError(f"step {step_id} cannot end: open is {self._step_id}")
        ended = Ended(self.reservations, list(self._writers), self.fenced)
        self._step_id = None
        self.is_launched = False
        self._writers = {}
        self.fenced = []
        self._replace_reservations([])
        return ended

    # ---- taking part

    def join(self, held: RequestBlocks) -> None:
        """Note that a request is given slots; without an open step this means nothing."""
        held.in_step = self.num_begun

    def check_can_join(self, request_id: int) -> None:
        """Raise `LocalProtocolError` if a step is in flight, so that none can take up another request."""
        if self.is_launched:
            raise LocalProtocolError(f"request {request_id}: slots asked for while step {self._step_id} is in flight")

    def check_can_leave(self, held: RequestBlocks) -> None:
        """Raise `LocalProtocolError` if others share what a request would write in the step that is being built."""
        if self._writers and not self.is_launched:
            sharers = [who.request_id for who, writers in self._writers.items() if held in writers and who is not held]
            if sharers:
                what = f"what request {held.request_id} would write in step {self._step_id}"
                raise LocalProtocolError(f"requests {sorted(sharers)} share {what}: free them first")

    def leave(self, held: RequestBlocks) -> None:
        """Take a request that gives up its blocks out of the step, unless that is in flight."""
        self._writers.pop(held, None)
        if self._takes_part(held) and not self.is_launched:
            held.in_step = 0
            kept = [each for each in self.reservations if each.held is not held]
            if len(kept) < len(self.reservations):
                self._replace_reservations(kept)

    def give_back(self, pool: BlockPool, held: RequestBlocks, block_ids: list[int]) -> None:
        """Free a request's blocks: now, or when the step ends in which it takes part."""
        if self._takes_part(held):
            self.fenced.append(block_ids)
        else:
            pool.free_blocks(block_ids)

    # ---- reserving, and relying on it

    def reserve(self, reservation: Reservation) -> None:
        self.reservations.append(reservation)

    @property
    def reserved(self) -> dict[bytes, int]:
        """Block by content key, for all that is reserved; not to be changed by callers."""
        if self._num_indexed < len(self.reservations):
            for each in self.reservations[self._num_indexed :]:
                for key, block_id in zip(each.keys, each.block_ids, strict=False):
                    self._reserved.setdefault(key, block_id)
            self._num_indexed = len(self.reservations)
        return self._reserved

    def is_reserved(self, block_id: int, key: bytes) -> bool:
        """Return whether the step is going to fill a block with this content."""
        return any(
            pair == (block_id, key)
            for each in self.reservations
            for pair in zip(each.block_ids, each.keys, strict=False)
        )

    def reserves_for(self, held: RequestBlocks) -> bool:
        """Return whether the step is going to fill blocks of this request."""
        return any(each.held is held for each in self.reservations)

    def note_hit_taken(self, borrower: RequestBlocks) -> None:
        """Note which writers a request relies on whose tables begin with its hit."""
        if self.reservations:
            taken = {block_id for table in borrower.tables for block_id in table}
            writers = [each.held for each in self.reservations if not taken.isdisjoint(each.block_ids)]
            if writers:
                self._writers[borrower] = writers

    def note_window_moved(self, held: RequestBlocks) -> None:
        """Note that a request has given back blocks which only its tokens in the step, if any, look at."""
        if self._takes_part(held):
            self._writers.setdefault(held, []).append(held)

    def forget_reservations(self) -> None:
        """Publish nothing that is reserved now; the step goes on."""
        for each in self.reservations:
            each.keys = []
        self._replace_reservations(self.reservations)

    def _takes_part(self, held: RequestBlocks) -> bool:
        return self._step_id is not None and held.in_step == self.num_begun

    def _replace_reservations(self, reservations: list[Reservation]) -> None:
        self.reservations = reservations
        self.num_forgotten += 1
        self._reserved = {}
        self._num_indexed = 0
