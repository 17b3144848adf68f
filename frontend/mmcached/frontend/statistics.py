"""The small conversation that gathers the engines' counters for one `GetStats`."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmcached.wire.stats import EngineStats

STATS_TIMEOUT_S = 2.0
"""An engine in a long step answers late; after this the others' figures are sent without it."""


@dataclass(slots=True)
class _Question:
    peer: bytes
    request_id: int
    missing: set[int]
    give_up: float
    replies: list[EngineStats] = field(default_factory=list)


class StatsCollector:
    """Remembers which engines (by incarnation) still owe an answer to which client."""

    def __init__(self) -> None:
        self._questions: dict[int, _Question] = {}
        self._last_token = 0

    def ask(self, peer: bytes, request_id: int, engines: list[int], now: float) -> int:
        """Open a question to these engines; return its token."""
        self._last_token += 1
        self._questions[self._last_token] = _Question(peer, request_id, set(engines), now + STATS_TIMEOUT_S)
        return self._last_token

    def add_reply(self, engine: int, token: int, stats: EngineStats) -> None:
        question = self._questions.get(token)
        if question is not None and engine in question.missing:
            question.missing.discard(engine)
            question.replies.append(stats)

    def take_complete(self, now: float) -> list[tuple[bytes, int, list[EngineStats]]]:
        """Return and forget the questions that are answered or too old: `(client, request id, engines)`."""
        done = [token for token, q in self._questions.items() if not q.missing or q.give_up <= now]
        taken = [self._questions.pop(token) for token in done]
        return [(question.peer, question.request_id, question.replies) for question in taken]
