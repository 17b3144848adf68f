"""Proves that a file's holder lives by the file's lock: the supervisor's seat, and each client's presence.

The kernel drops the lock with the process, however it ends. Time-outs play no part.
"""

from __future__ import annotations

import os
from pathlib import Path

from mmcached.shm.files.locks import is_free, try_exclusive
from mmcached.shm.files.own_file import open_own
from mmcached.wire.closeable import Closeable

_BYTE = 0


class LockFile(Closeable):
    """The exclusive lock of one file, held until `close` or death.

    Raises:
        BlockingIOError: another process holds it.
        OSError: there is no such directory (FileNotFoundError), or no regular file of this user.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = _open_locked(path)
        while not _is_still(path, self._fd):
            # `remove_if_free` took it between our open and our lock: what we have locked has no name any more.
            os.close(self._fd)
            self._fd = _open_locked(path)

    def write(self, text: str) -> None:
        """Say in the file who holds it, for those that are refused."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode(), 0)

    def close(self) -> None:
        """Remove the file and let go. A second call does nothing."""
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def remove_if_free(path: Path) -> bool:
    """Remove the file of a dead holder; return False, and change nothing, if it is held, gone, or no lock file."""
    try:
        fd = open_own(path)
    except OSError:
        return False
    try:
        # Only the holder of the lock may unlink: a process that is just making the file then sees that it is gone.
        if not try_exclusive(fd, _BYTE) or not _is_still(path, fd):
            return False
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def is_held(path: Path) -> bool:
    """Return whether this is a lock file, and another process or descriptor holds its lock. Takes nothing."""
    try:
        fd = open_own(path)
    except OSError:
        return False
    try:
        return not is_free(fd, _BYTE)
    except OSError:
        return False
    finally:
        os.close(fd)


def _open_locked(path: Path) -> int:
    fd = open_own(path, create=True)
    if not try_exclusive(fd, _BYTE):
        os.close(fd)
        raise BlockingIOError(f"{path} is locked by another process")
    return fd


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except OSError:
        return False
