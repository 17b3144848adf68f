"""Gathers the engines' counters for all who ask with `GetStats`: one round to all ready engines at a time."""

from __future__ import annotations

from mmcached.frontend.engines.askers import Asker, Askers
from mmcached.frontend.engines.engine_gate import EngineGate
from mmcached.frontend.engines.engine_links import EngineLink
from mmcached.wire.messages.engine import GetEngineStats
from mmcached.wire.messages.frontend import EngineStatsReply
from mmcached.wire.stats import EngineStats

STATS_TIMEOUT_S = 2.0
"""An engine in a long step answers late; after this the others' figures are sent without it."""


class StatsCollector:
    """Who asks for figures, and which engines (by incarnation) still owe theirs.

    Args:
        max_per_peer: questions of one connection that may wait.
    """

    def __init__(self, gate: EngineGate, max_per_peer: int) -> None:
        self._gate = gate
        self._askers = Askers(max_per_peer)
        self._token = 0
        self._missing: set[int] = set()
        self._replies: list[EngineStats] = []
        self._give_up = 0.0

    def ask(self, peer: bytes, request_id: int, now: float) -> None:
        """Take a question.

        Raises:
            ServiceUnavailable: too many of this connection wait.
        """
        self._askers.add(Asker(peer, request_id, now + 2 * STATS_TIMEOUT_S, STATS_TIMEOUT_S))
        self._begin(now)

    def add_reply(self, link: EngineLink, message: EngineStatsReply) -> None:
        """Take an engine's figures; late ones, or a second time, they are nobody's."""
        if message.token == self._token and link.incarnation in self._missing:
            self._missing.discard(link.incarnation)
            self._replies.append(message.stats)

    def take_complete(self, now: float) -> tuple[list[Asker], list[EngineStats]]:
        """Return those who are answered now, and with what; the next round begins if anybody waits for it."""
        if not self._askers.is_under_way:
            return [], []
        if self._give_up > now and any(self._gate.links.get(incarnation) for incarnation in self._missing):
            return [], []
        self._missing.clear()
        answered = self._askers.finish(), self._replies
        self._begin(now)
        return answered

    def _begin(self, now: float) -> None:
        if not self._askers.begin():
            return
        self._token += 1
        self._give_up = now + STATS_TIMEOUT_S
        self._replies = []
        asked = [link for link in self._gate.links if link.is_ready]
        self._missing = {link.incarnation for link in asked}
        for link in asked:
            self._gate.tell(link, GetEngineStats(self._token))
