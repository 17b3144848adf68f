"""Named unix sockets, and the process that listens there."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

_UCRED = struct.Struct("3i")
"""`struct ucred`: pid, uid, gid."""


@dataclass(frozen=True, slots=True)
class ListeningProcess:
    """The process that called `listen`; `pid` is 0 if it lives in a pid namespace that cannot be seen from here."""

    pid: int
    uid: int


def listener_at(path: str | os.PathLike[str]) -> ListeningProcess | None:
    """Return the process that listens at a unix socket; None without one: a dead process's file stays behind.

    Valid only for this moment; `RunDir.check` proves that the name belongs to a service of this user.

    Raises:
        BlockingIOError: There is a listener, and its queue is full.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        try:
            connection.connect(os.fspath(path))
        except BlockingIOError:
            raise
        except OSError:
            return None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(credentials)
    return ListeningProcess(pid, uid)


class NamedSocket:
    """Listens at a path, replacing an existing file of that name.

    The name is removed by `remove_name` and never by closing the socket, so that a later listener keeps it.

    Attributes:
        socket: Non-blocking; owned by the caller, to accept from or to hand over.

    Raises:
        OSError: The path cannot be bound.
    """

    def __init__(self, path: Path, backlog: int) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self.socket.bind(os.fspath(path))
            self.socket.listen(backlog)
            self._status = path.lstat()
        except BaseException:
            self.socket.close()
            raise

    def is_named(self) -> bool:
        try:
            return os.path.samestat(self._path.lstat(), self._status)
        except OSError:
            return False

    def remove_name(self) -> None:
        """Remove the name if it is still this socket's. A second call does nothing."""
        if self.is_named():
            with contextlib.suppress(OSError):
                self._path.unlink()
