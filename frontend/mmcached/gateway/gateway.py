"""The gateway: the part of the frontend that serves generations and embeddings with the help of engines.

    clients ──frontend's loop──> ModelGateway <── engine.sock (engine_connections) <── engines
                                       ├── requests/   generate, encode: items into the store, then to an engine
                                       └── probes, flushes of the engines

It is mounted on the frontend through `mmcached.frontend.mount.Gateway`. A request is answered exactly once; a cache
miss of an engine is sent again and never reaches the client, unless it concerns an image that the client sent only by
its id. Only hashing large files, processing images and tokenizing text use threads (see `item_making`, `prompts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from typing import assert_never

import msgspec
import structlog

from mmcached.cache.checkpoints.language import Language
from mmcached.frontend.mount import FrontendParts
from mmcached.gateway.caches.from_config import item_cache_from_config
from mmcached.gateway.caches.item_records import ItemRecords
from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.gateway.engines.flushes import EngineFlushes
from mmcached.gateway.engines.listening import listen_for_engines
from mmcached.gateway.engines.probes import Probes
from mmcached.gateway.requests.request_service import RequestService
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import MmcachedError, RemoteProtocolError, ServiceUnavailable, error_to_wire
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as received
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import ServiceForms
from mmcached.wire.process.turns import Guard, TurnShare
from mmcached.wire.slow_log import SlowLog
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import FrontendStats, ItemStats
from mmcached.wire.vocabulary import Modality

log = structlog.get_logger("mmcached.frontend")

_OF_CONNECTION = from_engine.EngineHello | from_engine.EngineReady


class ModelGateway(Closeable):
    """Implements `Gateway` with engines.

    Attributes:
        connections: The engines.
        requests: Open generations and embeddings.

    Raises:
        OSError: The engines' socket could not be bound.
    """

    def __init__(self, parts: FrontendParts) -> None:
        self._parts = parts
        self._config = parts.config
        self._row_forms = Language.of(parts.config).row_forms
        self._items = ItemRecords(parts.store.records.in_ring)
        self._share = TurnShare()
        self._is_draining = False
        with ExitStack() as stack:
            self._channel = stack.enter_context(listen_for_engines(parts.run_dir, parts.clock))
            self.connections = EngineConnections(
                self._channel, parts.config, on_lost=self._on_engine_lost, on_new=self._on_new_engine
            )
            self.requests = RequestService(parts, self.connections, item_cache_from_config(parts.config, self._items))
            stack.callback(self.requests.close)
            self._closing = stack.pop_all()
        parts.store.puts.on_put = self.requests.outputs.put
        self._probes = Probes(self.connections, self._items, parts.config.limits.max_requests_per_client)
        self._flushes = EngineFlushes(self.connections)
        self._engines_fd, self._requests_fd = self.descriptors = self._channel.fileno(), self.requests.fileno()

    # ---- the loop

    @property
    def has_more(self) -> bool:
        return self._channel.has_more

    @property
    def num_open(self) -> int:
        return len(self.requests)

    @property
    def is_idle(self) -> bool:
        return not len(self.requests) and self._probes.is_idle

    def receive(self, ready: AbstractSet[int], guard: Guard) -> None:
        if not (self._engines_fd in ready or self._channel.has_more):
            return
        for peer, message, payload in self._channel.serve(self._share):
            if isinstance(message, RemoteProtocolError):
                self.connections.bad_message(peer, message)
                continue
            connection = self.connections.by_peer(peer)
            error = guard.call("message of an engine", self._handle, peer, connection, message, payload)
            if error is None:
                continue
            if isinstance(message, _OF_CONNECTION):
                if connection is not None:  # its state may be half updated
                    self.connections.lose(connection, str(error))
            elif (number := getattr(message, "request_id", None)) is not None:
                # The message may be half applied: end its request, and no other.
                guard.call("a request that fails", self.requests.fail, number, error)

    def go_on(self, ready: AbstractSet[int], guard: Guard) -> None:
        if self._requests_fd in ready or len(self.requests):
            self.requests.go_on(guard)
        if not self._probes.is_idle:
            guard.call("probes", self._answer_probes)

    def check(self, now: float, guard: Guard) -> None:
        guard.call("look at the engines", self.connections.check)
        guard.call("look at the connections", self._channel.check, now)
        guard.call("look at deadlines", self.requests.check, now)
        if not self._probes.is_idle:  # an engine may have died
            guard.call("probes", self._answer_probes)

    def _answer_probes(self) -> None:
        for peer, answer in self._probes.take_finished(self._parts.clock()):
            self._parts.send(peer, answer, ())

    def drain(self) -> None:
        self._is_draining = True
        self.requests.drain()

    def close(self) -> None:
        self._closing.close()

    # ---- messages of clients

    def take(self, peer: bytes, message: received.GatewayMessage, payload: Sequence[Frame]) -> None:
        match message:
            case received.Generate() | received.Encode():
                self.requests.accept(peer, message, payload)
            case received.TokensTaken():
                self.requests.taken(message)
            case received.Cancel():
                self.requests.cancel(message.client_id, message.request_id)
            case received.GetProcessorInfo() | received.Probe():
                try:
                    self._tell_or_probe(peer, message)
                except MmcachedError as error:
                    self._parts.send(peer, to_client.Failed(message.request_id, error_to_wire(error)), ())
            case _:
                assert_never(message)

    def clients(self) -> set[str]:
        return self.requests.clients()

    def end_client(self, client_id: str, error: MmcachedError | None = None) -> None:
        self.requests.end_client(client_id, error)

    def _tell_or_probe(self, peer: bytes, message: received.GetProcessorInfo | received.Probe) -> None:
        if isinstance(message, received.GetProcessorInfo):
            encoder = self.connections.encoder()
            forms = ServiceForms(encoder.kind, encoder.inputs, encoder.outputs, self._row_forms)
            self._parts.send(peer, to_client.ProcessorInfo(message.request_id, forms), ())
        elif self._is_draining:
            raise ServiceUnavailable("the service is draining")
        else:
            self._probes.start(peer, message.request_id, message.timeout_s, self._parts.clock())

    # ---- messages of engines

    def _handle(
        self, peer: bytes, connection: EngineConnection | None, message: from_engine.FromEngine, payload: list[Frame]
    ) -> None:
        if isinstance(message, from_engine.EngineHello):
            self.connections.greet(peer, message)
            return
        if connection is None:
            return  # the engine was dropped, and its connection is closed
        match message:
            case from_engine.EngineReady():
                former = self.connections.encoder_fingerprint
                self.connections.make_ready(connection, message)
                if former != self.connections.encoder_fingerprint:
                    self._encoder_changed(is_another=bool(former))
            case from_engine.EngineProbed():
                self._probes.answered(connection, message)
            case from_engine.CacheChanged():
                self.connections.cache_changed(connection, message)
            case from_engine.EngineFlushed():
                self._flushes.answered(connection, message)
            case from_engine.TokensCommitted():
                self.requests.tokens_committed(connection, message, payload)
            case (
                from_engine.RequestGenerated()
                | from_engine.RequestEncoded()
                | from_engine.RequestFailed()
                | from_engine.RequestMissed()
            ):
                self.requests.ended(connection, message, payload)
            case _:
                assert_never(message)

    def _on_new_engine(self, connection: EngineConnection) -> None:
        log.info("engine connected", engine=connection.index)
        self.requests.items.engine_changed()

    def _on_engine_lost(self, connection: EngineConnection, reason: str) -> None:
        self.requests.engine_lost(connection, reason)

    # ---- encoder and flushes

    def encoder_fingerprints(self) -> tuple[str, Mapping[Modality, str]]:
        return self.connections.encoder_fingerprint, self.requests.item_fingerprints

    def _encoder_changed(self, *, is_another: bool) -> None:
        """Announce the encoder to the clients, which look up its outputs themselves; a new one drops all content."""
        if is_another:
            log.warning("the encoder is another than before: everything that it may have made is forgotten")
            self.requests.forget_items()
            self._parts.store.flush(is_new_epoch=True)
        self._parts.announce_encoder()

    def begin_flush(self) -> None:
        self.requests.forget_items()
        self._flushes.begin()

    @property
    def is_flushing(self) -> bool:
        return self._flushes.is_open

    # ---- figures

    def ready_engines(self) -> list[int]:
        return sorted(connection.index for connection in self.connections.ready())

    def stats(self, own: FrontendStats) -> FrontendStats:
        requests = self.requests
        return msgspec.structs.replace(
            own,
            requests_open=len(requests),
            requests_done=requests.num_done,
            requests_failed=requests.num_failed,
            protocol_errors=own.protocol_errors + self.connections.num_protocol_errors,
            resends=requests.num_resends,
            items_beyond_quota=requests.num_beyond_quota,
            items=self._item_stats(),
            processor=requests.processor_stats(),
            desyncs=requests.items.num_desyncs,
            slow_log=SlowLog.of([*requests.slow.last, *own.slow_log.last]),
        )

    def _item_stats(self) -> ItemStats:
        items = self._items
        if not items.has_ring or not self._config.ring_data_bytes:
            return ItemStats()
        return ItemStats(
            capacity_bytes=self._config.ring_data_bytes,
            used_bytes=items.num_bytes,
            pinned_bytes=self.requests.pinned_bytes,
            entries=len(items),
            puts=items.num_puts,
            evictions=items.num_evictions,
            refusals=self.requests.items.stats().inline_fallbacks,
        )
