"""Connects the frontend with its engines.

    engine   EngineHello ->        frontend  refused while another process with this index is connected
             <- Greeted | Refused
             EngineReady ->                the engine may get requests

An engine is lost when its connection closes, which the kernel does when the process dies; silence alone never ends it.
Each connection has its own session: an engine that connects again ends the requests of its previous session.

Invariant: no call waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from mmcached.gateway.engines.engine_content import EngineContent
from mmcached.shm.crash_points import crash_point
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    ConfigError,
    InvalidRequest,
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    ServiceUnavailable,
    error_to_wire,
)
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend_from_engines as received
from mmcached.wire.messages.parts import EncoderForm
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.sockets.listener import Listener

log = structlog.get_logger("mmcached.frontend")


@dataclass(slots=True)
class EngineConnection:
    """One connection of an engine process.

    Attributes:
        process: The engine's name for its process.
        incarnation: Session number, new for each connection; identifies the engine in the frontend.
        held: Content of its caches.
        encoder_fingerprint: Names all settings that its encoder outputs depend on; "" until it is ready.
        encoder: Input and output form of its workers' encoder, when it is ready.
        num_open: Its open requests.
        num_waiting: Prompt tokens still to be computed for them.
        loaded_bytes: Bytes of encoder outputs that it leases for them.
    """

    peer: bytes
    index: int
    process: int
    incarnation: int
    held: EngineContent
    is_ready: bool = False
    encoder_fingerprint: str = ""
    encoder: EncoderForm | None = None
    num_open: int = 0
    num_waiting: int = 0
    loaded_bytes: int = 0


class EngineConnections:
    """All engines of one frontend.

    Args:
        on_lost: Called with a lost engine and the reason, after its removal.
        on_new: Called with an engine process that has connected.
    Attributes:
        encoder_fingerprint: Of the engine that became ready last; "" before the first.
    """

    def __init__(
        self,
        channel: Listener[received.FromEngine],
        config: ServiceConfig,
        *,
        on_lost: Callable[[EngineConnection, str], None],
        on_new: Callable[[EngineConnection], None],
    ) -> None:
        self._channel = channel
        self._config = config
        self._digest = config.digest()
        self._on_lost = on_lost
        self._on_new = on_new
        self._connections: dict[int, EngineConnection] = {}  # by incarnation
        self.encoder_fingerprint = ""
        self.num_protocol_errors = 0

    def __iter__(self) -> Iterator[EngineConnection]:
        return iter(list(self._connections.values()))

    def get(self, incarnation: int) -> EngineConnection | None:
        return self._connections.get(incarnation)

    def by_peer(self, peer: bytes) -> EngineConnection | None:
        return next((connection for connection in self if connection.peer == peer), None)

    def ready(self) -> list[EngineConnection]:
        """Return the engines that may get requests."""
        return [connection for connection in self if connection.is_ready]

    def encoder(self) -> EncoderForm:
        """Return the input and output form of the engines' encoder.

        Raises:
            InvalidRequest: The service is a store alone and has no engines.
            ServiceUnavailable: No engine is ready.
        """
        if not self._config.has_workers:
            raise InvalidRequest("world_size", 0, "must be more than 0 to encode: this service is a store")
        found = next((connection.encoder for connection in self if connection.is_ready), None)
        if found is None:
            raise ServiceUnavailable("no engine is ready to tell of its encoder; try again later")
        return found

    # ---- receiving

    def bad_message(self, peer: bytes, error: RemoteProtocolError) -> None:
        self.num_protocol_errors += 1
        log.error("bad message from an engine", peer=peer.hex(), reason=str(error))

    def greet(self, peer: bytes, message: received.EngineHello) -> None:
        """Accept or refuse an engine; a known engine process has reconnected."""
        if message.config_digest != self._digest:
            reason = f"the frontend has {self._digest}: restart both"
            self._refuse(peer, message, ConfigError("config digest", message.config_digest, reason))
            return
        connection = self.by_peer(peer)
        if connection is None:
            former = next((each for each in self if each.index == message.engine_index), None)
            if former is not None and former.process != message.incarnation and self._is_connected(former):
                reason = f"engine {message.engine_index} is another process, and it lives; end that one first"
                self._refuse(peer, message, ServiceUnavailable(reason))
                return
            if former is not None:
                self.lose(former, "it has connected anew, or another process has taken its place")
            held = EngineContent(self._config.num_kv_blocks, self._config.encoder_cache_size)
            session = secrets.randbits(63)
            connection = EngineConnection(peer, message.engine_index, message.incarnation, session, held)
            self._connections[session] = connection
            self._on_new(connection)
        self.tell(connection, to_engine.Greeted(connection.incarnation))

    def make_ready(self, connection: EngineConnection, message: received.EngineReady) -> None:
        connection.is_ready = True
        connection.encoder_fingerprint = self.encoder_fingerprint = message.encoder_fingerprint
        connection.encoder = message.encoder
        log.info("engine ready", engine=connection.index, workers=message.num_workers)

    def cache_changed(self, connection: EngineConnection, message: received.CacheChanged) -> None:
        try:
            connection.held.take(message)
        except RemoteProtocolError as error:
            self.bad_message(connection.peer, error)

    def _refuse(self, peer: bytes, message: received.EngineHello, error: MmcachedError) -> None:
        log.error("engine refused", engine=message.engine_index, reason=str(error))
        self._channel.try_send(peer, to_engine.Refused(error_to_wire(error)))

    # ---- sending

    def send(
        self, connection: EngineConnection, message: to_engine.FromFrontend, payload: Sequence[Frame] = ()
    ) -> None:
        """Queue a message that must arrive.

        Raises:
            PeerGone, ChannelFull: Nothing was queued. After `PeerGone` the engine is lost.
        """
        try:
            crash_point("item.before_send")
            self._channel.send(connection.peer, message, payload)
            crash_point("item.after_send")
        except PeerGone:
            self.lose(connection, "its connection is closed")
            raise

    def tell(self, connection: EngineConnection, message: to_engine.FromFrontend) -> None:
        """Queue a message; log a failure, which means that the engine is ending or lost."""
        self._channel.try_send(connection.peer, message)

    # ---- deaths

    def check(self) -> None:
        """Remove the engines whose connection has closed."""
        for connection in self:
            if not self._is_connected(connection):
                self.lose(connection, "its connection is closed")

    def lose(self, connection: EngineConnection, reason: str) -> None:
        """Remove an engine and close its connection; if it is alive, it reconnects."""
        log.warning("engine lost", engine=connection.index, reason=reason)
        self._connections.pop(connection.incarnation, None)
        if self._is_connected(connection):
            self._channel.disconnect(connection.peer)
        self._on_lost(connection, reason)

    def _is_connected(self, connection: EngineConnection) -> bool:
        return self._channel.is_connected(connection.peer)
