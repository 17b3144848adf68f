"""Flushing: the frontend forgets its items, every engine its books and its workers' caches; answered when all have.

With a new epoch the engines do so at once, and what they are computing is unreachable too.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.frontend.engine_gate import EngineGate
from mmcached.frontend.engine_links import EngineLink
from mmcached.wire.errors import DeadlineExceeded, MmcachedError
from mmcached.wire.messages.client import Flushed
from mmcached.wire.messages.engine import FlushEngine

FLUSH_TIMEOUT_S = 30.0
"""An engine flushes between two steps, so it may take as long as a step."""


@dataclass(slots=True)
class _Flush:
    peer: bytes
    request_id: int
    deadline: float
    missing: set[int]


class Flushes:
    """The flushes that are under way."""

    def __init__(self, gate: EngineGate) -> None:
        self._gate = gate
        self._open: dict[int, _Flush] = {}
        self._last_token = 0

    def start(self, peer: bytes, request_id: int, now: float, *, new_epoch: bool) -> None:
        self._last_token += 1
        links = list(self._gate.links)
        missing = {link.incarnation for link in links}
        self._open[self._last_token] = _Flush(peer, request_id, now + FLUSH_TIMEOUT_S, missing)
        for link in links:
            self._gate.tell(link, FlushEngine(self._last_token, new_epoch))

    def answered(self, link: EngineLink, token: int) -> None:
        flush = self._open.get(token)
        if flush is not None:
            flush.missing.discard(link.incarnation)

    def take_finished(self, now: float) -> list[tuple[bytes, int, Flushed | MmcachedError]]:
        """Return and forget the flushes that have an outcome; an engine that died counts as flushed."""
        finished: list[tuple[bytes, int, Flushed | MmcachedError]] = []
        for token, flush in list(self._open.items()):
            if not any(self._gate.links.get(incarnation) for incarnation in flush.missing):
                finished.append((flush.peer, flush.request_id, Flushed(flush.request_id)))
            elif flush.deadline <= now:
                finished.append((flush.peer, flush.request_id, DeadlineExceeded("flush", FLUSH_TIMEOUT_S)))
            else:
                continue
            del self._open[token]
        return finished
