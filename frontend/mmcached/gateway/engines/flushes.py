"""Flushes of the engines: every engine drops its blocks and its workers' caches, and confirms it."""

from __future__ import annotations

from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.wire.messages.engine import FlushEngine
from mmcached.wire.messages.frontend_from_engines import EngineFlushed


class EngineFlushes:
    """The last flush; the engines that have not confirmed it, by incarnation."""

    def __init__(self, connections: EngineConnections) -> None:
        self._connections = connections
        self._token = 0
        self._missing: set[int] = set()

    def begin(self) -> None:
        """Tell all engines to drop their content."""
        self._token += 1
        self._missing = {connection.incarnation for connection in self._connections}
        for connection in self._connections:
            self._connections.tell(connection, FlushEngine(self._token))

    def answered(self, connection: EngineConnection, message: EngineFlushed) -> None:
        """Record an engine's answer; a late or repeated one changes nothing."""
        if message.token == self._token:
            self._missing.discard(connection.incarnation)

    @property
    def is_open(self) -> bool:
        """Whether a live engine has not confirmed the flush; an engine that died has lost its content."""
        return any(self._connections.get(incarnation) is not None for incarnation in self._missing)
