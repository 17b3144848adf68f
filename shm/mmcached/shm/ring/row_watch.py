"""Accepts readers' Hellos and sees which readers have died, by the rows' nonces and the kernel's byte locks.

Writes no word: a row's words belong to its reader. Death is read from locks alone, never from silence: a process that
is stopped for an hour and then goes on reading is alive.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.shm.crash_points import crash_point
from mmcached.shm.files import locks
from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.segment.mapped import Control


@dataclass(frozen=True, slots=True)
class RowStopped:
    """Nothing more is granted to this incarnation; its leases still pin."""

    row: int
    nonce: int
    reason: str


@dataclass(frozen=True, slots=True)
class RowVoided:
    """All that could read under this incarnation's leases are dead: they are void. May come without `RowStopped`."""

    row: int
    nonce: int


class RowWatch:
    def __init__(self, control: Control, leases: LeaseTable) -> None:
        self._control = control
        self._leases = leases
        self._unreported: list[RowStopped | RowVoided] = []

    def attach(self, row: int, nonce: int) -> bool:
        """Accept a reader's Hello if it is true now; return whether it is attached. A repeated one changes nothing.

        Refused is a Hello that arrives late, when another incarnation has taken the row or the engine is dead already.
        """
        layout = self._control.layout
        if not 0 <= row < layout.max_rows or nonce == 0 or self._control.nonce(row) != nonce:
            return False
        former = self._leases.incarnations().get(row)
        if former == nonce:
            return self._leases.takes_leases(row)
        # The row's nonce is this one, so whoever holds the engine's byte is this engine: it locked it before its Hello.
        if locks.is_free(self._control.fd, locks.engine_byte(row, layout.max_rows)):
            return False
        if not self._leases.attach(row, nonce):
            return False
        if former is not None:  # the new engine has had the row's byte exclusively: all of the former life are dead
            self._unreported.append(RowVoided(row, former))
        return True

    def poll_deaths(self) -> list[RowStopped | RowVoided]:
        """Look at the locks and cells of all rows with an incarnation; return the changes, each once."""
        events, self._unreported = self._unreported, []
        nonces = self._leases.incarnations()
        for row, nonce in nonces.items():
            events += self._judge(row, nonce)
        for row, overrun in self._leases.fence_overruns().items():
            reason = f"counts {overrun.returned} leases of slot {overrun.slot} as given back, of {overrun.granted}"
            events.append(RowStopped(row, nonces[row], reason))
        return events

    def _judge(self, row: int, nonce: int) -> list[RowStopped | RowVoided]:
        fd, max_rows = self._control.fd, self._control.layout.max_rows
        if locks.is_free(fd, locks.row_byte(row)):  # the last holder is gone
            crash_point("deaths.before_void")
            self._leases.void(row)
            return [RowVoided(row, nonce)]
        if self._leases.is_frozen(row):
            return []
        if self._control.nonce(row) != nonce:
            # A new engine has had the byte exclusively, and all of the life that we know are dead; or it is a stray
            # write. The new one's Hello, or the free byte, tells which; until then the leases stay.
            self._leases.freeze(row)
            return [RowStopped(row, nonce, "another process has taken the row, or has overwritten its nonce")]
        if not self._leases.is_stopped(row) and locks.is_free(fd, locks.engine_byte(row, max_rows)):
            self._leases.stop(row)
            return [RowStopped(row, nonce, "its engine is dead")]
        return []
