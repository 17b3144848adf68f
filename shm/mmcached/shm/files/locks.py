"""Byte locks on the control object that last until their holder dies: Linux "open file description" (OFD) locks.

Meaning of each byte (bytes are only lock addresses; nothing is stored there, and they need not exist in the file):

    0        the writer lives
    1 + r    the reader of entry r lives


The kernel drops a lock when the last descriptor of its open file description is closed, also after `kill -9`, and only
after the dead process has lost its memory map: a free byte proves the death. `fork` shares the description and so keeps
the lock. Processes of the service are spawned, not forked; a client's forked child holds its parent's entry exactly as
long as it may read under the parent's leases. `mmap.mmap` keeps a duplicate of its descriptor: unlock before closing.

Knows nothing of rings. Never blocks.
"""

from __future__ import annotations

import fcntl
import os
import struct

WRITER_BYTE = 0

_FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid (0 for OFD locks)."""


def reader_byte(reader_id: int) -> int:
    return 1 + reader_id


def try_exclusive(fd: int, byte: int) -> bool:
    """Lock one byte; return False if another description holds it. Needs a read-write `fd`."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: POSIX allows either for "held elsewhere"
        return False
    return True


def unlock_all(fd: int) -> None:
    """Unlock every byte that this description holds, even while duplicates of `fd` stay open."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))


def is_free(fd: int, byte: int) -> bool:
    """Return whether no *other* description holds the byte; locks nothing, not even briefly."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, question))[0]
    return answer == fcntl.F_UNLCK
