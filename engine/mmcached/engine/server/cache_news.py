"""Announces changes of the engine's caches to the frontend, which routes by them, and to KV event subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.server.frontend_connection import FrontendConnection
from mmcached.engine.server.held_content import ContentReporter
from mmcached.wire.config import ServiceConfig

if TYPE_CHECKING:
    from mmcached.engine.server.kv_event_publisher import KVEventPublisher


class CacheNews:
    """Announcements of one engine's cache contents.

    Attributes:
        is_heard: whether the frontend knows that this engine is ready, so that it may be told of cache contents.
        is_replaying: whether a replay of KV events is unfinished.
    """

    def __init__(
        self,
        config: ServiceConfig,
        scheduler: Scheduler,
        frontend: FrontendConnection,
        publisher: KVEventPublisher | None,
    ) -> None:
        self.is_heard = False
        self.is_replaying = False
        self._scheduler = scheduler
        self._frontend = frontend
        self._publisher = publisher
        self._held = ContentReporter() if config.routes_by_content else None
        self._is_shared = config.encoder_cache_scope == "shared"

    @property
    def is_routed_by(self) -> bool:
        return self._held is not None

    def publish(self) -> None:
        """Announce changes, if KV events are enabled, and send the next part of a replay."""
        if self._publisher is not None:
            self.is_replaying = False
            self.announce()
            self.is_replaying = self._publisher.serve_replay()

    def announce(self) -> None:
        """Announce changes to the frontend, if it routes by them, and to subscribers."""
        events = self._scheduler.kv_cache_manager.take_events()
        if self._held is not None:
            self._held.note(
                events, self._scheduler.encoder_cache_manager.ready_contents() if self._is_shared else set()
            )
            if self.is_heard:
                self._held.tell(self._frontend.dialer.send)
        if self._publisher is not None:
            self._publisher.publish(events)

    def announce_all(self) -> None:
        """Announce all content to a frontend that knows nothing yet."""
        if self._held is not None:
            self._held.forget_frontend()
            self.announce()
