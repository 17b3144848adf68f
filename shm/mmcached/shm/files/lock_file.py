"""Lock file that proves that its holder lives: used for a supervisor's run directory and for each client's presence.

The kernel drops the lock when the process ends, for any reason. No time-outs are involved.
"""

from __future__ import annotations

import os
from pathlib import Path

from mmcached.shm.files.locks import is_free, try_exclusive
from mmcached.shm.files.own_file import open_own
from mmcached.wire.closeable import Closeable

_BYTE = 0


class LockFile(Closeable):
    """Exclusive lock of one file, held until `close` or the death of the process.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: The directory is missing (FileNotFoundError), or the path is not a regular file of this user.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = _open_locked(path)
        while not _is_still(path, self._fd):
            # `remove_if_free` unlinked the file between our open and our lock: the file that we have locked has no
            # name.
            os.close(self._fd)
            self._fd = _open_locked(path)

    def write(self, text: str) -> None:
        """Write the holder's description into the file, for processes that fail to lock it."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode(), 0)

    def close(self) -> None:
        """Remove the file and release the lock. A second call does nothing."""
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def remove_if_free(path: Path) -> bool:
    """Remove the file of a dead holder; return False, unchanged, if it is held, missing, or not a file of this user."""
    try:
        fd = open_own(path)
    except OSError:
        return False
    try:
        # Only the holder of the lock may unlink: a process that opens the file now sees after its lock that the name is
        # gone.
        if not try_exclusive(fd, _BYTE) or not _is_still(path, fd):
            return False
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def is_held(path: Path) -> bool:
    """Return whether another process or descriptor holds the lock of this file; takes no lock."""
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
