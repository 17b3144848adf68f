"""Steps that have begun and not ended: what they will publish, who counts on that, and which blocks they still use.

A block that a step is going to fill is *reserved*: a request that is scheduled after its writer may take it over, since
the writer will have written it by then. While the step is being built, a writer can still be taken out of it, so the
step remembers who has taken over what. Once launched, a step writes and reads what it has been given, whatever becomes
of the requests: blocks that these give back wait behind a *fence* until the newest such step has ended.

Knows nothing of tokens, or of what digests mean. Invariant: reserved content is found in the order of reservation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmcached.engine.kv.pool.block_pool import BlockPool
from mmcached.engine.kv.request_blocks import RequestBlocks
from mmcached.engine.steps.request import Request
from mmcached.engine.steps.step_queue import QueuedStep, StepQueue
from mmcached.wire.errors import LocalProtocolError

Run = tuple[int, int, int]
"""Blocks of one group that follow each other: its index, and the positions of the first and behind the last."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Blocks of one request that a step fills, and their content keys, group after group.

    Attributes:
        runs: where they stand, one for each group that has any.
        keys: empty once nothing of it is to be published any more.
    """

    request: Request
    held: RequestBlocks
    runs: list[Run]
    block_ids: list[int]
    keys: Sequence[bytes]


class Step(QueuedStep):
    """One step.

    Attributes:
        takes_part: who was given slots in it.
        reservations: in the order of scheduling.
        fenced: blocks that were given back while the step may use them, and by whom, in the order of giving back.
    """

    __slots__ = ("fenced", "reservations", "takes_part")

    def __init__(self, step_id: int) -> None:
        super().__init__(step_id)
        self.takes_part: set[RequestBlocks] = set()
        self.reservations: list[Reservation] = []
        self.fenced: list[tuple[RequestBlocks, list[int]]] = []


class _Nobody:
    """Who takes part while steps are in flight and none is being built."""

    def add(self, held: RequestBlocks) -> None:
        raise _between_steps(held.request_id)


class Steps:
    """All steps that have not ended, the oldest first.

    Attributes:
        newest: the last that was begun; None if all have ended.
        takes_part: `add` says that a request is given slots; None while there are no steps at all.
        num_forgotten: grows whenever something reserved is taken back.
    """

    def __init__(self) -> None:
        self.newest: Step | None = None
        self.takes_part: set[RequestBlocks] | _Nobody | None = None
        self.num_forgotten = 0
        self._queue: StepQueue[Step] = StepQueue()
        self._relied_on: list[tuple[Reservation | Step, RequestBlocks]] = []  # in the order of scheduling
        self._reserved: dict[bytes, int] = {}
        self._not_indexed: list[Reservation] = []

    def __iter__(self) -> Iterator[Step]:
        return iter(self._queue)

    @property
    def building(self) -> Step | None:
        """The step that is being built, if any."""
        return self._queue.building

    # ---- the life of a step, see `StepQueue`

    def begin(self, step_id: int) -> None:
        self._queue.begin(Step(step_id))
        self._update()

    def launch(self, step_id: int) -> None:
        self._queue.launch(step_id)
        self._update()

    def end_oldest(self, step_id: int) -> Step:
        """Take out the oldest step; what it reserved is no longer found here.

        Raises:
            LocalProtocolError: another one is the oldest; nothing has changed.
        """
        step = self._queue.end_oldest(step_id)
        if self._relied_on:
            done = _all_of([step])
            self._relied_on = [pair for pair in self._relied_on if pair[0] not in done]
        self._update()
        self._index_anew()
        return step

    def end_from(self, step_id: int) -> tuple[list[Step], list[RequestBlocks]]:
        """Take out this step and all that were begun later; what they reserved is gone.

        Returns:
            The steps, and those who rely on what would have been computed in them.

        Raises:
            LocalProtocolError: it has ended, or was never begun; nothing has changed.
        """
        ended = self._queue.end_from(step_id)
        self._update()
        self.num_forgotten += 1
        self._index_anew()
        gone = _all_of(ended)
        lost = {who: None for what, who in self._relied_on if what in gone}
        self._relied_on = [pair for pair in self._relied_on if pair[0] not in gone]
        return ended, list(lost)

    # ---- what is reserved

    def reserve(self, step: Step, reservation: Reservation) -> None:
        step.reservations.append(reservation)
        self._not_indexed.append(reservation)

    @property
    def reserved(self) -> dict[bytes, int]:
        """Block by content key, for all that is reserved. Not to be changed by others."""
        if self._not_indexed:
            self._index()
        return self._reserved

    def is_reserved(self, block_id: int, key: bytes) -> bool:
        """Return whether a step is going to fill a block with this content."""
        reservations = [each for step in self._queue for each in step.reservations]
        return any(
            pair == (block_id, key) for each in reservations for pair in zip(each.block_ids, each.keys, strict=False)
        )

    def reserves_for(self, held: RequestBlocks) -> bool:
        """Return whether a step is going to fill blocks of this request."""
        return any(reservation.held is held for step in self._queue for reservation in step.reservations)

    def note_loans(self, borrower: RequestBlocks) -> None:
        """A request that is scheduled now has taken over its hit; perhaps some of that is only reserved."""
        if self.newest is None or not self.reserved:
            return
        taken = frozenset(block_id for table in borrower.tables for block_id in table)
        for step in self._queue:
            for reservation in step.reservations:
                if not taken.isdisjoint(reservation.block_ids):
                    self._relied_on.append((reservation, borrower))

    def note_window_moved(self, held: RequestBlocks) -> None:
        """A request has given back what only tokens that are in flight still look at: these must be computed."""
        self._relied_on += [(step, held) for step in self._queue if held in step.takes_part]

    def check_can_take_part(self, request_id: int) -> None:
        """Return if slots may be given: a step is being built, or there are no steps at all.

        Raises:
            LocalProtocolError: steps are in flight, and none is being built.
        """
        if self.newest is not None and self.newest.is_launched:
            raise _between_steps(request_id)

    def forget_reservations(self) -> None:
        """Nothing that is reserved now will be published; the steps go on."""
        for step in self._queue:
            for reservation in step.reservations:
                reservation.keys = []
        self.num_forgotten += 1
        self._index_anew()

    # ---- taking one request out

    def borrowers(self, held: RequestBlocks) -> list[RequestBlocks]:
        """Return, last first, who counts on what this request would write in the step being built, directly or not."""
        if self.building is None:
            return []
        lost = {held: None}
        for what, who in self._relied_on:
            if isinstance(what, Reservation) and what.held in lost and what in self.building.reservations:
                lost[who] = None
        return [*lost][:0:-1]

    def leave(self, held: RequestBlocks) -> None:
        """A request that nobody counts on gives up all it has, and its place in the step being built."""
        if self.newest is None:
            return
        self._relied_on = [pair for pair in self._relied_on if pair[1] is not held]
        step = self.building
        if step is not None and held in step.takes_part:
            step.takes_part.discard(held)
            if any(reservation.held is held for reservation in step.reservations):
                step.reservations = [each for each in step.reservations if each.held is not held]
                self.num_forgotten += 1
                self._index_anew()

    def give_back(self, pool: BlockPool, held: RequestBlocks, block_ids: list[int]) -> None:
        """Free a request's blocks; if a step that has not ended may use them, when the newest such has."""
        for step in reversed(self._queue):
            if held in step.takes_part:
                step.fenced.append((held, block_ids))
                return
        pool.free_blocks(block_ids)

    def _update(self) -> None:
        self.newest = self._queue.newest
        if self.newest is None:
            self.takes_part = None
        else:
            self.takes_part = _Nobody() if self.newest.is_launched else self.newest.takes_part

    def _index_anew(self) -> None:
        self._reserved = {}
        self._not_indexed = [reservation for step in self._queue for reservation in step.reservations]

    def _index(self) -> None:
        for reservation in self._not_indexed:
            for key, block_id in zip(reservation.keys, reservation.block_ids, strict=False):
                self._reserved.setdefault(key, block_id)
        self._not_indexed = []


def _between_steps(request_id: int) -> LocalProtocolError:
    return LocalProtocolError(f"request {request_id}: slots asked for between two steps; begin one first")


def _all_of(steps: Sequence[Step]) -> set[Reservation | Step]:
    """Return the steps and what they have reserved."""
    return {*steps, *(reservation for step in steps for reservation in step.reservations)}
