"""The writer's side of the rows: who is attached, what was granted to whom, and who has died.

Joins the books (`leases`) with the control object: the rows' nonces and the byte locks. The writer writes nothing
there: a row's words belong to its reader. Death is read from locks alone, never from silence: a process that is
stopped for an hour and then goes on reading is alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmcached.shm.crash_points import crash_point
from mmcached.shm.files import locks
from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.segment.mapped import Control
from mmcached.wire.handle import LeaseId
from mmcached.wire.messages.parts import Barrier


@dataclass(frozen=True, slots=True)
class RowStopped:
    """Nothing more is granted to this incarnation; its leases still pin. `reason` is for people."""

    row: int
    nonce: int
    reason: str


@dataclass(frozen=True, slots=True)
class RowVoided:
    """All that could read under this incarnation's leases are dead: they are void. May come without `RowStopped`."""

    row: int
    nonce: int


class WriterRows:
    """All rows of one ring, as its writer sees them."""

    def __init__(self, control: Control, *, quota_bytes: int | None = None, shared_bytes: int | None = None) -> None:
        self._control = control
        self._leases = LeaseTable(control.cells(), quota_bytes=quota_bytes, shared_bytes=shared_bytes)
        self._num_lost = 0
        self._unreported: list[RowStopped | RowVoided] = []

    def attach(self, row: int, nonce: int) -> bool:
        """Accept a reader's Hello if it is true now; a repeated one changes nothing.

        Refused is: a Hello that arrives late, when another incarnation has taken the row or the engine is dead already.

        Returns:
            whether this incarnation is attached.
        """
        layout = self._control.layout
        if not 0 <= row < layout.max_rows or nonce == 0 or self._nonce_in_row(row) != nonce:
            return False
        former = self._leases.nonce(row)
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

    @property
    def num_lost(self) -> int:
        """Leases that barriers have found lost, ever."""
        return self._num_lost

    def grant(self, row: int, slot: int, nbytes: int) -> LeaseId:
        """Count one lease. Raises PeerGone or LeaseRefused as `LeaseTable.grant` does."""
        return self._leases.grant(row, slot, nbytes)

    def undo_grant(self, row: int, slot: int, lease: LeaseId) -> None:
        self._leases.undo(row, slot, lease)

    def open_barrier(self, row: int) -> Barrier | None:
        return self._leases.open_barrier(row)

    def reconcile(self, row: int, nonce: int, barrier_id: int, received: Mapping[int, int]) -> int | None:
        lost = self._leases.reconcile(row, nonce, barrier_id, received)
        self._num_lost += lost or 0
        return lost

    def fenced_rows(self) -> list[int]:
        return self._leases.fenced_rows()

    def grantable_rows(self) -> list[int]:
        return self._leases.grantable_rows()

    def is_pinned(self, slot: int) -> bool:
        return self._leases.is_pinned(slot)

    def pinned_slots(self) -> set[int]:
        return self._leases.pinned_slots()

    def num_leases(self) -> int:
        return self._leases.num_leases()

    def poll_deaths(self) -> list[RowStopped | RowVoided]:
        """Look at the locks of all attached rows; return what has changed, each change once."""
        events, self._unreported = self._unreported, []
        for row in self._leases.attached_rows():
            events += self._judge(row)
        for row, overrun in self._leases.fence_overruns().items():
            reason = f"counts {overrun.returned} leases of slot {overrun.slot} as given back, of {overrun.granted}"
            events.append(RowStopped(row, self._nonce(row), reason))
        return events

    def check_integrity(self) -> None:
        """Raises InvariantError as `LeaseTable.check_integrity` does."""
        self._leases.check_integrity()

    def _judge(self, row: int) -> list[RowStopped | RowVoided]:
        fd, max_rows = self._control.fd, self._control.layout.max_rows
        nonce = self._nonce(row)
        if locks.is_free(fd, locks.row_byte(row)):  # the last holder is gone
            crash_point("deaths.before_void")
            self._leases.void(row)
            return [RowVoided(row, nonce)]
        if self._leases.is_frozen(row):
            return []
        if self._nonce_in_row(row) != nonce:
            # A new engine has had the byte exclusively, and all of the life that we know are dead; or it is a stray
            # write. The new one's Hello, or the free byte, tells which; until then the leases stay.
            self._leases.freeze(row)
            return [RowStopped(row, nonce, "another process has taken the row, or has overwritten its nonce")]
        if not self._leases.is_stopped(row) and locks.is_free(fd, locks.engine_byte(row, max_rows)):
            self._leases.stop(row)
            return [RowStopped(row, nonce, "its engine is dead")]
        return []

    def _nonce(self, row: int) -> int:
        nonce = self._leases.nonce(row)
        assert nonce is not None  # only asked about attached rows
        return nonce

    def _nonce_in_row(self, row: int) -> int:
        return self._control.nonce(row)
