"""Binds each client to one connection: the first connection that names a client acts for it until it is closed.

    free ──hello, or any message──> taken by a connection ──it is closed──> free
                                          │
                                          └── another connection: refused

So no other connection can cancel, end or send requests for a connected client. A disconnected client has no requests to
protect: a client that connects anew, or to a new frontend, is bound by its first message. A client lives as long as its
lock is held.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from mmcached.shm.files.lock_file import is_held, remove_if_free
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.messages.frontend import FromClient
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.listener import Listener

log = structlog.get_logger("mmcached.frontend")


class ClientPresence:
    """All clients that have sent a message; `num_alive` of them held their lock at the last check."""

    def __init__(self, run_dir: RunDir, channel: Listener[FromClient]) -> None:
        self._run_dir = run_dir
        self._channel = channel
        self._client_to_peer: dict[str, bytes] = {}
        self._peer_to_client: dict[bytes, str] = {}
        self.num_alive = 0

    @property
    def peers(self) -> list[bytes]:
        """The connections that act for clients."""
        return list(self._peer_to_client)

    def bind(self, peer: bytes, client_id: str) -> bool:
        """Bind a connection to a client; a repeated call changes nothing.

        Returns:
            False for a connection that the client has closed and replaced: its last messages are read late.

        Raises:
            RemoteProtocolError: The connection acts for another client, or another connection for this client.
        """
        former = self._client_to_peer.get(client_id)
        if former == peer:
            return True
        if peer in self._peer_to_client:
            raise RemoteProtocolError("this connection speaks for another client", "client_id")
        if former is not None:
            if self._channel.is_connected(former):
                if not self._channel.is_connected(peer):
                    return False
                raise RemoteProtocolError("another connection speaks for this client", "client_id")
            self.leave(client_id)
        self._client_to_peer[client_id] = peer
        self._peer_to_client[peer] = client_id
        return True

    def leave(self, client_id: str) -> None:
        """Free a client's connection; an unknown client changes nothing."""
        peer = self._client_to_peer.pop(client_id, None)
        if peer is not None:
            del self._peer_to_client[peer]

    def look(self, others: Iterable[str]) -> list[tuple[str, bytes | None]]:
        """Check the clients' locks, and remove those of dead clients.

        Args:
            others: Clients that are known elsewhere.

        Returns:
            Clients without a lock. A client that is still connected comes with its connection: its lock file was
            removed, for example by a cleanup job.
        """
        self.num_alive = 0
        for path in self._run_dir.clients.glob("*.lock"):
            try:
                if is_held(path):
                    self.num_alive += 1
                elif remove_if_free(path):
                    log.info("client dead", client_id=path.stem)
            except OSError as error:  # a foreign file, not a client's lock
                log.warning("not a lock", path=path.name, reason=str(error))
        for client_id, peer in list(self._client_to_peer.items()):
            if peer not in self._channel:
                self.leave(client_id)
        known = self._client_to_peer.keys() | set(others)
        return [(one, self._living_peer(one)) for one in known if not self._run_dir.client_lock(one).exists()]

    def _living_peer(self, client_id: str) -> bytes | None:
        peer = self._client_to_peer.get(client_id)
        return peer if peer is not None and self._channel.is_connected(peer) else None
