"""Connects the frontend with its engines: their sockets, their entries of the ring, the leases of each message.

    engine   EngineHello ->        frontend  refused while another process with this index lives
             <- Ring | Refused             at any time `Detached`: dropped although it lives, it says hello anew
             ReaderHello ->                the entry must hold the incarnation
             <- ReaderAttached
             EngineReady ->                requests may go there

An engine is gone when the kernel says so (its lock byte is free), when another process has taken its place, or when its
connection is closed; never by silence.

Knows nothing of requests. Invariants: a lease is counted before the message that carries it is sent, and taken back if
that message was not accepted; nothing here waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.connections.readers import Granted, Reader, Readers
from mmcached.frontend.connections.rings import NoRing
from mmcached.frontend.engines.held_content import HeldContent
from mmcached.shm import RingWriter
from mmcached.shm.store import codec
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
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as received
from mmcached.wire.messages.parts import EncoderForm
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.sockets.listener import Listener

log = structlog.get_logger("mmcached.frontend")

MakeMessage = Callable[[Sequence[OutgoingItem], Sequence[LeaseId | None]], tuple[to_engine.FromFrontend, list[Frame]]]
"""From items as they will travel, and one lease for each that lies in the ring, to a message with its frames."""


@dataclass(slots=True)
class EngineConnection:
    """One engine process.

    Attributes:
        peer: the present connection; it changes when the engine connects anew.
        held: what its caches hold.
        encoder_fingerprint: names all that its encoder outputs depend on beside the item; "" until it is ready.
        encoder: what its workers' encoder takes and gives, when it is ready.
    """

    peer: bytes
    index: int
    incarnation: int
    held: HeldContent
    is_ready: bool = False
    encoder_fingerprint: str = ""
    encoder: EncoderForm | None = None


class EngineConnections:
    """All engines of one frontend.

    Args:
        on_lost: called with an engine that is gone, and the reason, after it has been removed.
        on_new: called with an engine process that has come.
    Attributes:
        encoder_fingerprint: of the engine that became ready last; "" before one was.
    """

    def __init__(
        self,
        channel: Listener[received.FromEngine],
        ring: RingWriter | NoRing,
        config: ServiceConfig,
        *,
        clock: Callable[[], float],
        on_lost: Callable[[EngineConnection, str], None],
        on_new: Callable[[EngineConnection], None],
    ) -> None:
        self._channel = channel
        self._readers = Readers(ring, channel, clock)
        self._config = config
        self._digest = config.digest()
        self._on_lost = on_lost
        self._on_new = on_new
        self._incarnation = secrets.randbits(63)
        self._connections: dict[int, EngineConnection] = {}  # by incarnation
        self.encoder_fingerprint = ""
        self.num_protocol_errors = 0
        self.num_lease_refusals = 0

    def __iter__(self) -> Iterator[EngineConnection]:
        return iter(list(self._connections.values()))

    def get(self, incarnation: int) -> EngineConnection | None:
        return self._connections.get(incarnation)

    def by_peer(self, peer: bytes) -> EngineConnection | None:
        return next((connection for connection in self if connection.peer == peer), None)

    def ready(self) -> list[EngineConnection]:
        """Return the engines that requests may go to."""
        return [connection for connection in self if connection.is_ready]

    def encoder(self) -> EncoderForm:
        """Return what the engines' encoder takes and gives.

        Raises:
            InvalidRequest: the service is a store alone, and never has an engine.
            ServiceUnavailable: no engine is ready to say so.
        """
        if not self._config.has_workers:
            raise InvalidRequest("world_size", 0, "must be more than 0 to encode: this service is a store")
        found = next((connection.encoder for connection in self if connection.is_ready), None)
        if found is None:
            raise ServiceUnavailable("no engine is ready to tell of its encoder; try again later")
        return found

    def use(self, ring: RingWriter) -> None:
        """Announce a ring, now that there is one; items travel inline to each engine until it has attached."""
        self._readers.entries.ring = ring
        for connection in self:
            self.tell(connection, self._announcement())

    # ---- receiving

    def bad_message(self, peer: bytes, error: RemoteProtocolError) -> None:
        self.num_protocol_errors += 1
        log.error("bad message from an engine", peer=peer.hex(), reason=str(error))

    def greet(self, peer: bytes, message: received.EngineHello) -> None:
        """Take an engine in, or say why not; one that is known has connected anew."""
        if message.config_digest != self._digest:
            reason = f"the frontend has {self._digest}: restart both"
            self._refuse(peer, message, ConfigError("config digest", message.config_digest, reason))
            return
        connection = self.get(message.incarnation)
        if connection is None:
            former = self._by_index(message.engine_index)
            if former is not None and self._channel.is_connected(former.peer):
                reason = f"engine {message.engine_index} is another process, and it lives; end that one first"
                self._refuse(peer, message, ServiceUnavailable(reason))
                return
            if former is not None:
                self.lose(former, "another engine process has taken its place")
            held = HeldContent(self._config.num_kv_blocks, self._config.encoder_cache_size)
            connection = EngineConnection(peer, message.engine_index, message.incarnation, held)
            self._connections[connection.incarnation] = connection
            self._on_new(connection)
        connection.peer = peer
        self.tell(connection, self._announcement())
        self._readers.move(connection.incarnation, peer)
        reader = self._readers.get(connection.incarnation)
        if reader is not None and reader.is_moved:  # what was under way may be lost
            self._readers.ask(reader)

    def attach_reader(self, connection: EngineConnection, message: received.ReaderHello) -> None:
        epoch, reader_id, incarnation = message.epoch, message.reader_id, message.incarnation
        if (
            self._readers.attach(
                connection.incarnation, connection.peer, epoch=epoch, reader_id=reader_id, incarnation=incarnation
            )
            is None
        ):
            log.warning(
                "reader refused: its entry does not hold the incarnation", engine=connection.index, reader_id=reader_id
            )
            return
        self.tell(connection, to_engine.ReaderAttached(epoch, reader_id, incarnation))

    def make_ready(self, connection: EngineConnection, message: received.EngineReady) -> None:
        """Let requests go to an engine, if it reads the ring."""
        if self._readers.entries.ring.announcement is None or self._readers.get(connection.incarnation) is not None:
            connection.is_ready = True
            connection.encoder_fingerprint = self.encoder_fingerprint = message.encoder_fingerprint
            connection.encoder = message.encoder
            log.info("engine ready", engine=connection.index, workers=message.num_workers)

    def cache_changed(self, connection: EngineConnection, message: received.CacheChanged) -> None:
        """Take note of what an engine's caches hold now."""
        try:
            connection.held.take(message)
        except RemoteProtocolError as error:
            self.bad_message(connection.peer, error)

    def ask_after_gap(self, connection: EngineConnection, message: received.LeaseGap) -> None:
        """Ask an engine that misses leases which have arrived."""
        reader = self._readers.get(connection.incarnation)
        if reader is not None and reader.incarnation == message.incarnation:
            self._readers.ask(reader)

    def reconcile(self, connection: EngineConnection, message: received.Reconcile) -> None:
        """Take back the leases that an engine has not received."""
        try:
            self._readers.answered(connection.peer, message)
        except RemoteProtocolError as error:
            self.bad_message(connection.peer, error)

    def _by_index(self, index: int) -> EngineConnection | None:
        return next((connection for connection in self if connection.index == index), None)

    def _announcement(self) -> to_engine.Ring:
        return to_engine.Ring(self._incarnation, self._readers.entries.ring.announcement)

    def _refuse(self, peer: bytes, message: received.EngineHello, error: MmcachedError) -> None:
        log.error("engine refused", engine=message.engine_index, reason=str(error))
        self._channel.try_send(peer, to_engine.Refused(error_to_wire(error)))

    # ---- sending

    def send_with_leases(
        self, connection: EngineConnection, items: Sequence[OutgoingItem], make_message: MakeMessage
    ) -> list[OutgoingItem]:
        """Grant a lease on each item that lies in the ring, build the message, queue it.

        Returns:
            the items as they travel: those that the engine takes no lease for just now are inline.
        Raises:
            MmcachedError: of `make_message`, or the message could not be queued. No lease is left.
        """
        reader = self._readers.get(connection.incarnation)
        granted: Granted = []
        try:
            routed, leases = [], []
            for item in items:
                sent_item, lease = self._lease_or_inline(reader, item, granted)
                routed.append(sent_item)
                leases.append(lease)
            message, payload = make_message(routed, leases)
            self._readers.send(reader, granted, connection.peer, message, payload)
        except MmcachedError as error:
            self._readers.take_back(reader, granted)
            if isinstance(error, PeerGone):
                self.lose(connection, "its connection is closed")
            raise
        return routed

    def _lease_or_inline(
        self, reader: Reader | None, item: OutgoingItem, granted: Granted
    ) -> tuple[OutgoingItem, LeaseId | None]:
        """Grant a lease on an item in the ring; if the reader takes none just now, copy the item out instead."""
        if not isinstance(item.payload, Handle):
            return item, None
        lease = None if reader is None else self._readers.grant(reader, item.payload, granted)
        if lease is not None:
            return item, lease
        self.num_lease_refusals += 1
        return replace(item, payload=codec.split(self._readers.entries.ring.read(item.payload))), None

    def tell(self, connection: EngineConnection, message: to_engine.FromFrontend) -> None:
        """Queue a message without leases; one that cannot be queued is logged: the engine is going or gone."""
        self._channel.try_send(connection.peer, message)

    # ---- deaths

    def check(self) -> None:
        """Look at the entries' locks: engines that have died are lost; and for leases that were lost on the way."""
        self._readers.ask_idle()
        for incarnation, reason in self._readers.take_dead():
            connection = self.get(incarnation)
            if connection is not None:
                self.lose(connection, reason)

    def lose(self, connection: EngineConnection, reason: str) -> None:
        """Forget an engine; if it lives, it is told, and says hello anew."""
        log.warning("engine lost", engine=connection.index, reason=reason)
        self._connections.pop(connection.incarnation, None)
        self._readers.leave(connection.incarnation)
        if self._channel.is_connected(connection.peer):  # it lives, and would wait for requests for ever
            self.tell(connection, to_engine.Detached(reason))
        self._on_lost(connection, reason)
