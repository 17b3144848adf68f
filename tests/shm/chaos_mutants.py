"""Rules of the ring taken away, one at a time, so that a chaos run can show that it would have seen it.

Patched or subclassed here, in the forked child; the product knows nothing of them.
"""

from __future__ import annotations

import time
from typing import Literal, get_args
from unittest import mock

from mmcached.shm import RingReader, RingWriter
from mmcached.shm.ring.writer_rows import WriterRows
from mmcached.wire.handle import Handle
from tests.shm.chaos_reader import ChaosReader, run_reader
from tests.shm.chaos_roles import Role
from tests.shm.chaos_writer import ChaosWriter, run_writer

Mutant = Literal["allocator-ignores-leases", "early-give-back", "revoke-on-timeout"]
MUTANTS: tuple[Mutant, ...] = get_args(Mutant)
TIMEOUT_S = 0.15


class EarlyReader(ChaosReader):
    """Gives a lease back when it arrives, and goes on reading."""

    def receive(self, reader: RingReader, handle: Handle) -> None:
        super().give_back(handle)
        super().receive(reader, handle)

    def give_back(self, handle: Handle) -> None:
        """The usual time; it is back already."""


class RevokingWriter(ChaosWriter):
    """Takes the leases of a row back that has returned nothing for a while: it must be dead."""

    def look_at_rows(self) -> None:
        super().look_at_rows()
        leases = self.ring._rows._leases
        for row in leases.attached_rows():
            returned, now = int(leases._returned[row].sum()), time.monotonic()
            last, since = self._row_to_progress.get(row, (-1, now))
            self._row_to_progress[row] = (returned, since if returned == last else now)
            nonce = leases.nonce(row)
            if returned == last and now - since > TIMEOUT_S and nonce is not None:
                leases.void(row)
                leases.attach(row, nonce)

    _row_to_progress: dict[int, tuple[int, float]] = {}  # noqa: RUF012 - one writer per process


def run_mutant_writer(role: Role, mutant: Mutant) -> None:
    """Run the writer, without the rule if it is one of the writer's. Its books may be untrue, and are not checked."""
    with mock.patch.object(RingWriter, "check_integrity"):
        match mutant:
            case "allocator-ignores-leases":
                with mock.patch.object(WriterRows, "is_pinned", return_value=False):
                    run_writer(role)
            case "revoke-on-timeout":
                run_writer(role, RevokingWriter)
            case "early-give-back":
                run_writer(role)


def run_mutant_reader(role: Role, mutant: Mutant) -> None:
    """Run the reader, without the rule if it is the reader's."""
    run_reader(role, EarlyReader if mutant == "early-give-back" else ChaosReader)
