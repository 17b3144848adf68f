"""Decides whether a server is worth a call: one that has failed time after time is left alone for a while.

    closed ──`failures` in succession──> open ──a pause──> probing ──it answers──> closed
                                          ▲                   │
                                          └──── it fails: the next pause is twice as long

One call at a time probes; the others fail at once meanwhile. Does no I/O and reads no clock: it is told the time, in
monotonic seconds. Any thread may call.
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
"""Part of a pause that is drawn, so that hosts do not come back all at once."""

State = Literal["closed", "open", "probing"]


class CircuitOpen(BackendError):
    """The server is not asked now: it has failed time after time."""

    code = "second_level_open"


class Breaker:
    """The state of one server, for all threads.

    Attributes:
        since: when it has come into this state.
        reason: what the last failure said; "" after a success.
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
        """Begin a call; `succeeded` or `failed` must follow.

        Raises:
            CircuitOpen: it must not be made.
        """
        with self._lock:
            if self.state == "closed":
                return
            if self.state == "open" and now >= self._retry_at:
                self._move("probing", now)
                return
            reason = self.reason
        raise CircuitOpen(f"the second level is left alone for up to {self._pause_s:.1f} s: {reason}")

    def succeeded(self, now: float) -> None:
        """Take note that a call was answered."""
        with self._lock:
            self._in_succession = 0
            self._pause_s = FIRST_PAUSE_S
            self.reason = ""
            if self.state != "closed":
                self._move("closed", now)

    def failed(self, now: float, reason: str, *, is_fair: bool = True) -> None:
        """Take note that a call was not answered; one that was begun before the state was left changes nothing.

        Args:
            is_fair: it had time to be; else it opens nothing, and a probe has failed all the same.
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
