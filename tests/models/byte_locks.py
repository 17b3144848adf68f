"""Byte locks without a kernel: who holds which byte of which control object, and what `shm.files.locks` says of it.

`ByteLocks` answers like that module, with a `Description` where the product has a file descriptor; `modelled_locks`
puts it in its place in those modules of the product that the model runs. A process that dies loses all of its locks in
one instant, and its memory map with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast
from unittest import mock

from mmcached.shm.files import locks
from mmcached.shm.ring import reader, writer_rows

Byte = tuple[int, int]
"""Epoch of the control object, byte in it."""


class LockTable:
    """All locks of the host: byte -> holder -> whether it holds it exclusively."""

    def __init__(self, held: dict[Byte, dict[str, bool]] | None = None) -> None:
        self._held = held or {}

    def copy(self) -> LockTable:
        return LockTable({byte: dict(holders) for byte, holders in self._held.items()})

    def key(self) -> object:
        return tuple(sorted((byte, *sorted(holders.items())) for byte, holders in self._held.items()))

    def try_lock(self, byte: Byte, holder: str, *, is_exclusive: bool) -> bool:
        others = {other: kind for other, kind in self._held.get(byte, {}).items() if other != holder}
        if others and (is_exclusive or any(others.values())):
            return False
        self._held[byte] = others | {holder: is_exclusive}
        return True

    def is_free(self, byte: Byte, holder: str) -> bool:
        return not self._held.get(byte, {}).keys() - {holder}

    def release(self, holder: str, epoch: int | None = None) -> None:
        """Drop what a process holds, of one control object or of all."""
        for byte in [byte for byte, holders in self._held.items() if holder in holders and epoch in (None, byte[0])]:
            del self._held[byte][holder]
            if not self._held[byte]:
                del self._held[byte]


@dataclass(frozen=True, slots=True)
class Description:
    """One process's open control object."""

    table: LockTable
    epoch: int
    holder: str

    def as_fd(self) -> int:
        """Return this, as the product's classes carry it about: they never look at it."""
        return cast(int, self)


class ByteLocks:
    """In place of the module `mmcached.shm.files.locks`."""

    MAX_RANKS = locks.MAX_RANKS
    row_byte = staticmethod(locks.row_byte)
    engine_byte = staticmethod(locks.engine_byte)
    worker_byte = staticmethod(locks.worker_byte)

    @staticmethod
    def try_exclusive(fd: int, byte: int) -> bool:
        of = cast(Description, fd)
        return of.table.try_lock((of.epoch, byte), of.holder, is_exclusive=True)

    @staticmethod
    def try_shared(fd: int, byte: int) -> bool:
        of = cast(Description, fd)
        return of.table.try_lock((of.epoch, byte), of.holder, is_exclusive=False)

    @staticmethod
    def downgrade(fd: int, byte: int) -> None:
        ByteLocks.try_shared(fd, byte)

    @staticmethod
    def is_free(fd: int, byte: int) -> bool:
        of = cast(Description, fd)
        return of.table.is_free((of.epoch, byte), of.holder)


@contextlib.contextmanager
def modelled_locks() -> Iterator[None]:
    """Let the product's modules that the model runs ask `ByteLocks`."""
    with mock.patch.object(writer_rows, "locks", ByteLocks), mock.patch.object(reader, "locks", ByteLocks):
        yield
