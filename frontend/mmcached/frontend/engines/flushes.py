"""Flushing: the frontend forgets its items, every engine its books and its workers' caches; answered when all have.

A flush makes everything that is cached, or is being computed, unreachable; what runs goes on. The next one begins
`min_interval_s` after the last: a client that flushes in a loop takes the caches from all, and no time. With a new
epoch the clients' store gives up what is being computed, too. A second level is told to forget, for all hosts; if it
has not, who asks is told so, when all else is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmcached.frontend.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.frontend.engines.rounds import AnswerTo, EngineRounds
from mmcached.frontend.store.second_level import SecondLevel
from mmcached.wire.errors import MmcachedError
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
