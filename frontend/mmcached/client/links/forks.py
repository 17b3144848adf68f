"""What a forked child must let go of: it shares its parent's descriptors, locks and leases, and owns none of them.

    fork ──> in the child, before anything else runs: every client abandons what it has
                 └─ its next call connects anew, as another client with another row

Views that the child has inherited stay valid only as long as the parent's. ZeroMQ's objects are not made for a child:
they are kept for ever, untouched, and only the descriptors of their connections to the service are closed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from typing import Protocol

from mmcached.wire.sockets.unix_sockets import listener_at


class Forkable(Protocol):
    """What `abandon_in_children` watches over."""

    def abandon(self) -> None:
        """Let go of everything inherited, without a word to anybody; called in the child."""


_forkable: weakref.WeakSet[Forkable] = weakref.WeakSet()
_kept: list[object] = []


def abandon_in_children(client: Forkable) -> None:
    """Have `client.abandon` called in every child that this process forks while the client lives."""
    _forkable.add(client)


def keep_for_ever(*inherited: object) -> None:
    """Never run the destructors of these objects."""
    _kept.extend(inherited)


def close_connections(path: str) -> None:
    """Close every descriptor of this process that is connected to the unix socket at `path`."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # gone meanwhile, or no socket
            fd = int(name)
            if _peer_of(fd) == path:
                os.close(fd)


def is_listening(path: str) -> bool:
    """Return whether a process accepts connections at a unix socket; a dead one's file stays behind."""
    try:
        return listener_at(path) is not None
    except BlockingIOError:
        return True  # its queue is full, so there is one


def _peer_of(fd: int) -> object:
    """Return the address at the other end of a socket.

    Raises:
        OSError: it is no socket, or not connected.
    """
    duplicate = socket.socket(fileno=os.dup(fd))
    with duplicate:
        return duplicate.getpeername()


def _after_fork() -> None:
    for client in list(_forkable):
        client.abandon()


os.register_at_fork(after_in_child=_after_fork)
