"""Flushing: the frontend forgets its items, every engine its books and its workers' caches; answered when all have.

    start ──> waiting ──one round at a time, `min_interval_s` apart──> answered

A flush makes everything that is cached, or is being computed, unreachable; what runs goes on. All who ask while a
round is under way, or soon after one, are answered by the next: a client that flushes in a loop takes the caches from
all, and no time. With a new epoch the clients' store gives up what is being computed, too.
"""

from __future__ import annotations

from collections.abc import Callable

from mmcached.frontend.engines.askers import Asker, Askers
from mmcached.frontend.engines.engine_gate import EngineGate
from mmcached.frontend.engines.engine_links import EngineLink
from mmcached.wire.errors import DeadlineExceeded, MmcachedError
from mmcached.wire.messages.client import Flushed
from mmcached.wire.messages.engine import FlushEngine

FLUSH_TIMEOUT_S = 30.0


class Flushes:
    """The flush that is under way, and who waits for the next.

    Args:
        forget: empties the frontend's own caches; told whether a new epoch is to begin.
        min_interval_s: from the begin of one to the next.
        max_per_peer: questions of one connection that may wait.
    """

    def __init__(
        self, gate: EngineGate, *, forget: Callable[[bool], None], min_interval_s: float, max_per_peer: int
    ) -> None:
        self._gate = gate
        self._forget = forget
        self._min_interval_s = min_interval_s
        self._askers = Askers(max_per_peer)
        self._begins_epoch = False
        self._next_begin = float("-inf")
        self._token = 0
        self._missing: set[int] = set()

    def start(self, peer: bytes, request_id: int, now: float, *, new_epoch: bool) -> None:
        """Take a question.

        Raises:
            ServiceUnavailable: too many of this connection wait.
        """
        self._askers.add(Asker(peer, request_id, now + FLUSH_TIMEOUT_S, FLUSH_TIMEOUT_S))
        self._begins_epoch |= new_epoch
        self._begin(now)

    def answered(self, link: EngineLink, token: int) -> None:
        if token == self._token:
            self._missing.discard(link.incarnation)

    def take_finished(self, now: float) -> list[tuple[Asker, Flushed | MmcachedError]]:
        """Return those who have an outcome; an engine that died counts as flushed."""
        finished: list[tuple[Asker, Flushed | MmcachedError]] = []
        if self._askers.is_under_way and not any(self._gate.links.get(incarnation) for incarnation in self._missing):
            finished += [(asker, Flushed(asker.request_id)) for asker in self._askers.finish()]
        expired = self._askers.take_expired(now)
        finished += [(asker, DeadlineExceeded("flush", asker.timeout_s)) for asker in expired]
        self._begin(now)
        return finished

    def _begin(self, now: float) -> None:
        if now < self._next_begin or not self._askers.begin():
            return
        self._next_begin = now + self._min_interval_s
        self._forget(self._begins_epoch)
        self._begins_epoch = False
        self._token += 1
        links = list(self._gate.links)
        self._missing = {link.incarnation for link in links}
        for link in links:
            self._gate.tell(link, FlushEngine(self._token))
