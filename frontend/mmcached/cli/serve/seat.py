"""The lock on a run directory, which only one supervisor can hold.

The lock is on the directory itself (flock), not on a file in it, so no clean-up can remove it; systemd-tmpfiles skips
directories that are locked in this way. The kernel drops it with the process. The holder's pid comes from the kernel,
by the supervisor's socket, not from a file.

    seat taken?   no ──► no service runs here
       │ yes
    http.sock     pid of the listening process (SO_PEERCRED); no listener: it is just starting
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
"""How long a taken lock is retried: a process that only checks the lock holds it for a moment."""
_POLL_S = 0.01


class Seat(Closeable):
    """The lock of one run directory, held until `close` or death.

    Attributes:
        directory: The run directory through our descriptor, even if another directory has its name by now.

    Raises:
        ServiceUnavailable: Another supervisor holds it.
        ConfigError: It is not a private directory of this user.
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
        try:
            return os.path.samestat(self._named.path.lstat(), os.fstat(self._fd))
        except OSError:
            return False

    def touch(self) -> None:
        """Update all times in the directory, so that programs that remove old files leave them."""
        os.utime(self._fd)
        for path in [*self.directory.path.iterdir(), *self.directory.clients.glob("*")]:
            with contextlib.suppress(OSError):  # it was removed meanwhile
                os.utime(path, follow_symlinks=False)

    def close(self) -> None:
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
    """Return the pid of the service's supervisor, from the kernel, or None if no service runs there.

    Raises:
        ServiceUnavailable: It is just starting, or too busy to accept a connection.
        ConfigError: The directory is not private to this user.
    """
    directory = RunDir(run_dir)
    if not _is_taken(directory):
        return None
    pid = _pid_in(directory)
    if pid is not None:
        return pid
    if not _is_taken(directory):
        return None  # it ended meanwhile
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
        raise ServiceUnavailable(f"the service in {directory.path} runs in another pid namespace; run this there")
    return listener.pid


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
