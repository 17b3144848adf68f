"""Asks the engines the same thing for all who want to know it, one round at a time, and answers them together.

    ask ──> waiting ──begin──> asked ──outcome──> answered         the round that answers begins after the question
              └──────────────────┴── time is over: a round that nobody waits for any more is over

However many ask, however often, there is one round under way, and the next one is for all who have come meanwhile.
Knows nothing of what is asked: `flushes` and `probes` do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mmcached.frontend.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.wire.errors import DeadlineExceeded, MmcachedError, ServiceUnavailable, error_to_wire
from mmcached.wire.messages.client import Failed, ToClient

AnswerTo = Callable[[int], ToClient]
"""Makes the answer to the question with this number."""


class Asker(NamedTuple):
    """One question of a client; `deadline` on the frontend's clock, `timeout_s` what it was at first."""

    peer: bytes
    request_id: int
    deadline: float
    timeout_s: float


class EngineRounds(ABC):
    """One kind of question; of one connection `max_per_peer` may wait."""

    def __init__(self, connections: EngineConnections, max_per_peer: int) -> None:
        self._connections = connections
        self._max_per_peer = max_per_peer
        self._waiting: list[Asker] = []
        self._asked: list[Asker] = []  # empty: no round is under way
        self._num_of_peer: Counter[bytes] = Counter()
        self._token = 0
        self._missing: dict[int, EngineConnection] = {}

    def ask(self, peer: bytes, request_id: int, timeout_s: float, now: float) -> None:
        """Let one wait for the next round; raise `ServiceUnavailable` if too many of its connection do already."""
        check_room(self._num_of_peer[peer], self._max_per_peer)
        self._num_of_peer[peer] += 1
        self._waiting.append(Asker(peer, request_id, now + timeout_s, timeout_s))

    @property
    def is_idle(self) -> bool:
        """Nobody waits for an answer."""
        return not self._asked and not self._waiting

    def take_finished(self, now: float) -> list[tuple[bytes, ToClient]]:
        """Return the connections that are answered now, and with what; the next round begins if anybody waits."""
        finished: list[tuple[bytes, ToClient]] = []
        if self.is_idle:
            return finished
        finished += self._settle()
        for asker in (*self._asked, *self._waiting):
            if asker.deadline <= now:
                finished += self._answers([asker], DeadlineExceeded(self._waits_for(), asker.timeout_s))
        self._asked = [asker for asker in self._asked if asker.deadline > now]
        self._waiting = [asker for asker in self._waiting if asker.deadline > now]
        if not self._asked:  # nobody waits for the round: who came later must not wait for its engines
            self._missing.clear()
            self._end()
            if self._waiting and self._may_begin(now):
                finished += self._begin_round(now)
                if not self._missing:  # no engine was asked
                    finished += self._settle()
        return finished

    def _settle(self) -> list[tuple[bytes, ToClient]]:
        """Return the answers to the round that is under way, if it has an outcome."""
        if not self._asked or (outcome := self._outcome(list(self._missing.values()))) is None:
            return []
        asked, self._asked = self._asked, []
        return self._answers(asked, outcome)

    def _begin_round(self, now: float) -> list[tuple[bytes, ToClient]]:
        """Ask for all who wait; return what they are answered if that cannot be done."""
        self._token += 1
        try:
            connections = self._begin(self._token, now)
        except MmcachedError as error:
            self._end()
            waiting, self._waiting = self._waiting, []
            return self._answers(waiting, error)
        self._missing = {connection.incarnation: connection for connection in connections}
        self._asked, self._waiting = self._waiting, []
        return []

    @abstractmethod
    def _begin(self, token: int, now: float) -> Sequence[EngineConnection]:
        """Send the question, and return the engines that have it; raise `MmcachedError` if it cannot be asked now."""

    @abstractmethod
    def _outcome(self, missing: Sequence[EngineConnection]) -> AnswerTo | MmcachedError | None:
        """Return the answer for all who have asked; None: it is not known yet.

        Args:
            missing: engines that have not answered, whether they live or not.
        """

    @abstractmethod
    def _waits_for(self) -> str:
        """Return what has not come, for the error."""

    def _may_begin(self, now: float) -> bool:
        return True

    def _end(self) -> None:  # noqa: B027 (a round may hold nothing)
        """Let go of what the round has held."""

    def _has_answered(self, connection: EngineConnection, token: int) -> bool:
        """Take note of an engine's answer; return False for a late one, or a second."""
        return token == self._token and self._missing.pop(connection.incarnation, None) is not None

    def _is_gone(self, connection: EngineConnection) -> bool:
        return self._connections.get(connection.incarnation) is None

    def _answers(self, askers: Sequence[Asker], outcome: AnswerTo | MmcachedError) -> list[tuple[bytes, ToClient]]:
        answers: list[tuple[bytes, ToClient]] = []
        for asker in askers:
            self._num_of_peer[asker.peer] -= 1
            if not self._num_of_peer[asker.peer]:
                del self._num_of_peer[asker.peer]
            if isinstance(outcome, MmcachedError):
                answers.append((asker.peer, Failed(asker.request_id, error_to_wire(outcome))))
            else:
                answers.append((asker.peer, outcome(asker.request_id)))
        return answers


def check_room(num_waiting: int, limit: int) -> None:
    """Raise `ServiceUnavailable` if so many questions of a connection wait that there may be no other."""
    if num_waiting >= limit:
        reason = f"{limit} questions of this kind wait for an answer (limits.max_requests_per_client); try again later"
        raise ServiceUnavailable(reason, field="limits.max_requests_per_client", value=limit + 1, limit=limit)
