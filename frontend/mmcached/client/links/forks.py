"""Lets a forked child go of what is its parent's: it shares descriptors, locks and leases, and owns none of them.

    fork ──> in the child, before anything else runs: every client abandons what it has
                 └─ its next call connects anew, as another client with another entry

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
    """An object that shares descriptors with a forked child."""

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


def connections(path: str) -> list[int]:
    """Return the descriptors of this process that are connected to the unix socket at `path`."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(fd)) as duplicate,
        ):  # gone meanwhile, or no socket
            if duplicate.getpeername() == path:
                found.append(fd)
    return found


def close_connections(path: str) -> None:
    """Close every descriptor of this process that is connected to the unix socket at `path`."""
    for fd in connections(path):
        os.close(fd)


def is_listening(path: str) -> bool:
    """Return whether a process accepts connections at a unix socket; a dead one's file stays behind."""
    try:
        return listener_at(path) is not None
    except BlockingIOError:
        return True  # its queue is full, so there is one


def _after_fork() -> None:
    for client in list(_forkable):
        client.abandon()


os.register_at_fork(after_in_child=_after_fork)
