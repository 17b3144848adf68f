"""A circuit breaker: a server that has failed repeatedly is not called for a while.

    closed ──`failures` in succession──> open ──a pause──> probing ──it answers──> closed
                                          ▲                   │
                                          └──── it fails: the next pause is twice as long

One call at a time probes; the others fail at once meanwhile. Does no I/O and reads no clock: callers pass monotonic
seconds. Any thread may call.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Literal

from mmcached.second_level.backend import BackendError

FAILURES = 5
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
JITTER = 0.2
"""Random part of a pause, so that hosts do not retry all at once."""

State = Literal["closed", "open", "probing"]


class CircuitOpen(BackendError):
    """The server is not called now, because it has failed repeatedly."""

    code = "second_level_open"


FAIR_S = 0.003
"""A call with less time than this does not count as a failure of the server."""


class Breaker:
    """The state of one server, for all threads.

    Attributes:
        since: Time of the last change of state.
        reason: Message of the last failure; "" after a success.
    """

    def __init__(self, now: float, *, failures: int = FAILURES, draw: Callable[[], float] = random.random) -> None:
        self.state: State = "closed"
        self.since = now
        self.reason = ""
        self._failures = failures
        self._draw = draw
        self._in_succession = 0
        self._pause_s = FIRST_PAUSE_S
        self._retry_at = now
        self._lock = threading.Lock()

    def begin(self, now: float) -> None:
        """Begin a call, or raise `CircuitOpen`; `succeeded` or `failed` must follow."""
        with self._lock:
            if self.state == "closed":
                return
            if self.state == "open" and now >= self._retry_at:
                self._move("probing", now)
                return
            reason = self.reason
        raise CircuitOpen(f"the second level is not called for up to {self._pause_s:.1f} s: {reason}")

    def succeeded(self, now: float) -> None:
        with self._lock:
            self._in_succession = 0
            self._pause_s = FIRST_PAUSE_S
            self.reason = ""
            if self.state != "closed":
                self._move("closed", now)

    def failed(self, now: float, reason: str, *, is_fair: bool = True) -> None:
        """Record a failed call; a call begun before the last change of state changes nothing.

        Args:
            is_fair: The call had enough time. Otherwise it does not count as a failure, but a probe still fails.
        """
        with self._lock:
            self.reason = reason
            self._in_succession += is_fair
            if self.state == "closed" and self._in_succession >= self._failures:
                self._open(now)
            elif self.state == "probing":
                self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
                self._open(now)

    def _open(self, now: float) -> None:
        self._retry_at = now + self._pause_s * (1 + JITTER * (2 * self._draw() - 1))
        self._move("open", now)

    def _move(self, state: State, now: float) -> None:
        self.state = state
        self.since = now
