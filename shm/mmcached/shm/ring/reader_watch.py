"""Attaches readers and detects their deaths, by the entries' incarnations and the kernel's byte locks.

The board in the data object shows the attached readers: only these may take leases by themselves. Death is read from
locks alone, never from silence: a process that is stopped for an hour and then goes on reading is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mmcached.shm.crash_points import crash_point
from mmcached.shm.files import locks
from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.segment.board import Board, fenced, incarnation_of
from mmcached.shm.segment.mapped import Control


@dataclass(frozen=True, slots=True)
class ReaderStopped:
    """This incarnation takes no more leases; its outstanding leases still pin."""

    reader_id: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReaderVoided:
    """The reader is dead, and its leases are void. May come without `ReaderStopped`."""

    reader_id: int
    incarnation: int


class ReaderWatch:
    """The writer's record of which readers are attached, frozen or dead."""

    def __init__(self, control: Control, leases: LeaseTable, board: Board) -> None:
        self._control = control
        self._leases = leases
        self._board = board
        self._unreported: list[ReaderStopped | ReaderVoided] = []

    def adopt(self, may_hold: Callable[[], Iterable[int]]) -> list[int]:
        """Take over the living readers of a former writer, and detach the others; return their entries.

        Args:
            may_hold: Returns the slots that stay pinned for a fenced reader, as for `LeaseTable.adopt`.
        """
        adopted = []
        for reader_id in range(self._control.layout.max_readers):
            attached = self._board.attached(reader_id)
            if not attached:
                continue
            incarnation, is_fenced = incarnation_of(attached)
            is_dead = locks.is_free(self._control.fd, locks.reader_byte(reader_id))
            if not is_dead and self._control.incarnation(reader_id) == incarnation:
                if not self._leases.adopt(reader_id, incarnation, is_fenced=is_fenced, may_hold=may_hold):
                    self._board.set_attached(reader_id, fenced(incarnation))
                adopted.append(reader_id)
            else:  # dead; if the entry has another incarnation, another reader has its byte
                self._board.set_attached(reader_id, 0)
        return adopted

    def attach(self, reader_id: int, incarnation: int) -> bool:
        """Accept a reader's Hello if it is true now; return whether it is attached. A repeated Hello changes nothing.

        A late Hello is refused: another incarnation has taken the entry, or the reader is dead already.
        """
        layout = self._control.layout
        if (
            not 0 <= reader_id < layout.max_readers
            or incarnation == 0
            or self._control.incarnation(reader_id) != incarnation
        ):
            return False
        former = self._leases.incarnations().get(reader_id)
        if former == incarnation:
            return not self._leases.is_frozen(reader_id)
        if locks.is_free(self._control.fd, locks.reader_byte(reader_id)):
            return False
        self._board.set_attached(reader_id, 0)
        if not self._leases.attach(reader_id, incarnation):
            return False
        self._board.set_attached(reader_id, incarnation)
        if former is not None:  # the new reader has the entry's byte, so the former one is dead
            self._unreported.append(ReaderVoided(reader_id, former))
        return True

    def poll_deaths(self) -> list[ReaderStopped | ReaderVoided]:
        """Check the locks and incarnations of all attached or frozen readers; return each change once."""
        events, self._unreported = self._unreported, []
        incarnations = self._leases.incarnations()
        for reader_id, incarnation in incarnations.items():
            events += self._judge(reader_id, incarnation)
        for reader_id, overrun in self._leases.fence_overruns().items():
            self._board.set_attached(reader_id, fenced(incarnations[reader_id]))
            reason = f"counts {overrun.returned} leases of slot {overrun.slot} as given back, of {overrun.taken}"
            events.append(ReaderStopped(reader_id, incarnations[reader_id], reason))
        return events

    def _judge(self, reader_id: int, incarnation: int) -> list[ReaderStopped | ReaderVoided]:
        if locks.is_free(self._control.fd, locks.reader_byte(reader_id)):
            crash_point("deaths.before_void")
            self._board.set_attached(reader_id, 0)
            self._leases.void(reader_id)
            return [ReaderVoided(reader_id, incarnation)]
        if self._leases.is_frozen(reader_id):
            return []
        if self._control.incarnation(reader_id) != incarnation:
            # Either a new reader has the byte, and the known one is dead; or it is a stray write. The new reader's
            # Hello, or the free byte, decides which; until then the leases stay.
            self._board.set_attached(reader_id, 0)
            self._leases.freeze(reader_id)
            return [
                ReaderStopped(
                    reader_id, incarnation, "another process has taken the entry, or has overwritten its incarnation"
                )
            ]
        return []
