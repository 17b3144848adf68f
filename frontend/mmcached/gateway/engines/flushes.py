"""Flushes: the frontend drops its items, every engine its blocks and its workers' caches; answered when all have.

A flush makes all content that is cached or being computed unreachable; running requests go on. The next flush begins
`min_interval_s` after the last, so a client that flushes in a loop empties the caches but takes no time from others. A
new epoch also invalidates what the clients' store is computing. A second level is flushed for all hosts; if that fails,
the client gets an error after everything else is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmcached.frontend.store.second_level import SecondLevel
from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.gateway.engines.rounds import AnswerTo, EngineRounds
from mmcached.wire.errors import MmcachedError
from mmcached.wire.messages.client import Flushed
from mmcached.wire.messages.engine import FlushEngine
from mmcached.wire.messages.frontend_from_engines import EngineFlushed

FLUSH_TIMEOUT_S = 30.0


class Flushes(EngineRounds):
    """The current flush, and the clients that wait for the next.

    Args:
        forget: Empties the frontend's own caches; its argument: whether a new epoch begins.
        min_interval_s: Minimum time from the begin of one flush to the next.
    """

    def __init__(
        self,
        connections: EngineConnections,
        *,
        forget: Callable[[bool], None],
        second_level: SecondLevel,
        min_interval_s: float,
        max_per_peer: int,
    ) -> None:
        super().__init__(connections, max_per_peer)
        self._forget = forget
        self._second_level = second_level
        self._min_interval_s = min_interval_s
        self._begins_epoch = False
        self._next_begin = float("-inf")

    def start(self, peer: bytes, request_id: int, now: float, *, new_epoch: bool) -> None:
        """Add a client's flush; raise `ServiceUnavailable` if too many of its connection wait."""
        self.ask(peer, request_id, FLUSH_TIMEOUT_S, now)
        self._begins_epoch |= new_epoch

    def answered(self, connection: EngineConnection, message: EngineFlushed) -> None:
        """Record an engine's answer; a late or repeated one changes nothing."""
        self._has_answered(connection, message.token)

    def _may_begin(self, now: float) -> bool:
        return now >= self._next_begin

    def _begin(self, token: int, now: float) -> Sequence[EngineConnection]:
        self._next_begin = now + self._min_interval_s
        self._forget(self._begins_epoch)
        self._begins_epoch = False
        self._second_level.begin_flush()
        connections = list(self._connections)
        for connection in connections:
            self._connections.tell(connection, FlushEngine(token))
        return connections

    def _outcome(self, missing: Sequence[EngineConnection]) -> AnswerTo | MmcachedError | None:
        # An engine that died has forgotten everything.
        if not all(self._is_gone(connection) for connection in missing):
            return None
        return self._second_level.flush_error() if self._second_level.is_flushing else Flushed

    def _waits_for(self) -> str:
        return "flush"
