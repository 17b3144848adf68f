"""The lock that proves that a client lives: the frontend ends what the dead have left open.

    <run dir>/clients/<client_id>.lock      held for the client's life; free = dead

A run directory may be removed and made anew under a living client; then the lock has no name any more, and is taken
again. A forked child shares the lock with its parent: it lets go of its descriptor, and leaves lock and name alone.
"""

from __future__ import annotations

import os

from mmcached.shm.lock_file import LockFile
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.paths import RunDir


class Presence:
    """The presence of one client, from now until `close` or death.

    Raises:
        ServiceUnavailable: no service has ever run in that directory.
    """

    def __init__(self, directory: RunDir, client_id: str) -> None:
        self._directory = directory
        self._path = directory.client_lock(client_id)
        self._lock = self._take()

    def renew(self) -> None:
        """Take the lock again if its name is gone; else change nothing.

        Raises:
            ServiceUnavailable: the run directory is gone.
        """
        if not self._lock.is_named():
            former, self._lock = self._lock, self._take()
            former.forget()

    def abandon(self) -> None:
        """Let go of a parent's presence in a forked child; the parent keeps it."""
        self._lock.forget()

    def close(self) -> None:
        """End the presence. A second call does nothing."""
        self._lock.close()

    def _take(self) -> _OwnLock:
        while True:
            try:
                return _OwnLock(self._path)
            except BlockingIOError:
                continue  # the frontend took the new file for a dead client's and holds it just to remove it
            except FileNotFoundError:
                break
        fix = f"start one: mmcached serve --run-dir {self._directory.path}"
        raise ServiceUnavailable(f"no service in {self._directory.path}; {fix}")


class _OwnLock(LockFile):
    def is_named(self) -> bool:
        """Return whether the name still leads to the file that is locked."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def forget(self) -> None:
        """Close the descriptor and leave the name alone; a later `close` does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
