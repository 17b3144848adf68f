"""Lists who plays in a run of chaos, as they are and with a rule of the ring taken away.

A mutant's books may be untrue, and are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

from mmcached.shm import ReaderEntry
from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.ring.nursery_table import NurseryTable
from mmcached.shm.ring.reader_watch import ReaderWatch
from mmcached.shm.ring.self_lease import SelfLease
from mmcached.wire.handle import Handle
from scripts.verification.chaos_layers import run_layer
from scripts.verification.chaos_roles import Role
from scripts.verification.chaos_store import run_client, run_store
from scripts.verification.mutants import Mutant
from tests.shm import integrity


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays in a run.

    Attributes:
        patched: what is done to the product in each process, for as long as it plays.
    """

    writer: Callable[[Role], None] = run_store
    reader: Callable[[Role], None] = run_client
    layer: Callable[[Role], None] = run_layer
    patched: Callable[[], AbstractContextManager[object]] = nullcontext


CASTS = {"as it is": Cast()}


def _patched(*patches: tuple[type, str, Callable[..., Any]]) -> Callable[[], AbstractContextManager[object]]:
    """Return what puts functions in the place of methods, and leaves a mutant's books unchecked."""

    def enter() -> ExitStack:
        stack = ExitStack()
        for owner, name, instead in (*patches, (integrity, "check_ring", _nothing)):
            stack.enter_context(mock.patch.object(owner, name, instead))
        return stack

    return enter


def _nothing(*_: object) -> None:
    """Takes the place of a method that does something."""


def _never_pinned(table: LeaseTable, slot: int) -> bool:
    return False


def _take_nothing(entry: ReaderEntry, leases: Sequence[SelfLease], look: Lookup) -> list[bool]:
    """Look again, as `ReaderEntry.take_leases` does, without a lease."""
    return [look.holds(lease.handle) and look.is_attached(entry.reader_id, entry.incarnation) for lease in leases]


_take = ReaderEntry.take_leases


def _take_and_give_back(entry: ReaderEntry, leases: Sequence[SelfLease], look: Lookup) -> list[bool]:
    """Give each lease back as soon as the record was found, as if its last view had died."""
    are_taken = _take(entry, leases, look)
    for lease in leases:
        entry.end(lease)
    return are_taken


_forget = NurseryTable.forget


def _forget_without_an_island(table: NurseryTable, handle: Handle, *, is_leased: bool) -> None:
    """Let the place of a record be used again, whoever reads it."""
    _forget(table, handle, is_leased=False)


def _adopt_nobody(watch: ReaderWatch, may_hold: object) -> list[int]:
    """Leave the readers of the life before as they are."""
    return []


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant("client-takes-no-lease", Cast(patched=_patched((ReaderEntry, "take_leases", _take_nothing)))),
        Mutant("store-ignores-taken-leases", Cast(patched=_patched((LeaseTable, "is_pinned", _never_pinned)))),
        Mutant("client-gives-back-early", Cast(patched=_patched((ReaderEntry, "take_leases", _take_and_give_back)))),
        Mutant("leased-place-is-granted", Cast(patched=_patched((NurseryTable, "forget", _forget_without_an_island)))),
        Mutant("successor-forgets-readers", Cast(patched=_patched((ReaderWatch, "adopt", _adopt_nobody)))),
    )
}
