"""Opens a connection to one Redis server, and makes calls on it that end by their deadlines.

Each wait for the socket lasts at most the rest of the call's time, so a server that sends or takes single bytes cannot
prolong it. A connection with an owed reply is not used again.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from typing import Any

from redis import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import AuthenticationError, RedisError

from mmcached.second_level.backend import BackendError, BackendLate, Value
from mmcached.second_level.redis.place import Address, Options, RedisPlace
from mmcached.second_level.redis.replies import CONNECT_S, Replies, Reply, wait_until
from mmcached.wire.stats import Trouble

_MAX_PIECES = os.sysconf("SC_IOV_MAX")
TIMEOUTS: Options = {"socket_timeout": CONNECT_S, "socket_connect_timeout": CONNECT_S}


def tls_options(place: RedisPlace) -> Options:
    return {} if place.tls is None else {"ssl": True, **place.tls}


class RedisLink:
    """An open connection, for one thread at a time; BackendError if the server is unreached or refuses the login."""

    def __init__(self, place: RedisPlace, address: Address | None) -> None:
        kind: Any
        where: Options
        self._replies = Replies()
        self._num_owed = 0
        options: dict[str, Any] = {
            "username": place.username,
            "password": place.password,
            "db": place.db,
            "protocol": 2,
            "driver_info": None,  # saves round trips
            "parser_class": lambda socket_read_size: self._replies,
            **TIMEOUTS,
        }
        if address is None:
            kind, where = UnixDomainSocketConnection, {"path": place.path}
        else:
            kind = Connection if place.tls is None else SSLConnection
            where = {"host": address[0], "port": address[1], **(place.tls or {})}
        self._connection = kind(**where, **options)
        try:
            self._connection.connect()
        except (RedisError, OSError) as error:
            self.close()
            trouble: Trouble = "denied" if isinstance(error, AuthenticationError) else "unreached"
            raise BackendError(f"Redis is not reached: {error}", trouble) from None
        except BaseException:
            self.close()
            raise

    def is_usable(self) -> bool:
        """Return whether the server has neither closed the connection nor sent unrequested data."""
        socket = self._replies.socket
        if socket is None or self.is_owed or self._replies.has_unread:
            return False
        socket.settimeout(0)
        try:
            socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    @property
    def is_owed(self) -> bool:
        """Whether replies are still to be read."""
        return self._num_owed > 0

    def send(self, pieces: Sequence[Value], num_commands: int, deadline: float) -> None:
        views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        self._num_owed += num_commands
        socket = self._replies.socket
        try:
            while views:
                wait_until(socket, deadline)
                if isinstance(socket, ssl.SSLSocket):
                    sent = socket.send(views[0])
                else:
                    sent = socket.sendmsg(views[:_MAX_PIECES])
                while views and sent >= len(views[0]):
                    sent -= len(views.pop(0))
                if sent:
                    views[0] = views[0][sent:]
        except TimeoutError:
            raise BackendLate("Redis has not received a command in time") from None
        except OSError as error:
            raise BackendError(f"the connection to Redis broke: {error}") from None

    def read(self, deadline: float) -> Reply:
        reply = self._replies.read(deadline)
        self._num_owed -= 1
        return reply

    def close(self) -> None:
        self._connection.disconnect()
