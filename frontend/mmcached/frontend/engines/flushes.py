"""Flushing: the frontend forgets its items, every engine its books and its workers' caches; answered when all have.

A flush makes everything that is cached, or is being computed, unreachable; what runs goes on. The next one begins
`min_interval_s` after the last: a client that flushes in a loop takes the caches from all, and no time. With a new
epoch the clients' store gives up what is being computed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmcached.frontend.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.frontend.engines.rounds import AnswerTo, EngineRounds
from mmcached.wire.messages.client import Flushed
from mmcached.wire.messages.engine import FlushEngine
from mmcached.wire.messages.frontend import EngineFlushed

FLUSH_TIMEOUT_S = 30.0


class Flushes(EngineRounds):
    """The flush that is under way, and who waits for the next.

    Args:
        forget: empties the frontend's own caches; told whether a new epoch is to begin.
        min_interval_s: from the begin of one to the next.
    """

    def __init__(
        self,
        connections: EngineConnections,
        *,
        forget: Callable[[bool], None],
        min_interval_s: float,
        max_per_peer: int,
    ) -> None:
        super().__init__(connections, max_per_peer)
        self._forget = forget
        self._min_interval_s = min_interval_s
        self._begins_epoch = False
        self._next_begin = float("-inf")

    def start(self, peer: bytes, request_id: int, now: float, *, new_epoch: bool) -> None:
        """Take a question; raise `ServiceUnavailable` if too many of its connection wait."""
        self.ask(peer, request_id, FLUSH_TIMEOUT_S, now)
        self._begins_epoch |= new_epoch

    def answered(self, connection: EngineConnection, message: EngineFlushed) -> None:
        """Take an engine's answer; a late one, or a second, changes nothing."""
        self._has_answered(connection, message.token)

    def _may_begin(self, now: float) -> bool:
        return now >= self._next_begin

    def _begin(self, token: int, now: float) -> Sequence[EngineConnection]:
        self._next_begin = now + self._min_interval_s
        self._forget(self._begins_epoch)
        self._begins_epoch = False
        connections = list(self._connections)
        for connection in connections:
            self._connections.tell(connection, FlushEngine(token))
        return connections

    def _outcome(self, missing: Sequence[EngineConnection]) -> AnswerTo | None:
        # An engine that died has forgotten everything.
        return Flushed if all(self._is_gone(connection) for connection in missing) else None

    def _waits_for(self) -> str:
        return "flush"
