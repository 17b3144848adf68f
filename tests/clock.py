"""A clock that a test moves, and a poller to which nothing comes."""

from __future__ import annotations

import time

import pytest


class Clock:
    """Seconds that stand still until a test moves `now`; with `tick_s`, each look moves them so far."""

    def __init__(self, now: float = 0.0, *, tick_s: float = 0.0) -> None:
        self.now = now
        self.tick_s = tick_s

    def __call__(self) -> float:
        self.now += self.tick_s
        return self.now


def boot_clock(patch: pytest.MonkeyPatch) -> Clock:
    """Let a clock say, for this process, how long ago the host was booted."""
    clock = Clock(1000.0)
    patch.setattr(time, "clock_gettime_ns", lambda which: round(clock() * 1e9))
    return clock


class Sleeper:
    """A poller that waits for as long as it is told by moving the clock, and counts the waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.num_waits = 0

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        self.num_waits += 1
        self._clock.now += timeout_ms / 1000
        return []
