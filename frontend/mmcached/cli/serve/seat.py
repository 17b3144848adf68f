"""A run directory has room for one supervisor: who holds the lock of the directory itself.

The lock is on the directory (flock), not on a file in it, so nobody who tidies up can take it away; systemd-tmpfiles
even leaves a directory alone that is locked like this. The kernel drops it with the process. Who holds it is told by
the socket on which the supervisor listens, and by the kernel: nothing that is written in a file is believed.

    seat taken?   no ──► nobody runs here
       │ yes
    http.sock     pid of the process that listens (SO_PEERCRED), or: it is just starting
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ConfigError, ServiceUnavailable
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.unix_sockets import listener_at

PATIENCE_S = 1.0
"""How long a taken seat is asked for again: who only looks whether it is taken holds it for a moment."""
_POLL_S = 0.01


class Seat(Closeable):
    """The lock of one run directory, held until `close` or death.

    Attributes:
        directory: the run directory by way of our descriptor: also when another one has its name by now.
    Raises:
        ServiceUnavailable: another supervisor holds it.
        ConfigError: it is not a directory of this user's alone.
    """

    def __init__(self, directory: RunDir) -> None:
        self._named = directory
        self._fd = directory.open()
        try:
            self._take()
        except BaseException:
            os.close(self._fd)
            raise
        self.directory = RunDir(Path(f"/proc/self/fd/{self._fd}"))

    def is_named(self) -> bool:
        """Return whether the run directory is still where it was."""
        try:
            return os.path.samestat(self._named.path.lstat(), os.fstat(self._fd))
        except OSError:
            return False

    def touch(self) -> None:
        """Make everything in the directory look used, for those who remove what is old."""
        os.utime(self._fd)
        for path in [*self.directory.path.iterdir(), *self.directory.clients.glob("*")]:
            with contextlib.suppress(OSError):  # it went while we looked
                os.utime(path, follow_symlinks=False)

    def close(self) -> None:
        """Let go. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take(self) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not _try_lock(self._fd, fcntl.LOCK_EX):
            if time.monotonic() >= give_up:
                path = self._named.path
                raise ServiceUnavailable(f"a service runs in {path} already (pid {_pid_in(self._named) or 'unknown'})")
            time.sleep(_POLL_S)


def supervisor_pid(run_dir: Path) -> int | None:
    """Return the pid of the service's supervisor, as the kernel knows it, or None if no service runs there.

    Raises:
        ServiceUnavailable: it is just starting, or too busy to say who it is.
        ConfigError: the directory is not this user's alone.
    """
    directory = RunDir(run_dir)
    if not _is_taken(directory):
        return None
    pid = _pid_in(directory)
    if pid is not None:
        return pid
    if not _is_taken(directory):
        return None  # it ended while we looked
    raise ServiceUnavailable(f"the service in {run_dir} is just starting, or ending; try again")


def _is_taken(directory: RunDir) -> bool:
    try:
        fd = directory.open()
    except ServiceUnavailable:
        return False
    try:
        return not _try_lock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _pid_in(directory: RunDir) -> int | None:
    try:
        listener = listener_at(directory.http_socket)
    except BlockingIOError:
        raise ServiceUnavailable(f"the service in {directory.path} does not accept connections; try again") from None
    if listener is None:
        return None
    if listener.uid != os.geteuid():
        raise ConfigError(
            "run_dir", str(directory.path), f"http.sock must be of uid {os.geteuid()}, not {listener.uid}"
        )
    if listener.pid <= 0:
        raise ServiceUnavailable(f"the service in {directory.path} runs in another pid namespace: ask for it there")
    return listener.pid


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
