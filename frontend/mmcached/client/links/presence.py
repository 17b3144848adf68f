"""The lock that proves that a client lives; the frontend ends the requests of a dead client.

    <run dir>/clients/<client_id>.lock      held for the client's life; free = dead
                                            contains "<pid> <name>", for people

A run directory may be removed and made anew under a living client, and a cleanup job may remove the file; then the lock
has no name any more, and is taken again: at a call, once a second has passed, and when the connection was lost. A
forked
child shares the lock with its parent: it closes its descriptor, and leaves lock and name alone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from mmcached.shm.files.lock_file import LockFile
from mmcached.wire.errors import MmcachedError, ServiceUnavailable
from mmcached.wire.messages.frontend import ANY_CLIENT
from mmcached.wire.paths import RunDir

KEEP_INTERVAL_S = 1.0


class Presence:
    """The presence of one client, from now until `close` or death.

    Args:
        name: Name of the client's kind.
        clock: Monotonic time in seconds.

    Raises:
        ServiceUnavailable: No service has ever run in that directory.
        ConfigError: The directory does not belong to this user alone.
    """

    def __init__(
        self,
        directory: RunDir,
        client_id: str,
        *,
        name: str = ANY_CLIENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._next_look = clock() + KEEP_INTERVAL_S
        self._path = directory.client_lock(client_id)
        self._name = name
        self._turn = threading.RLock()
        self._is_over = False
        self._lock = self._take()

    def keep(self) -> None:
        """Renew at most once a second and without an error, as part of every call."""
        now = self._clock()
        if now >= self._next_look:
            self._next_look = now + KEEP_INTERVAL_S
            with contextlib.suppress(MmcachedError):
                self.renew()

    def renew(self) -> None:
        """Take the lock again if its file was removed; else change nothing.

        Raises:
            ServiceUnavailable: The run directory is missing.
            ConfigError: The directory does not belong to this user alone.
        """
        with self._turn:
            if self._is_over or self._lock.is_named():
                return
            former, self._lock = self._lock, self._take()
            former.forget()
            if self._is_over:  # a finalizer or signal handler has closed it meanwhile
                self._lock.close()

    def abandon(self) -> None:
        """Close a parent's presence in a forked child; the parent keeps it."""
        self._turn = threading.RLock()  # the thread that held it may not exist here
        self._lock.forget()

    def close(self) -> None:
        """End the presence. A second call does nothing, nor does `renew` after it."""
        with self._turn:
            self._is_over = True
            self._lock.close()

    def _take(self) -> _OwnLock:
        self._directory.check()
        while True:
            try:
                lock = _OwnLock(self._path)
            except BlockingIOError:
                continue  # the frontend takes the new file for a dead client's, and has locked it to remove it
            except OSError as error:
                reason = f"no service in {self._directory.path} that a client can enter: {error.strerror or error}"
                raise ServiceUnavailable(reason) from error
            with contextlib.suppress(OSError):  # a full disk
                lock.write(f"{os.getpid()} {self._name}")
            return lock


class _OwnLock(LockFile):
    def is_named(self) -> bool:
        """Return whether the path still leads to the locked file."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def forget(self) -> None:
        """Close the descriptor and leave the file alone; a later `close` does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
