"""Answers a question of many clients with one round of work at a time.

    ask ──> waiting ──begin──> asked ──outcome──> answered         the round begins after the client's question
              └──────────────────┴── deadline: a round without waiting clients is dropped

At most one round is open; the next one answers all clients that have asked meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mmcached.wire.errors import DeadlineExceeded, MmcachedError, ServiceUnavailable, error_to_wire
from mmcached.wire.messages.client import Failed, ToClient

AnswerTo = Callable[[int], ToClient]
"""Creates the answer to the request with this id."""


class Asker(NamedTuple):
    """One client's question; `deadline` on the frontend's clock, `timeout_s` as the client gave it."""

    peer: bytes
    request_id: int
    deadline: float
    timeout_s: float


class Rounds(ABC):
    """Rounds of one kind of question; at most `max_per_peer` questions of one connection may wait."""

    def __init__(self, max_per_peer: int) -> None:
        self._max_per_peer = max_per_peer
        self._waiting: list[Asker] = []
        self._asked: list[Asker] = []  # empty: no round is under way
        self._num_of_peer: Counter[bytes] = Counter()

    def ask(self, peer: bytes, request_id: int, timeout_s: float, now: float) -> None:
        """Add a question to the next round; raise `ServiceUnavailable` if too many of its connection wait."""
        check_room(self._num_of_peer[peer], self._max_per_peer)
        self._num_of_peer[peer] += 1
        self._waiting.append(Asker(peer, request_id, now + timeout_s, timeout_s))

    @property
    def is_idle(self) -> bool:
        """Whether no client waits for an answer."""
        return not self._asked and not self._waiting

    def take_finished(self, now: float) -> list[tuple[bytes, ToClient]]:
        """Return the connections with a finished answer, and the answers; begin the next round if a question waits."""
        finished: list[tuple[bytes, ToClient]] = []
        if self.is_idle:
            return finished
        finished += self._settle()
        for asker in (*self._asked, *self._waiting):
            if asker.deadline <= now:
                finished += self._answers([asker], DeadlineExceeded(self._waits_for(), asker.timeout_s))
        self._asked = [asker for asker in self._asked if asker.deadline > now]
        self._waiting = [asker for asker in self._waiting if asker.deadline > now]
        if not self._asked:  # later questions must not wait for a round without a client
            self._end()
            if self._waiting and self._may_begin(now):
                finished += self._begin_round(now)
        return finished

    def _settle(self) -> list[tuple[bytes, ToClient]]:
        """Return the answers of the current round, if it has an outcome."""
        if not self._asked or (outcome := self._outcome()) is None:
            return []
        asked, self._asked = self._asked, []
        return self._answers(asked, outcome)

    def _begin_round(self, now: float) -> list[tuple[bytes, ToClient]]:
        """Begin a round for all waiting questions; return the answers if it has ended, or could not begin."""
        try:
            self._begin(now)
        except MmcachedError as error:
            self._end()
            waiting, self._waiting = self._waiting, []
            return self._answers(waiting, error)
        self._asked, self._waiting = self._waiting, []
        return self._settle()

    @abstractmethod
    def _begin(self, now: float) -> None:
        """Ask the question; raise `MmcachedError` if it cannot be asked now."""

    @abstractmethod
    def _outcome(self) -> AnswerTo | MmcachedError | None:
        """Return the answer for all clients of the round; None: not known yet."""

    @abstractmethod
    def _waits_for(self) -> str:
        """Return the missing answers in words, for the error."""

    def _may_begin(self, now: float) -> bool:
        return True

    def _end(self) -> None:  # noqa: B027 (a round may hold nothing)
        """Release the resources of the round."""

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
    """Raise `ServiceUnavailable` if a connection has `limit` waiting questions."""
    if num_waiting >= limit:
        reason = f"{limit} questions of this kind wait for an answer (limits.max_requests_per_client); try again later"
        raise ServiceUnavailable(reason, field="limits.max_requests_per_client", value=limit + 1, limit=limit)
