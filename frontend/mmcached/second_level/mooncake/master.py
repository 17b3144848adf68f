"""Checks whether a master answers, without Mooncake's client.

Mooncake's client waits for a silent master during set-up and close, and blocks all threads of its process. So the
master is checked first: a working one closes a connection after an invalid request.
"""

from __future__ import annotations

import socket

from mmcached.second_level.backend import BackendError
from mmcached.second_level.mooncake.place import MooncakePlace

TIMEOUT_S = 2.0
_NO_QUESTION = bytes(20)


def reach(place: MooncakePlace) -> str:
    """Return this host's address on the route to the master; BackendError if the master is not there or silent."""
    try:
        with socket.create_connection(place.address, TIMEOUT_S) as connection:
            connection.sendall(_NO_QUESTION)
            connection.recv(1)
            host: str = connection.getsockname()[0]
            return host
    except OSError as error:
        raise BackendError(f"Mooncake's master {place.master} is not reached: {error}") from None
