"""Asks whether a master is there and at work, without Mooncake's client.

That client, while it is set up or closed, waits for a master that is silent and lets no other thread of its process run
meanwhile. So the master is asked first: one that is at work hangs up on what it does not understand.
"""

from __future__ import annotations

import socket

from mmcached.second_level.backend import BackendError
from mmcached.second_level.mooncake.place import Place

TIMEOUT_S = 2.0
_NO_QUESTION = bytes(20)


def reach(place: Place) -> str:
    """Return the address of this host that the way to the master begins with.

    Raises:
        BackendError: the master is not there, or silent.
    """
    try:
        with socket.create_connection(place.address, TIMEOUT_S) as connection:
            connection.sendall(_NO_QUESTION)
            connection.recv(1)
            host: str = connection.getsockname()[0]
            return host
    except OSError as error:
        raise BackendError(f"Mooncake's master {place.master} is not reached: {error}") from None
