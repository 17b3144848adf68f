"""Locks bytes of the control object until their holder dies: Linux "open file description" (OFD) locks.

Which byte means what (bytes are only lock addresses; nothing is stored there, and they need not exist in the file):

    0                    the writer lives              exclusive, by the writer
    1 … R                entry r is in use               shared, by the engine of the entry and by its workers
    R+1 … 2R             the engine of entry r lives     exclusive, by that engine
    2R+1 …               the worker of (entry, rank)     exclusive, by that worker; 16 ranks per entry

>>> R = 8
>>> WRITER_BYTE, reader_byte(0), engine_byte(0, R), worker_byte(0, 0, R), worker_byte(0, 15, R), worker_byte(1, 0, R)
(0, 1, 9, 17, 32, 33)

The kernel drops a lock when the last descriptor of its open file description is closed, so also at `kill -9`, and only
after the dead process has lost its memory map: a free byte is a death certificate. `fork` shares the description and
keeps the lock: our own processes are spawned, and a client's forked child holds its parent's entry for exactly as long
as it may read under its leases. `mmap.mmap` keeps a duplicate of its descriptor: unlock before closing.

Knows nothing of rings. Never blocks.
"""

from __future__ import annotations

import fcntl
import os
import struct

MAX_RANKS = 16
WRITER_BYTE = 0

_FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid (0 for OFD locks)."""


def reader_byte(reader_id: int) -> int:
    return 1 + reader_id


def engine_byte(reader_id: int, max_readers: int) -> int:
    return 1 + max_readers + reader_id


def worker_byte(reader_id: int, rank: int, max_readers: int) -> int:
    return 1 + 2 * max_readers + reader_id * MAX_RANKS + rank


def try_exclusive(fd: int, byte: int) -> bool:
    """Lock one byte against everybody; False if another description holds it in any way. Needs a read-write `fd`."""
    return _try(fd, fcntl.F_WRLCK, byte)


def try_shared(fd: int, byte: int) -> bool:
    """Lock one byte against exclusive locks; False if another description holds one."""
    return _try(fd, fcntl.F_RDLCK, byte)


def downgrade(fd: int, byte: int) -> None:
    """Turn this description's exclusive lock into a shared one, in one step: the byte is never free."""
    if not _try(fd, fcntl.F_RDLCK, byte):
        raise BlockingIOError(f"byte {byte} was not held exclusively")


def unlock(fd: int, byte: int) -> None:
    """Let go of one byte; nothing happens if it was not held."""
    _try(fd, fcntl.F_UNLCK, byte)


def unlock_all(fd: int) -> None:
    """Let go of every byte of this description, also while duplicates of `fd` stay open."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))


def is_free(fd: int, byte: int) -> bool:
    """Return whether no *other* description holds the byte; takes nothing, not even for a moment."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, question))[0]
    return answer == fcntl.F_UNLCK


def _try(fd: int, kind: int, byte: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: POSIX allows either for "held elsewhere"
        return False
    return True
