"""Handles messages of the frontend (requests, probes, flushes), and tells it when the workers are ready."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.server.cache_news import CacheNews
from mmcached.engine.server.frontend_connection import FrontendConnection
from mmcached.engine.server.item_frames import ItemFrames
from mmcached.engine.server.open_requests import EngineRequests
from mmcached.engine.server.probes import EngineProbes
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.wire.errors import RemoteProtocolError, error_from_wire
from mmcached.wire.messages import engine as received
from mmcached.wire.messages import frontend_from_engines as to_frontend
from mmcached.wire.process.turns import Guard, TurnShare
from mmcached.wire.sockets.frames import Frame

log = structlog.get_logger("mmcached.engine")


class FrontendMessages:
    """Handler of the frontend's messages; `publish` publishes the statistics before a flush is answered."""

    def __init__(
        self,
        frontend: FrontendConnection,
        group: WorkerGroup,
        scheduler: Scheduler,
        requests: EngineRequests,
        *,
        world_size: int,
        items: ItemFrames,
        probes: EngineProbes,
        news: CacheNews,
        guard: Guard,
        publish: Callable[[], object],
    ) -> None:
        self._frontend = frontend
        self._group = group
        self._scheduler = scheduler
        self._requests = requests
        self._world_size = world_size
        self._items = items
        self._probes = probes
        self._news = news
        self._guard = guard
        self._publish = publish
        self._ready_with: str | None = None  # the fingerprint last sent to the frontend

    def serve(self, share: TurnShare) -> None:
        """Handle the frontend's share of messages in one turn of the loop.

        Raises `ConfigError` if the frontend refuses this engine because of its configuration.
        """
        for _ in share:
            try:
                received_now = self._frontend.dialer.try_receive()
            except RemoteProtocolError as error:
                log.warning("bad message from the frontend", reason=str(error))
                continue
            if received_now is None:
                return
            message, payload = received_now
            if isinstance(message, received.Refused):
                raise error_from_wire(message.error)
            fault = self._guard.call("message of the frontend", self._handle, message, payload)
            if fault is not None and isinstance(message, received.AddRequest):
                self._scheduler.abort(message.request_id)
                self._requests.end_with(message.request_id, fault)

    def send_ready(self) -> None:
        """Tell the frontend that the workers are ready: once, and again when the encoder fingerprint changes."""
        fingerprint = self._group.encoder_fingerprint
        if self._frontend.is_known and self._group.are_all_attached and self._ready_with != fingerprint:
            self._ready_with = fingerprint
            self._news.is_heard = True
            self._frontend.send(to_frontend.EngineReady(self._world_size, fingerprint, self._group.encoder))
            self._news.announce_all()

    def _handle(self, message: received.FromFrontend, payload: list[Frame]) -> None:
        match message:
            case received.Greeted():
                if self._frontend.on_greeted(message):
                    self._start_over()
                self._ready_with = None
                self._news.is_heard = False
            case received.AddRequest():
                self._requests.add(message, payload)
            case received.AbortRequest():
                self._requests.abort(message.request_id)
            case received.ProbeEngine():
                if not self._probes.start(message, payload):
                    self._frontend.send(to_frontend.EngineProbed(message.token, []))
            case received.FlushEngine():
                self._items.clear_cache()  # at once: later messages rely on an empty cache
                self._requests.forget_outputs()
                self._scheduler.caches.new_epoch()
                self._publish()
                if self._news.is_routed_by:
                    self._news.announce()
                self._frontend.send(to_frontend.EngineFlushed(message.token))

    def _start_over(self) -> None:
        if self._requests:
            log.warning("new frontend session: requests of the former one are aborted", requests=len(self._requests))
        self._requests.abort_all()
        self._items.clear()
        self._probes.take_all()
