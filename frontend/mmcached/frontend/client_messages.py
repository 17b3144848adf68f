"""Reads the messages of clients, and hands each to the part that serves it.

    a message ──> is its connection bound to its client? ──> the store | the gateway | flushes | the answer at once
                              └── no, or the message is invalid: refused

A client without a lock is dead; its claims, leases and requests end.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from mmcached.cache.checkpoints.language import Language
from mmcached.frontend.connections.listening import message_limits
from mmcached.frontend.connections.presence import ClientPresence
from mmcached.frontend.flushes import Flushes
from mmcached.frontend.mount import Gateway
from mmcached.frontend.store.store_service import StoreService
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, RemoteProtocolError, RequestAborted, error_to_wire
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as received
from mmcached.wire.paths import RunDir
from mmcached.wire.process.turns import Guard, TurnShare
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.sockets.listener import Listener

log = structlog.get_logger("mmcached.frontend")


class ClientMessages:
    """The clients' side of one frontend.

    Attributes:
        presence: Which connection acts for which client.
        flushes: The flushes that clients wait for.
        num_protocol_errors: Number of invalid messages; it only rises.
    """

    def __init__(
        self,
        run_dir: RunDir,
        config: ServiceConfig,
        channel: Listener[received.FromClient],
        *,
        store: StoreService,
        gateway: Gateway,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._channel = channel
        self._store = store
        self._gateway = gateway
        self._clock = clock
        self._share = TurnShare()
        self._asked_for_stats: list[tuple[bytes, int]] = []
        self.presence = ClientPresence(run_dir, channel)
        self._language = Language.of(config)
        self.flushes = Flushes(config, store, gateway)
        self.num_protocol_errors = 0

    def serve(self, guard: Guard) -> None:
        """Handle a share of the messages that have arrived."""
        for peer, message, payload in self._channel.serve(self._share):
            if isinstance(message, RemoteProtocolError):
                self._refuse(peer, None, message)
                continue
            error = guard.call("message of a client", self._handle, peer, message, payload)
            if error is not None and (request_id := getattr(message, "request_id", None)) is not None:
                self._channel.try_send(peer, to_client.Failed(request_id, error_to_wire(error)))

    def _handle(self, peer: bytes, message: received.FromClient, payload: list[Frame]) -> None:
        if (client_id := getattr(message, "client_id", None)) is not None:
            try:
                if not self.presence.bind(peer, client_id):
                    return
            except RemoteProtocolError as error:
                self._refuse(peer, message, error)
                return
        if isinstance(message, received.StoreMessage):  # first: each earlier case would cost a put time
            self._store.handle(peer, message, payload)
            return
        match message:
            case received.ClientHello():
                self._store.greet(peer, message.client_id, message.name)
                self._channel.try_send(peer, self._welcome())
            case received.ClientBye():
                self._end_client(message.client_id)
            case received.GetStats():
                self._asked_for_stats.append((peer, message.request_id))
            case received.Flush():
                self._start_flush(peer, message)
            case received.Cancel():
                self._gateway.take(peer, message, payload)
                self._store.cancel(message.client_id, message.request_id)
            case _:
                self._gateway.take(peer, message, payload)

    def _refuse(self, peer: bytes, message: received.FromClient | None, error: RemoteProtocolError) -> None:
        """Answer an invalid message; without its request id if it was unreadable, or is a hello."""
        self.num_protocol_errors += 1
        log.warning("bad message from a client", peer=peer.hex(), reason=str(error))
        if message is None or isinstance(message, received.ClientHello):
            self._channel.try_send(peer, to_client.Failed(None, error_to_wire(error)))
        elif not isinstance(message, received.Notice):
            self._channel.try_send(peer, to_client.Failed(message.request_id, error_to_wire(error)))

    def _start_flush(self, peer: bytes, message: received.Flush) -> None:
        try:
            self.flushes.start(
                peer, message.request_id, self._clock(), new_epoch=message.new_epoch, version=message.version
            )
        except MmcachedError as error:
            self._channel.try_send(peer, to_client.Failed(message.request_id, error_to_wire(error)))

    def take_asked_for_stats(self) -> list[tuple[bytes, int]]:
        """Return and clear the connections that have asked for statistics, with their request ids."""
        asked, self._asked_for_stats = self._asked_for_stats, []
        return asked

    # ---- clients

    def announce_encoder(self) -> None:
        """Send all clients the present fingerprints."""
        for peer in self.presence.peers:
            self._channel.try_send(peer, self._welcome())

    def _welcome(self) -> to_client.Welcome:
        config, store = self._config, self._store
        encoder_fingerprint, item_fingerprints = self._gateway.encoder_fingerprints()
        return to_client.Welcome(
            service_id=config.digest(),
            image_token_id=self._language.marks.get("image", 0),
            eos_token_id=min(self._language.stop_token_ids, default=0),
            hidden_size=self._language.hidden_size,
            max_model_len=config.max_model_len,
            store_ring=store.announcement,
            store_epoch=store.records.epoch,
            limits=message_limits(config),
            max_placed_bytes=store.nurseries.max_record_bytes,
            encoder_fingerprint=encoder_fingerprint,
            item_fingerprints=dict(item_fingerprints),
            hasher_algorithm=config.mm_hasher_algorithm,
            has_second_level=store.second_level.is_on,
            takes_records=store.records.takes_records,
        )

    def check(self) -> None:
        """End the requests of clients without a lock.

        A connected client has lost its lock file to a cleanup job: it gets an error and is disconnected, and makes a
        new lock when it reconnects.
        """
        for client_id, peer in self.presence.look(self._gateway.clients() | self._store.clients()):
            if peer is not None:
                log.warning("a client's lock was removed: it has to connect anew", client_id=client_id)
                reason = "the lock file of this client was removed, without which it counts as dead; try again"
                self._gateway.end_client(client_id, RequestAborted(reason))
            self._end_client(client_id)
            if peer is not None:
                self._channel.disconnect(peer)

    def _end_client(self, client_id: str) -> None:
        self.presence.leave(client_id)
        self._store.end_client(client_id)
        self._gateway.end_client(client_id)
