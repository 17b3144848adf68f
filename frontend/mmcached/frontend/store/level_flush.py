"""The flush of the second level: ordered until its process has confirmed it.

    begin ──> due ──ordered──> awaited ──confirmed──> over
               ^                  └──reported as failed, or its process is another one──> due a second later, or at once
               └──────────────────────┘

Sans I/O; does not know messages.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from mmcached.wire.errors import MmcachedError, SecondLevelNotFlushed

FLUSH_TIMEOUT_S = 8.0
"""Seconds after which an unconfirmed flush is reported to its caller as failed."""
FLUSH_AGAIN_S = 1.0


class LevelFlush:
    """The last flush of one second level.

    Args:
        clock: Monotonic time in seconds.

    Attributes:
        is_open: Whether it has not been confirmed.
        token: Number of the flush.
        version: Its version; "" without one.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_open = False
        self.token = 0
        self.version = ""
        self._clock = clock
        self._next_order = self._until = -inf
        self._error = ""

    def begin(self, version: str) -> None:
        self.token += 1
        self.version = version
        self._next_order, self._until = -inf, self._clock() + FLUSH_TIMEOUT_S
        self._error = ""
        self.is_open = True

    @property
    def next_order(self) -> float:
        """When it is to be ordered; infinite if it is not, or its result is awaited."""
        return self._next_order if self.is_open else inf

    def ordered(self) -> None:
        self._next_order = inf  # until its result has been reported

    def process_polls(self) -> None:
        """Order it again later if the process polls without having reported the result: the order was lost."""
        if self._next_order == inf:
            self._next_order = self._clock() + FLUSH_AGAIN_S

    def process_is_lost(self) -> None:
        self._next_order = -inf

    def ended(self, token: int, error: str) -> bool:
        """Apply a result; return False for that of an earlier flush, which changes nothing.

        Args:
            error: Why it failed; "" if it is confirmed.
        """
        if not self.is_open or token != self.token:
            return False
        self._error = error
        self.is_open = bool(error)
        self._next_order = self._clock() + FLUSH_AGAIN_S
        return True

    def error(self, *, has_process: bool) -> MmcachedError | None:
        """Return why it is not confirmed; None while it may still be."""
        error = self._error
        if not error and self._clock() >= self._until:
            step = self._step(has_process)
            error = f"{step} for {FLUSH_TIMEOUT_S:g} s: see the log of the role `second level`"
        return SecondLevelNotFlushed(error) if error else None

    def _step(self, has_process: bool) -> str:
        if not has_process:
            return "its process has not been there"
        if self._next_order == inf:
            return "its process was told, and has not answered"
        return "its process has not asked what to do"
