"""Flushes: the frontend drops its records, every engine its caches, the second level its records.

A flush makes all content that is cached or being computed unreachable; running requests go on. It is answered when all
parts have confirmed it. The next flush begins `limits.flush_interval_s` after the last, so a client that flushes in a
loop empties the caches but takes no time from others. A new epoch also invalidates what the clients are computing for
the store. A second level is flushed for all hosts; if that fails, the client gets an error after everything else is
dropped.
"""

from __future__ import annotations

from mmcached.frontend.mount import Gateway
from mmcached.frontend.rounds import AnswerTo, Rounds
from mmcached.frontend.store.store_service import StoreService
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError
from mmcached.wire.messages.client import Flushed

FLUSH_TIMEOUT_S = 30.0


class Flushes(Rounds):
    """The current flush, and the clients that wait for the next."""

    def __init__(self, config: ServiceConfig, store: StoreService, gateway: Gateway) -> None:
        super().__init__(config.limits.max_requests_per_client)
        self._store = store
        self._gateway = gateway
        self._min_interval_s = config.limits.flush_interval_s
        self._begins_epoch = False
        self._version = ""
        self._next_begin = float("-inf")

    def start(self, peer: bytes, request_id: int, now: float, *, new_epoch: bool, version: str = "") -> None:
        """Add a client's flush; raise `ServiceUnavailable` if too many of its connection wait."""
        self.ask(peer, request_id, FLUSH_TIMEOUT_S, now)
        self._begins_epoch |= new_epoch or bool(version)
        self._version = version or self._version

    def _may_begin(self, now: float) -> bool:
        return now >= self._next_begin

    def _begin(self, now: float) -> None:
        self._next_begin = now + self._min_interval_s
        self._gateway.begin_flush()
        self._store.flush(is_new_epoch=self._begins_epoch)
        self._begins_epoch = False
        self._store.second_level.begin_flush(self._version)
        self._version = ""

    def _outcome(self) -> AnswerTo | MmcachedError | None:
        if self._gateway.is_flushing:
            return None
        second_level = self._store.second_level
        return second_level.flush_error() if second_level.is_flushing else Flushed

    def _waits_for(self) -> str:
        return "flush"
