"""Tells others what the engine's caches hold: the frontend, which routes by it, and subscribers of KV events."""

from __future__ import annotations

from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.server.frontend_connection import FrontendConnection
from mmcached.engine.server.held_content import HeldContent
from mmcached.engine.server.kv_event_publisher import KVEventPublisher
from mmcached.wire.config import ServiceConfig


class CacheNews:
    """What is told of one engine's caches.

    Args:
        publisher: of KV events; None: nobody may subscribe.
    Attributes:
        is_heard: the frontend counts on this engine.
        is_replaying: a subscriber is to hear more of what was published before.
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
        self._held = HeldContent() if config.routes_by_content else None
        self._is_shared = config.encoder_cache_scope == "shared"

    @property
    def is_routed_by(self) -> bool:
        """Whether the frontend routes by what the caches hold."""
        return self._held is not None

    def publish(self) -> None:
        """Tell all, and serve the subscribers who ask for what was published before."""
        if self._publisher is not None:
            self.is_replaying = False
            self.tell()
            self.is_replaying = self._publisher.serve_replay()

    def tell(self) -> None:
        """Publish what has changed in the prefix cache, and tell the frontend of what it routes by."""
        events = self._scheduler.kv_cache_manager.take_events()
        if self._held is not None:
            self._held.note(
                events, self._scheduler.encoder_cache_manager.ready_contents() if self._is_shared else set()
            )
            if self.is_heard:
                self._held.tell(self._frontend.channel.send)
        if self._publisher is not None:
            self._publisher.publish(events)

    def tell_anew(self) -> None:
        """Tell a frontend everything, which knows nothing yet."""
        if self._held is not None:
            self._held.forget_frontend()
            self.tell()
