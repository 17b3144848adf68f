"""Binds each client to a connection: the first that names a client has its seat until it is closed.

    free ──hello, or any message──> taken by a connection ──it is closed──> free
                                          │
                                          └── another connection: refused

So nobody cancels, ends or asks in the name of a client that is connected. Who is not connected has no seat to lose: a
client that connects anew, or to a new frontend, takes it with its first word. Knows nothing of sockets or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mmcached.wire.errors import InvariantError, RemoteProtocolError


class Seats:
    """All clients that have spoken.

    Args:
        is_connected: whether a connection is open at both ends.
    """

    def __init__(self, is_connected: Callable[[bytes], bool]) -> None:
        self._is_connected = is_connected
        self._peer_of: dict[str, bytes] = {}
        self._client_of: dict[bytes, str] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._peer_of))

    def peer_of(self, client_id: str) -> bytes | None:
        return self._peer_of.get(client_id)

    def take(self, peer: bytes, client_id: str) -> None:
        """Let a connection speak for a client, as it may have done before.

        Raises:
            RemoteProtocolError: it speaks for another, or another connection speaks for this client.
        """
        former = self._peer_of.get(client_id)
        if former == peer:
            return
        if peer in self._client_of:
            raise RemoteProtocolError("this connection speaks for another client", "client_id")
        if former is not None:
            if self._is_connected(former):
                raise RemoteProtocolError("another connection speaks for this client", "client_id")
            self.leave(client_id)
        self._peer_of[client_id] = peer
        self._client_of[peer] = client_id

    def leave(self, client_id: str) -> None:
        """Free a seat; an unknown client changes nothing."""
        peer = self._peer_of.pop(client_id, None)
        if peer is not None:
            del self._client_of[peer]

    def drop_closed(self, is_open: Callable[[bytes], bool]) -> None:
        """Free the seats of connections that are closed."""
        for client_id, peer in list(self._peer_of.items()):
            if not is_open(peer):
                self.leave(client_id)

    def check_integrity(self) -> None:
        """Raise `InvariantError` if a connection speaks for two clients, or two for one."""
        if {peer: client_id for client_id, peer in self._peer_of.items()} != self._client_of:
            raise InvariantError("connections and clients are not one to one")
