"""Gathers those who wait for the same answer: figures, a probe or a flush, one round to the engines at a time.

    add ──> waiting ──begin──> asked ──finish──> answered          the round that answers begins after the question
              └──────────────────┴── take_expired: a round that nobody waits for any more is over

However many ask, however often, there is one round under way, and the next one is for all who have come meanwhile.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mmcached.wire.errors import ServiceUnavailable


@dataclass(frozen=True, slots=True)
class Asker:
    """One question of a client; `deadline` on the frontend's clock, `timeout_s` what it was at first."""

    peer: bytes
    request_id: int
    deadline: float
    timeout_s: float


class Askers:
    """Those who wait for one kind of answer.

    Args:
        max_per_peer: questions of one connection that may wait.
    """

    def __init__(self, max_per_peer: int) -> None:
        self._max_per_peer = max_per_peer
        self._waiting: list[Asker] = []
        self._asked: list[Asker] = []
        self._num_of_peer: Counter[bytes] = Counter()
        self.is_under_way = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._asked)

    def add(self, asker: Asker) -> None:
        """Let one wait for the next round.

        Raises:
            ServiceUnavailable: too many questions of that connection wait already.
        """
        if self._num_of_peer[asker.peer] >= self._max_per_peer:
            limit = self._max_per_peer
            reason = (
                f"{limit} questions of this kind wait for an answer (limits.max_requests_per_client); try again later"
            )
            raise ServiceUnavailable(reason, field="limits.max_requests_per_client", value=limit + 1, limit=limit)
        self._num_of_peer[asker.peer] += 1
        self._waiting.append(asker)

    def begin(self) -> bool:
        """Begin a round for all who wait; return whether there is anything to begin."""
        if self.is_under_way or not self._waiting:
            return False
        self._asked, self._waiting = self._waiting, []
        self.is_under_way = True
        return True

    def finish(self) -> list[Asker]:
        """End the round under way; return those whom its outcome answers."""
        asked, self._asked = self._asked, []
        self.is_under_way = False
        return self._gone(asked)

    def take_expired(self, now: float) -> list[Asker]:
        """Return and forget those whose time is over; with the last one that was asked for, the round is over."""
        expired = [asker for asker in (*self._asked, *self._waiting) if asker.deadline <= now]
        if expired:
            self._asked = [asker for asker in self._asked if asker.deadline > now]
            self._waiting = [asker for asker in self._waiting if asker.deadline > now]
            # Whoever came later must not wait for an answer that may never come.
            self.is_under_way = bool(self._asked)
        return self._gone(expired)

    def _gone(self, askers: list[Asker]) -> list[Asker]:
        for asker in askers:
            self._num_of_peer[asker.peer] -= 1
            if not self._num_of_peer[asker.peer]:
                del self._num_of_peer[asker.peer]
        return askers
